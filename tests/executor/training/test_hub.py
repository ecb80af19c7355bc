"""Hugging Face datasets by their names: which one is read, what is kept of it, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")

from app.store.run_settings import SETTINGS_FILE
from costmodel.layout import ParallelLayout
from executor.data import hub, tokenized
from executor.data.contents import every_text, look_through, require_unchanged
from executor.data.hub import full_name
from executor.data.pieces import Contents, Split, deal, pieces_of
from executor.data.source import fully_named
from executor.training.settings import METRICS_FILE
from planner.plan import Plan, to_json
from tests.counts import tries
from tests.executor.training.hub_server import served
from topology.base.errors import InputError

FIRST, SECOND = "a" * 40, "b" * 40
pytestmark = pytest.mark.usefixtures("forked_scripts")
SCRIPT = (
    "import sys; from executor.training.worker import leave_process; "
    "from tests.executor.training.test_hub import asked_there; asked_there(sys.argv[1]); leave_process(0)"
)


def made(folder: Path, word: str = "", *, rows: int = 40) -> Path:
    """A dataset of two configurations: `en` as Parquet in two files and a test split, `de` in one."""
    import pyarrow as pa
    from pyarrow import parquet

    about = ["configs:"]
    for config, files in (("en", ("train-0", "train-1", "test-0")), ("de", ("train-0",))):
        about += [f"- config_name: {config}", "  data_files:"]
        for split in sorted({file[:-2] for file in files}):
            about += [f"  - split: {split}", f"    path: {config}/{split}-*"]
        (folder / config).mkdir(parents=True)
        for file in files:
            some = [f"{word}{config} {file} {row}" for row in range(rows)]
            table = pa.table({"id": range(rows), "text": some})
            parquet.write_table(table, folder / config / f"{file}.parquet", row_group_size=15)
    (folder / "README.md").write_text("\n".join(["---", *about, "---", ""]))
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library's files in the test's folder, and nothing remembered of an earlier one."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    yield
    hub._load.cache_clear()
    hub._groups.cache_clear()


def test_a_folder_is_named_in_full(tmp_path: Path) -> None:
    """One word is a configuration, else a split; a single one, or `train`, need not be said."""
    folder = made(tmp_path / "set")
    en = f"hf:{folder}:en"
    assert [full_name(name, {}) for name in (en, f"{en}:test", f"hf:{folder}:de")] == [
        f"{en}:train",
        f"{en}:test",
        f"hf:{folder}:de:train",
    ]
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "validation.jsonl").write_text('{"text": "a"}\n')
    only = f"hf:{alone}:default:validation"
    assert [full_name(f"hf:{alone}{more}", {}) for more in ("", ":validation", "::validation")] == [only] * 3


def test_a_split_is_what_the_library_streams(tmp_path: Path) -> None:
    """All its rows in its order, in pieces at groups of rows; each is in one lane, whose parts are alike."""
    name = full_name(f"hf:{made(tmp_path / 'set')}:en", {})
    found = look_through(name, field="text", lanes=8)
    streamed = datasets.load_dataset(str(tmp_path / "set"), "en", split="train", streaming=True)
    expected = [row["text"] for row in streamed]
    assert list(every_text(name, found)) == expected
    lanes = [
        [text for piece in lane for _, text in hub.rows_of(name, found, piece)]
        for lane in deal(pieces_of(found), 8)
    ]
    assert sorted(text for lane in lanes for text in lane) == sorted(expected)
    assert max(map(len, lanes)) <= 1.6 * min(map(len, lanes))
    assert [file.name for file in found.files] == ["en/train-0.parquet", "en/train-1.parquet"]
    again = look_through(name.replace(str(tmp_path), f"{tmp_path}/."), field="text", lanes=2)
    assert again.sha256 == found.sha256


@pytest.mark.parametrize("rows", [1, 15, 40])
def test_reading_goes_on_from_any_place(rows: int, tmp_path: Path) -> None:
    """What was before it is not turned into text again: at most a few rows of its group are looked at."""
    name = full_name(f"hf:{made(tmp_path / 'set', rows=rows)}:de", {})
    found = look_through(name, field="text", lanes=3)
    for piece in pieces_of(found):
        whole = list(hub.rows_of(name, found, piece))
        for number, (place, _) in enumerate(whole):
            assert list(hub.rows_of(name, found, piece, place)) == whole[number:]


@pytest.mark.parametrize(
    ("turns", "some_rows"), [(2, range(101, 104)), (4, range(1, 10)), (101, (100, 101, 102, 203))]
)
def test_turns_divide_any_number_of_rows(turns: int, some_rows: Sequence[int], tmp_path: Path) -> None:
    """Each row is in one turn, also where a table at the end of a file has fewer rows than there are turns."""
    for rows in some_rows:
        (tmp_path / f"{rows}").mkdir()
        lines = "".join(json.dumps({"text": f"line {row}"}) + "\n" for row in range(rows))
        (tmp_path / f"{rows}" / "train.jsonl").write_text(lines)
        name = full_name(f"hf:{tmp_path}/{rows}", {})
        found = look_through(name, field="text", lanes=turns)
        assert found.files[0].turns == min(turns, rows)
        dealt = [[text for _, text in hub.rows_of(name, found, piece)] for piece in pieces_of(found)]
        expected = [f"line {row}" for row in range(rows)]
        assert dealt == [expected[turn :: min(turns, rows)] for turn in range(min(turns, rows))]


def test_lines_and_other_forms_of_the_library_are_read(tmp_path: Path) -> None:
    """JSON lines, also compressed, plain text: a row each, as `load_dataset` has them."""
    import gzip

    lines = "".join(json.dumps({"n": n, "text": f"line {n}"}) + "\n" for n in range(9))
    for name, raw in (
        ("lines/a.jsonl", lines.encode()),
        ("packed/a.jsonl.gz", gzip.compress(lines.encode())),
        ("plain/a.txt", b"".join(b"line %d\n" % n for n in range(9))),
    ):
        file = tmp_path / name
        file.parent.mkdir()
        file.write_bytes(raw)
        full = full_name(f"hf:{file.parent}", {})
        found = look_through(full, field="text", lanes=4)
        assert list(every_text(full, found)) == [f"line {n}" for n in range(9)]
        assert sum(len(list(hub.rows_of(full, found, piece))) for piece in pieces_of(found)) == 9
        assert len(pieces_of(found)) >= 4


def test_plan_tokenize_writes_what_is_streamed(tmp_path: Path) -> None:
    """The same tokens as of the files themselves, in their order."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["<unk>", "<end>", "en", *map(str, range(40))])}
    known = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "<unk>"))
    known.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    known.save(str(tmp_path / "tokenizer.json"))
    folder = made(tmp_path / "set")
    files = [folder / "en" / f"train-{number}.parquet" for number in range(2)]
    for name, texts in (("files", files), ("streamed", [Path(f"hf:{folder}:en")])):
        tokenized.tokenize(texts, tmp_path / "tokenizer.json", tmp_path / f"{name}.idx", end=1)
    assert (tmp_path / "streamed.bin").read_bytes() == (tmp_path / "files.bin").read_bytes()


