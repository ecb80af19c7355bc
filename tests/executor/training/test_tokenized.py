"""Text by a Hugging Face tokenizer, once, into what runs and Megatron read."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cli.documents import held_to_schema

pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

from app.cli import run
from executor.data import tables, tokenized
from executor.data.indexed import open_indexed, write_indexed
from executor.data.source import open_source
from topology.base.errors import InputError

TEXTS = ["the cat sat", "a dog, the cat", "", "sat sat sat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer of words, and documents as JSON lines."""
    made = tmp_path_factory.mktemp("corpus")
    trainer = tokenizers.trainers.WordLevelTrainer(special_tokens=["<unk>", "<end>"])
    known = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="<unk>"))
    known.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    known.train_from_iterator(TEXTS, trainer)
    known.save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}}))
    lines = [json.dumps({"id": number, "text": text}) for number, text in enumerate(TEXTS)]
    (made / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    return made


def test_documents_come_back_as_the_library_encodes_them(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each closed by its end, in order, over several batches; and a run reads the file."""
    monkeypatch.setattr(tokenized, "AT_ONCE", 3)
    words = [
        "tokenize",
        str(folder / "corpus.jsonl"),
        "--tokenizer",
        str(folder),
        "-o",
        str(tmp_path / "out"),
    ]
    assert run([*words, "--json"]) == 0
    said = held_to_schema("tokenize", capsys.readouterr().out)
    known = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = [token for text in TEXTS for token in (*known.encode(text).ids, known.token_to_id("<end>"))]
    assert open_indexed(tmp_path / "out.idx").tolist() == expected
    assert (said["documents"], said["tokens"], said["document_end"]) == (len(TEXTS), len(expected), 1)
    source = open_source(said["index"], vocab_size=said["vocab_size"], sequence_length=4, seed=0)
    assert len(source.sample(0)) == 5


def test_megatron_s_own_fields_are_there(tmp_path: Path) -> None:
    """The header and tables as its reader takes them: lengths, places in bytes, marks of documents."""
    assert write_indexed(tmp_path / "a.idx", [[1, 2], [], [70_000]], vocab_size=80_000) == [2, 0, 1]
    raw = (tmp_path / "a.idx").read_bytes()
    assert raw[:9] == b"MMIDIDX\x00\x00"
    assert np.frombuffer(raw, "<u8", 1, 9)[0] == 1
    assert raw[17] == 4
    assert np.frombuffer(raw, "<u8", 2, 18).tolist() == [3, 4]
    assert np.frombuffer(raw, "<i4", 3, 34).tolist() == [2, 0, 1]
    assert np.frombuffer(raw, "<i8", 3, 46).tolist() == [0, 8, 8]
    assert np.frombuffer(raw, "<i8", 4, 70).tolist() == [0, 1, 2, 3]
    assert open_indexed(tmp_path / "a.idx").tolist() == [1, 2, 70_000]


def test_what_fails_on_the_way_leaves_what_was_there(tmp_path: Path) -> None:
    write_indexed(tmp_path / "a.idx", [[1]], vocab_size=10)

    def broken() -> Iterator[list[int]]:
        yield [2]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_indexed(tmp_path / "a.idx", broken(), vocab_size=10)
    assert open_indexed(tmp_path / "a.idx").tolist() == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


@pytest.mark.parametrize(
    ("line", "words", "said"),
    [
        ('{"text": 3}', [], "no text in 'text'"),
        ('{"body": "x"}', [], "has body"),
        ("{", [], "not JSON"),
        ('{"text": "x"}', ["--document-end", "99"], "token 99"),
        ('{"text": "x"}', ["--tokenizer", "missing.json"], "not a tokenizer"),
    ],
)
def test_what_cannot_be_read_is_refused(
    folder: Path,
    line: str,
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bad.jsonl").write_text(line)
    out = tmp_path / "out"
    asked = ["tokenize", str(tmp_path / "bad.jsonl"), "--tokenizer", str(folder), "-o", str(out), *words]
    assert run(asked) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert [one.split(":")[0] for one in errors.splitlines()] == ["error", "cause", "help"]
    assert not list(tmp_path.glob("out*"))


def table_files(folder: Path) -> dict[str, Path]:
    """The same documents as Parquet in two parts, as an Arrow stream like `save_to_disk` writes, and as a file."""
    arrow = pytest.importorskip("pyarrow")
    parquet, ipc = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow.ipc")
    found = {name: folder / name for name in ("parquet", "stream", "file")}
    for made in found.values():
        made.mkdir()

    def table(some: list[str]) -> object:
        return arrow.table({"id": list(range(len(some))), "text": some})

    for part, some in enumerate((TEXTS[:3], TEXTS[3:])):
        parquet.write_table(
            table(some), found["parquet"] / f"train-0000{part}-of-00002.parquet", row_group_size=2
        )
        name = f"data-0000{part}-of-00002.arrow"
        with ipc.new_stream(found["stream"] / name, table(some).schema) as stream:
            stream.write_table(table(some), max_chunksize=2)
        with ipc.new_file(found["file"] / name, table(some).schema) as file:
            file.write_table(table(some))
    (found["stream"] / "dataset_info.json").write_text("{}")
    (found["stream"] / "state.json").write_text('{"_data_files": []}')
    return found


@pytest.mark.parametrize("form", ["parquet", "stream", "file"])
@pytest.mark.parametrize("at_once", [1, 1000])
def test_tables_are_read_as_lines_are(
    form: str, at_once: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Hugging Face dataset's folder: its parts in the order of their names, every row a document."""
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", at_once)
    files = table_files(tmp_path)
    tokenized.tokenize([folder / "corpus.jsonl"], folder, tmp_path / "lines.idx")
    said = tokenized.tokenize([files[form]], folder, tmp_path / "rows.idx")
    assert open_indexed(tmp_path / "rows.idx").tolist() == open_indexed(tmp_path / "lines.idx").tolist()
    assert said.documents == len(TEXTS)


@pytest.mark.parametrize("ending", ["jsonl.gz", "json.gz", "jsonl.zst", "txt.gz"])
def test_compressed_text_is_read_as_what_it_stands_for(ending: str, folder: Path, tmp_path: Path) -> None:
    """By the form that the name gives before the compression; a folder's too."""
    pa = pytest.importorskip("pyarrow")
    kind, _, compression = ending.partition(".")
    raw = TEXTS[1].encode() if kind == "txt" else (folder / "corpus.jsonl").read_bytes()
    plain, packed = tmp_path / f"plain.{kind}", tmp_path / "in" / f"a.{ending}"
    packed.parent.mkdir()
    plain.write_bytes(raw)
    with pa.CompressedOutputStream(str(packed), {"gz": "gzip", "zst": "zstd"}[compression]) as out:
        out.write(raw)
    said = tokenized.tokenize([plain], folder, tmp_path / "plain.idx")
    assert tokenized.tokenize([packed.parent], folder, tmp_path / "packed.idx").tokens == said.tokens > 0
    assert (tmp_path / "packed.bin").read_bytes() == (tmp_path / "plain.bin").read_bytes()


def test_tables_that_hold_no_text_are_refused(folder: Path, tmp_path: Path) -> None:
    """Another column, a column of numbers, a file cut off, a folder without any, a table of no rows."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    whole = next(iter(table_files(tmp_path)["parquet"].iterdir()))
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole.read_bytes()[:-20])
    (tmp_path / "empty").mkdir()
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "no.parquet")
    parquet.write_table(pa.table({"text": ["a", None]}), tmp_path / "null.parquet")
    for path, field, said in (
        (whole, "body", "has id, text"),
        (whole, "id", "has int64 there"),
        (cut, "text", "cut.parquet cannot be read as a table"),
        (tmp_path / "no.parquet", "text", "there is no document"),
        (tmp_path / "null.parquet", "text", "row 2 is null"),
        (tmp_path / "missing.parquet", "text", "there is no such file or folder"),
        (tmp_path / "empty", "text", "no file in it ends with .parquet, .arrow, .jsonl"),
    ):
        with pytest.raises(InputError) as raised:
            tokenized.tokenize([path], folder, tmp_path / "out.idx", field=field)
        assert said in str(raised.value)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("damage", "names", "said"),
    [
        ((struct.pack("<ii", 0, 77), struct.pack("<ii", 0, 10**9)), ["text"], "cannot be read as a table"),
        ((b"abab", b"\xff\xfeab"), ["text"], "Invalid UTF8"),
        ((b"", b""), ["text", "text"], "several columns are called 'text'"),
    ],
)
def test_a_damaged_table_is_refused(
    damage: tuple[bytes, bytes], names: list[str], said: str, tmp_path: Path
) -> None:
    """Text beyond the file's end, which is a crash unless it is looked for; bytes that are no text; a name twice."""
    pa, ipc = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.ipc")
    batch = pa.RecordBatch.from_arrays([pa.array(["ab" * 38 + "c"])] * len(names), names)
    written = tmp_path / "bad.arrow"
    with ipc.new_stream(written, batch.schema) as stream:
        stream.write_batch(batch)
    before, found, after = written.read_bytes().rpartition(damage[0] or names[0].encode())  # columns are last
    assert found
    written.write_bytes(before + (damage[1] or found) + after)
    with pytest.raises(InputError) as raised:
        list(tables.text_rows(written, "text"))
    assert said in str(raised.value)
    assert str(raised.value).count("\n") == 2


def test_an_output_that_cannot_be_written_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is read where it can be known, and where a disk is full on the way."""
    (tmp_path / "taken").touch()
    (tmp_path / "a.txt").write_text("the cat")
    asked = ["tokenize", str(tmp_path / "a.txt"), "--tokenizer", str(folder), "-o"]
    assert run([*asked, str(tmp_path / "taken" / "out")]) == 2
    assert f"error: {tmp_path / 'taken' / 'out.idx'} cannot be written" in capsys.readouterr().err

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tokenized, "write_indexed", full)
    assert run([*asked, str(tmp_path / "out")]) == 2
    assert f"error: {tmp_path / 'out.bin'} cannot be written" in capsys.readouterr().err


def test_a_folder_tells_what_was_read_of_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its parts are joined, text files too; what holds no documents is counted."""
    for name, text in (("train/a.txt", "the cat"), ("test/b.jsonl", '{"text": "sat"}'), ("README.md", "x")):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(text)
    asked = ["tokenize", str(tmp_path / "in"), "--tokenizer", str(folder), "-o", str(tmp_path / "out")]
    assert run(asked) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 documents" in said
    assert "1 others are left out" in said
    assert run(asked) == 2
    assert f"{tmp_path / 'out.idx'} is there already" in capsys.readouterr().err
    assert run([*asked[:-1], str(tmp_path / "again"), "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["files"] == {str(tmp_path / "in" / part): 1 for part in ("test", "train")}
    assert read["skipped"] == 1