def test_what_is_no_such_dataset_is_refused(tmp_path: Path) -> None:
    """In three lines that say what there is."""
    import pyarrow as pa
    from pyarrow import parquet

    folder = made(tmp_path / "set")
    (tmp_path / "empty").mkdir()
    for name, table in (
        ("null", pa.table({"text": ["a", None]})),
        ("none", pa.table({"text": pa.array([], pa.string())})),
    ):
        (tmp_path / name).mkdir()
        parquet.write_table(table, tmp_path / name / "train.parquet")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "train.parquet").write_bytes(b"PAR1 and no more")
    for name, field, said in (
        (f"hf:{folder}", "text", ("which configuration", "en, de", "hf:")),
        (f"hf:{folder}:fr:train", "text", ("has no configuration fr", "en, de")),
        (f"hf:{folder}:en:dev", "text", ("has no split dev", "train")),
        (f"hf:{folder}:en", "body", ("no text in 'body'", "has id, text", "--text-field")),
        (f"hf:{folder}:en", "id", ("no text in 'id'", "has int64 there")),
        (f"hf:{folder}:en:train:more", "text", ("does not name a dataset", "3 words")),
        ("hf:", "text", ("does not name a dataset", "is empty")),
        ("hf:" + "a" * 5000, "text", ("does not name a dataset", "5003 characters")),
        ("hf:a\0b", "text", ("does not name a dataset",)),
        ("hf:a/b/c/d", "text", ("a/b/c/d",)),
        (f"hf:{tmp_path}/missing", "text", ("cannot be opened", "missing")),
        (f"hf:{tmp_path}/empty", "text", ("cannot be opened", "any data files")),
        (f"hf:{tmp_path}/bad", "text", ("cannot be opened", "Parquet")),
        (f"hf:{tmp_path}/none", "text", ("holds no document",)),
        ("hf:org/aggregated-news", "text", ("not here, and the hub is not asked",)),
        (
            "hf:org/name",
            "text",
            ("not here, and the hub is not asked", "HF_HUB_OFFLINE", "hf download org/name"),
        ),
    ):
        with pytest.raises(InputError) as raised:
            look_through(full_name(name, {}), field=field, lanes=2)
        assert all(words in str(raised.value) for words in said), str(raised.value)
        assert str(raised.value).count("\n") == 2
    import gzip

    (tmp_path / "cut").mkdir()
    rows = np.random.default_rng(0).integers(0, 10**18, (20_000, 50))
    lines = "".join(json.dumps({"text": " ".join(map(str, row))}) + "\n" for row in rows)
    (tmp_path / "cut" / "train.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 1)[:-100])
    name = full_name(f"hf:{tmp_path}/cut", {})
    contents = look_through(name, field="text", lanes=1)
    with pytest.raises(InputError, match=r"cannot be read(.|\n)*train\.jsonl\.gz"):
        list(every_text(name, contents))
    name = full_name(f"hf:{tmp_path}/null", {})
    with pytest.raises(InputError, match="row 2 is null"):
        list(every_text(name, look_through(name, field="text", lanes=1)))


def described(folder: Path, files: object, *, name: str = "README.md", rule: str = "---\n") -> Path:
    """A folder of one text, whose description says which files it has."""
    folder.mkdir()
    (folder / "a.txt").write_text("own\n")
    (folder / name).write_text(
        f"{rule}configs:\n- config_name: default\n  data_files: {json.dumps(files)}\n{rule}"
    )
    return folder


def test_a_folder_is_read_inside_of_it_alone(tmp_path: Path) -> None:
    """Whatever its description, its links or another split name; addresses are not even asked."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.txt").write_text("secret\n")
    linked = described(tmp_path / "linked", "*.txt")
    (linked / "b.txt").symlink_to(tmp_path / "secret" / "key.txt")
    yaml = {"name": ".huggingface.yaml", "rule": ""}
    with served(tmp_path / "hub") as (address, asked):
        hidden = described(tmp_path / "hidden", [f"{address}/a.txt"], **yaml)
        (hidden / yaml["name"]).write_text((hidden / yaml["name"]).read_text().replace("://", r"\x3a//"))
        for folder in (
            linked,
            described(tmp_path / "absolute", f"{tmp_path}/secret/*.txt"),
            described(tmp_path / "above", "../secret/*.txt"),
            described(
                tmp_path / "split",
                [
                    {"split": "train", "path": "a.txt"},
                    {"split": "test", "path": f"{tmp_path}/secret/key.txt"},
                ],
            ),
            described(tmp_path / "yaml", f"{tmp_path}/secret/*.txt", **yaml),
            described(tmp_path / "scheme", f"file://{tmp_path}/secret/key.txt"),
            described(tmp_path / "address", f"{address}/a.txt"),
            described(tmp_path / "address-yaml", [f"{address}/a.txt"], **yaml),
            hidden,
            described(tmp_path / "hops", f"zip://*.txt::{address}/a.zip"),
        ):
            with pytest.raises(InputError, match="names a file that is not its own") as raised:
                full_name(f"hf:{folder}", {})
            assert str(raised.value).count("\n") == 2
    assert asked == []
    for folder in (described(tmp_path / "own", "*.txt"), described(tmp_path / "later", "*.txt")):
        name = full_name(f"hf:{folder}", {})
        found = look_through(name, field="text", lanes=1)
        assert list(every_text(name, found)) == ["own"]
    hub._load.cache_clear()
    hub._groups.cache_clear()
    (folder / "README.md").write_text((tmp_path / "absolute" / "README.md").read_text())
    with pytest.raises(InputError, match="names a file that is not its own"):
        list(every_text(name, found))


@pytest.mark.parametrize("reader", ["text", "json", "csv", "pandas"])
def test_a_reader_of_the_library_is_no_dataset(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read the working directory; a folder of that name is one."""
    (tmp_path / "train.txt").write_text("not asked for\n")
    monkeypatch.chdir(tmp_path)
    for name in (f"hf:{reader}", f"hf:{reader}:default:train"):
        with pytest.raises(InputError, match=f"hf:{reader} is no dataset") as raised:
            full_name(name, {})
        assert str(raised.value).count("\n") == 2
    with pytest.raises(InputError, match=f"hf:{reader} is no dataset"):
        look_through(f"hf:{reader}:default:train", field="text", lanes=1)
    (tmp_path / reader).mkdir()
    (tmp_path / reader / "train.txt").write_text("asked for\n")
    name = full_name(f"hf:{reader}", {})
    assert name == f"hf:{tmp_path / reader}:default:train"
    assert list(every_text(name, look_through(name, field="text", lanes=1))) == ["asked for"]


@pytest.mark.parametrize(
    "about",
    [
        "configs: &a [*a]",
        "configs: &a\n- config_name: default\n  data_files: *a",
        "configs: 3",
        "configs:\n- 3",
        "configs:\n- config_name: [a]\n  data_files: a.txt",
        "configs:\n- config_name: default\n  data_files: {train: a.txt}",
        "configs:\n- config_name: default\n  data_files: '**/../../**'",
        "configs:\n- config_name: default\n  data_dir: ../other",
        "- a",
        "[" * 5000,
        "\0: a",
        "\udcff",
    ],
)
def test_a_hostile_description_is_refused(about: str, tmp_path: Path) -> None:
    """In three lines, each of which says something; nothing of another folder is read."""
    folder = described(tmp_path / "set", "*.txt")
    (folder / "README.md").write_bytes(f"---\n{about}\n---\n".encode(errors="surrogateescape"))
    described(tmp_path / "other", "*.txt")
    with pytest.raises(InputError) as raised:
        full_name(f"hf:{folder}", {})
    lines = str(raised.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["error", "cause", "help"]
    assert all(line.partition(": ")[2].strip() for line in lines)


def test_the_hubs_own_cache_is_a_folder(tmp_path: Path) -> None:
    """Its files are links to those beside it."""
    blobs, folder = tmp_path / "datasets--a--b" / "blobs", tmp_path / "datasets--a--b" / "snapshots" / FIRST
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    (blobs / "ab12").write_text("text\n")
    (folder / "train.txt").symlink_to("../../blobs/ab12")
    name = full_name(f"hf:{folder}", {})
    assert list(every_text(name, look_through(name, field="text", lanes=1))) == ["text"]


def test_a_size_that_is_not_answered_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that fails for a moment is told: a size of 0 would be another one at the next start."""
    import fsspec

    name = full_name(f"hf:{made(tmp_path / 'set')}:en", {})

    def fails(_path: str) -> object:
        raise OSError("connection reset by peer")

    monkeypatch.setattr(fsspec, "url_to_fs", fails)
    with pytest.raises(InputError, match="connection reset by peer") as raised:
        look_through(name, field="text", lanes=2)
    assert str(raised.value).count("\n") == 2


def test_files_that_changed_are_not_taken_for_the_same(tmp_path: Path) -> None:
    """By the rule of other texts: other bytes at the next start, another size while they are read."""
    folder = made(tmp_path / "set")
    name = full_name(f"hf:{folder}:en", {})
    found = look_through(name, field="text", lanes=2)
    require_unchanged(name, found, look_through(name, field="text", lanes=2))
    file = folder / "en" / "train-1.parquet"
    raw = file.read_bytes()
    file.write_bytes((folder / "en" / "test-0.parquet").read_bytes())
    hub._load.cache_clear()
    hub._groups.cache_clear()
    with pytest.raises(InputError, match=r"train-1\.parquet has other bytes"):
        require_unchanged(name, found, look_through(name, field="text", lanes=2))
    assert len(raw) != file.stat().st_size
    with pytest.raises(InputError, match=f"{len(raw)} bytes when the run began"):
        list(every_text(name, found))


@pytest.mark.parametrize(
    ("asked", "began", "expected"),
    [
        ("hf:org/set:en", "hf:org/set@OLD:en:train", "hf:org/set@OLD:en:train"),
        ("1=hf:org/set@NEW:en,1=hf:org/set:en", "1=hf:org/set@NEW:en:train,1=hf:org/set@OLD:en:train", None),
        ("1=hf:org/set:en,1=hf:org/set@NEW:en", "1=hf:org/set@OLD:en:train,1=hf:org/set@NEW:en:train", None),
        ("hf:org/set:en", "hf:org/other@OLD:en:train", "hf:org/set@LATEST:en:train"),
        ("hf:org/set:en", "data.jsonl", "hf:org/set@LATEST:en:train"),
    ],
)
def test_each_part_goes_on_with_its_own_commit(
    asked: str, began: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a run has kept two commits of one dataset: by its place in what the run began with."""

    class Library:
        config = datasets.config

        @staticmethod
        def get_dataset_config_names(*_: str, **__: object) -> list[str]:
            return ["en"]

        @staticmethod
        def load_dataset_builder(_path: str, _config: str, revision: str | None) -> object:
            files = type("Files", (list,), {"origin_metadata": [("file", revision or "LATEST")]})
            return SimpleNamespace(config=SimpleNamespace(data_files={"train": files()}))

    monkeypatch.setattr(hub, "_library", Library)
    kept = {
        commit: Contents(
            lanes=1,
            field="text",
            files=(),
            hub=Split(path="org/set", config="en", split="train", revision=commit, shards=1, columns=True),
        )
        for commit in ("OLD", "NEW")
    }
    assert fully_named(asked, kept, began) == (expected or began)


# ── a hub ─────────────────────────────────────────────────────────────────────────────────────────────────


def read_there(folder: str) -> None:
    """Read a folder in a process whose hub is the one in its environment: how many texts it has."""
    name = full_name(f"hf:{folder}:en", {})
    sys.stdout.write(str(len(list(every_text(name, look_through(name, field="text", lanes=8))))))


def test_a_folder_asks_no_hub(tmp_path: Path) -> None:
    """For nothing at all, whatever its library would like to know."""
    folder = made(tmp_path / "set")
    with served(tmp_path / "hub") as (address, asked):
        found = subprocess.run(
            [sys.executable, "-c", SCRIPT.replace("asked_there", "read_there"), str(folder)],
            env={**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home")},
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    assert (found.stdout, asked) == ("80", [])


def asked_there(kept_in: str) -> None:
    """What a process answers whose hub is the one in its environment: names in full, texts, errors; as JSON."""
    kept: dict[str, Contents] = {}
    before = Path(kept_in)
    if before.exists():
        revision, name = json.loads(before.read_text())
        kept[name] = replace(look_through(name, field="text", lanes=2))
        assert kept[name].hub.revision == revision
    told: dict[str, object] = {}
    for name in ("org/set:en", "org/gated:en", "org/none", f"org/set@{'c' * 40}:en", f"org/set@{FIRST}:de"):
        try:
            full = full_name(f"hf:{name}", kept)
            contents = look_through(full, field="text", lanes=2)
            told[name] = (full, [file.name for file in contents.files], list(every_text(full, contents))[:2])
        except InputError as error:
            told[name] = str(error)
    if not before.exists():
        before.write_text(json.dumps((FIRST, told["org/set:en"][0])))
    sys.stdout.write(json.dumps(told))


@pytest.mark.slow
def test_ranks_train_from_a_hub_as_from_its_folder(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """The same losses to the last bit, also after a restart when the hub has another commit on its main branch."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {
        word: number
        for number, word in enumerate(["<unk>", "<end>", "old", "new", "en", *map(str, range(40))])
    }
    known = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "<unk>"))
    known.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    known.save(str(tmp_path / "tokenizer.json"))
    for word, commit in (("old ", FIRST), ("new ", SECOND)):
        made(tmp_path / "hub" / "org" / "set" / commit, word)
    main = tmp_path / "hub" / "org" / "set" / "main"
    main.write_text(FIRST)
    plan = tmp_path / "wanted.json"
    plan.write_text(to_json(estimated_plan_of(ParallelLayout(dp=tries(1, 2), zero_stage=1))))

    def train(run: str, data: str, steps: int, **variables: str) -> dict[int, float]:
        call = [sys.executable, "-P", "-m", "app", "run", str(plan), "--run-dir", str(tmp_path / run)]
        call += ["--device", "cpu", "--fp32", "--data", data, "--tokenizer", str(tmp_path / "tokenizer.json")]
        call += [
            "--document-end",
            "1",
            "--steps",
            str(steps),
            "--lr-schedule",
            "constant",
            "--warmup-steps",
            "0",
        ]
        found = subprocess.run(
            call, env={**os.environ, "HF_HOME": str(tmp_path / "home"), **variables},
            capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        lines = (tmp_path / run / METRICS_FILE).read_text().splitlines()
        return {row["step"]: row["loss"] for row in map(json.loads, lines)}

    expected = train("folder", f"hf:{tmp_path}/hub/org/set/{FIRST}:en", 6, HF_HUB_OFFLINE="1")
    with served(tmp_path / "hub") as (address, asked):
        before = train("run", "hf:org/set:en", 3, HF_ENDPOINT=address)
        asked.clear()
        main.write_text(SECOND)
        after = train("run", "hf:org/set:en", 6, HF_ENDPOINT=address)
    assert before == {step: expected[step] for step in (1, 2, 3)}
    assert after == expected
    said = tomllib.loads((tmp_path / "run" / SETTINGS_FILE).read_text())
    assert said["data"] == f"hf:org/set@{FIRST}:en:train"
    assert not [line for line in asked if SECOND in line]


@pytest.mark.slow
def test_a_run_goes_on_with_the_commit_that_it_began_with(tmp_path: Path) -> None:
    """From a hub: names have its commit, and a newer one on its main branch changes nothing for that run."""
    for word, commit in (("old ", FIRST), ("new ", SECOND)):
        made(tmp_path / "hub" / "org" / "set" / commit, word)
    made(tmp_path / "hub" / "org" / "gated" / FIRST)
    for name in ("set", "gated"):
        (tmp_path / "hub" / "org" / name / "main").write_text(FIRST)
    with served(tmp_path / "hub") as (address, asked):

        def told() -> dict[str, object]:
            variables = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": ""}
            found = subprocess.run(
                [sys.executable, "-c", SCRIPT, str(tmp_path / "kept")],
                env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=True,
            )  # fmt: skip
            return dict(json.loads(found.stdout))

        first = told()
        (tmp_path / "hub" / "org" / "set" / "main").write_text(SECOND)
        again = told()
        (tmp_path / "kept").unlink()
        anew = told()
    address = f"hf://datasets/org/set@{FIRST}/en/train-0.parquet"
    assert first["org/set:en"][0] == f"hf:org/set@{FIRST}:en:train"
    assert first["org/set:en"][1][0] == address
    assert first["org/set:en"][2] == ["old en train-0 0", "old en train-0 1"]
    assert again["org/set:en"] == first["org/set:en"]
    assert anew["org/set:en"][0] == f"hf:org/set@{SECOND}:en:train"
    assert anew["org/set:en"][2][0] == "new en train-0 0"
    assert first[f"org/set@{FIRST}:de"][0] == f"hf:org/set@{FIRST}:de:train"
    for name, said in (
        ("org/gated:en", ("asks for its readers to be known", "gated dataset", "HF_TOKEN")),
        ("org/none", ("cannot be opened", "doesn't exist on the Hub")),
        (f"org/set@{'c' * 40}:en", ("cannot be opened", "Revision")),
    ):
        assert all(words in first[name] for words in said), first[name]
        assert first[name].count("\n") == 2
    assert any("resolve" in line and "parquet" in line for line in asked)
