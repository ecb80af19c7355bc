"""Text tokenized while a run trains: samples by number, whoever reads them, from wherever they go on."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

from executor.data import ahead, contents, stream, tokenized
from executor.data.ahead import Ahead, text_places
from executor.data.contents import kept_contents, look_through, require_unchanged, texts_json
from executor.data.documents import documents
from executor.data.indexed import open_indexed
from executor.data.lane_blend import LaneBlend
from executor.data.pieces import Piece, pieces_of
from executor.data.source import TextReading, open_source
from executor.data.stream import TextStream
from executor.data.tokenizer import open_tokenizer
from executor.training.batches import sequences_of_rank
from topology.base.errors import InputError

WORDS = [f"w{number}" for number in range(200)]
SEQUENCE, BATCH, SEED = 16, 8, 3
DOCUMENTS = 150
FILES = ("lines", "parquet", "arrow", "file", "text", "gzip", "zstd", "gzip text")
DATASETS = ("dataset", "dataset of lines", "dataset of one")
STREAMED = [
    pytest.param(form, marks=pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets"))
    for form in DATASETS
]
GROUP = 1 << 32  # the number of a row's group in a dataset's file, as a place has it


def texts(seed: int, count: int = DOCUMENTS) -> list[str]:
    """Documents of 0 to 60 words, among them one of 400."""
    random = np.random.default_rng(seed)
    lengths = [*random.integers(0, 60, count - 1), 400]
    return [" ".join(random.choice(WORDS, length)) for length in lengths]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of the words: token 1 ends a document."""
    made = tmp_path_factory.mktemp("tokenizer")
    known = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {word: number for number, word in enumerate(["<unk>", "<end>", *WORDS])}, "<unk>"
        )
    )
    known.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    known.save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return made


def write_lines(path: Path, some: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    return path


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same documents in every form, each cut into files of different sizes; text files hold others."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    made = tmp_path_factory.mktemp("corpora")
    found = {name: made / name for name in FILES}
    for folder in found.values():
        folder.mkdir()
    every = texts(1)
    for part, (first, last) in enumerate(pairwise((0, 20, 100, DOCUMENTS))):
        some = every[first:last]
        write_lines(found["lines"] / f"{part}.jsonl", some)
        table = pa.table({"id": list(range(len(some))), "text": some})
        parquet.write_table(table, found["parquet"] / f"{part}.parquet", row_group_size=17)
        with pa.ipc.new_stream(found["arrow"] / f"{part}.arrow", table.schema) as out:
            out.write_table(table, max_chunksize=13)
        with pa.ipc.new_file(found["file"] / f"{part}.arrow", table.schema) as out:
            out.write_table(table, max_chunksize=13)
        lines = (found["lines"] / f"{part}.jsonl").read_bytes()
        middle = lines.index(b"\n", len(lines) // 2) + 1
        (found["gzip"] / f"{part}.{'json' if part else 'jsonl'}.gz").write_bytes(
            gzip.compress(lines[:middle]) + gzip.compress(lines[middle:])  # two members, as pigz writes them
        )
        with pa.CompressedOutputStream(str(found["zstd"] / f"{part}.jsonl.zst"), "zstd") as packed:
            packed.write(lines)
    for form, kind, files in zip(DATASETS, ("parquet", "lines", "lines"), ("*", "*", "1.*"), strict=True):
        folder = made / form.replace(" ", "-")
        shutil.copytree(found[kind], folder / "data")
        about = f"configs:\n- config_name: en\n  data_files:\n  - split: train\n    path: data/{files}\n"
        (folder / "README.md").write_text(f"---\n{about}---\n")
        found[form] = Path(f"hf:{folder}:en:train")
    for number, text in enumerate(every):
        (found["text"] / f"{number:03}.txt").write_text(text)
        (found["gzip text"] / f"{number:03}.txt.gz").write_bytes(gzip.compress(text.encode()))
    return found


def reading(tokenizer: Path, **fields: object) -> TextReading:
    return TextReading(tokenizer=str(tokenizer), **{"global_batch_size": BATCH, **fields})  # type: ignore[arg-type]


def opened(name: object, tokenizer: Path, **fields: object) -> TextStream:
    """A corpus as a run opens it."""
    found = open_source(
        str(name), vocab_size=259, sequence_length=SEQUENCE, seed=SEED, texts=reading(tokenizer, **fields)
    )
    assert isinstance(found, TextStream)
    return found


def by_hand(corpus: TextStream, tokens: np.ndarray, lengths: list[int]) -> Iterator[np.ndarray]:
    """Samples one after the other, cut from what `plan tokenize` wrote: the definition, without lanes that read.

    Each lane: its pieces' documents, in the order drawn for each epoch, as one line of tokens.
    """
    firsts = np.concatenate(([0], np.cumsum(lengths)))
    numbers = {}  # of documents in the order of files, by their place; and their number in their file
    for number, file in enumerate(corpus.contents.files):
        whole = Piece(number, 0, file.bounds[-1], 1.0)
        for count, (place, _) in enumerate(contents.documents_of(corpus.name, corpus.contents, whole)):
            numbers[number, place] = len(numbers), count if corpus.contents.hub is None else place
    lines = []
    for lane, pieces in enumerate(corpus.pieces_of_lane):
        line: list[int] = []
        for epoch in range(3):
            for turn in np.random.default_rng((SEED, epoch, lane)).permutation(len(pieces)):
                piece = pieces[turn]
                for (file, place), (document, count) in numbers.items():
                    mine = sum(divmod(count, GROUP)) % piece.turns == piece.turn
                    if file == piece.file and piece.start <= place < piece.stop and mine:
                        line += tokens[firsts[document] : firsts[document + 1]].tolist()
        lines.append(np.array(line))
    for index in range(10**6):
        window, lane = divmod(index, corpus.lanes)
        found = lines[lane][window * SEQUENCE : window * SEQUENCE + SEQUENCE + 1]
        if len(found) <= SEQUENCE:
            return
        yield found


def written(corpus: Path, tokenizer: Path, folder: Path) -> tuple[np.ndarray, list[int]]:
    """Tokens of a corpus by `plan tokenize`, and lengths of its documents."""
    index = folder / "written.idx"
    count = tokenized.tokenize([corpus], tokenizer, index).documents
    return open_indexed(index), np.fromfile(index, "<i4", count, offset=34).tolist()


@pytest.mark.parametrize("form", [*FILES, *STREAMED])
def test_samples_are_windows_over_what_plan_tokenize_writes(
    form: str, corpora: dict[str, Path], tokenizer: Path, tmp_path: Path
) -> None:
    """To the last token, over two epochs and more; no document of the corpus is in two lanes or in none."""
    corpus = opened(corpora[form], tokenizer)
    assert corpus.lanes == BATCH
    tokens, lengths = written(corpora[form], tokenizer, tmp_path)
    expected = list(by_hand(corpus, tokens, lengths))
    assert len(expected) > 2 * len(tokens) // SEQUENCE
    assert all((corpus.sample(index) == sample).all() for index, sample in enumerate(expected))
    dealt = sorted(piece for lane in corpus.pieces_of_lane for piece in lane)
    assert dealt == sorted(pieces_of(corpus.contents))


def test_one_compressed_file_fills_all_lanes(corpora: dict[str, Path], tokenizer: Path) -> None:
    """Its lines are dealt by turns, so that no document is in two lanes or in none."""
    (file,) = corpora["gzip"].glob("1.*")
    corpus = opened(file, tokenizer)
    assert corpus.lanes == BATCH
    seen = [
        place
        for (piece,) in corpus.pieces_of_lane
        for place, _ in contents.documents_of(corpus.name, corpus.contents, piece)
    ]
    assert sorted(seen) == [place for place, _ in documents(file, "text")]
    one = opened(file, tokenizer, global_batch_size=1)
    assert [piece.turns for lane in one.pieces_of_lane for piece in lane] == [1]


def test_lanes_are_alike_and_have_an_order_of_their_own(corpora: dict[str, Path], tokenizer: Path) -> None:
    """Bytes of lanes differ by less than a piece has; neither all lanes nor all epochs begin alike."""
    corpus = opened(corpora["parquet"], tokenizer)
    loads = [sum(piece.weight for piece in lane) for lane in corpus.pieces_of_lane]
    assert max(loads) - min(loads) <= max(piece.weight for piece in pieces_of(corpus.contents))
    orders = {
        tuple(np.random.default_rng((SEED, e, lane)).permutation(9)) for e in range(3) for lane in range(3)
    }
    assert len(orders) == 9


@pytest.mark.parametrize("form", ["lines", "parquet", "arrow", "gzip", "zstd", *STREAMED])
def test_any_rank_goes_on_from_saved_places_without_reading_what_was_before(
    form: str, corpora: dict[str, Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the degrees before and after, at any step; and of a lane little more than a window is tokenized."""
    steps = 30
    whole = opened(corpora[form], tokenizer)
    expected = [whole.sample(index) for index in range((steps + 3) * BATCH)]
    readers = [Ahead(opened(corpora[form], tokenizer), samples_of(2, rank)) for rank in range(2)]
    for step in range(steps):
        saved = [reader.places(step) for reader in readers]
        if step % 7 == 1:
            (key,) = saved[0]
            agreed = {key: np.maximum(saved[0][key], saved[1][key])}
            assert (agreed[key][:, 0] == step).all()
            resumed = json.loads(json.dumps({key: agreed[key].tolist()}))
            for dp in (1, 4):
                for rank in range(dp):
                    later = Ahead(opened(corpora[form], tokenizer), samples_of(dp, rank))
                    assert later.begin(step, resumed) == ()
                    counted = count_texts(monkeypatch)
                    for index in (*samples_of(dp, rank)(step), *samples_of(dp, rank)(step + 1)):
                        assert (later.source.sample(index) == expected[index]).all()
                    tokens = (
                        2 * SEQUENCE * BATCH // dp + 500 * BATCH // dp
                    )  # two windows, and a document a lane
                    assert sum(counted) <= tokens
                    monkeypatch.undo()
        for reader, rank in zip(readers, range(2), strict=True):
            for index in samples_of(2, rank)(step):
                assert (reader.sample(index) == expected[index]).all()
    for reader in readers:
        reader.close()


def samples_of(dp: int, rank: int):  # type: ignore[no-untyped-def]
    """Which samples of a step a rank computes, as in training."""
    mine = sequences_of_rank(BATCH, dp, rank)
    return lambda step: range(step * BATCH + mine.start, step * BATCH + mine.stop)


def count_texts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of what is tokenized from now on."""
    counted: list[int] = []
    plain = stream.Tokenizer.encode

    def encode(self: object, some: list[str]) -> object:
        found = plain(self, some)  # type: ignore[arg-type]
        counted.extend(len(one) for one in found)
        return found

    monkeypatch.setattr(stream.Tokenizer, "encode", encode)
    return counted


def test_a_rank_tokenizes_its_part_alone(
    corpora: dict[str, Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the ranks tokenizes a quarter of the tokens, and a document for each of its lanes."""
    counted = count_texts(monkeypatch)
    rank, steps = opened(corpora["lines"], tokenizer), 25
    for step in range(steps):
        for index in samples_of(4, 1)(step):
            rank.sample(index)
    assert SEQUENCE * steps * 2 <= sum(counted) <= SEQUENCE * steps * 2 + 2 * 402


def test_samples_in_any_order_are_the_same(corpora: dict[str, Path], tokenizer: Path) -> None:
    """Backwards, twice, far ahead: a sample is a function of its number."""
    forward, other = opened(corpora["parquet"], tokenizer), opened(corpora["parquet"], tokenizer)
    expected = [forward.sample(index) for index in range(200)]
    for index in np.random.default_rng(0).permutation(200):
        assert (other.sample(int(index)) == expected[index]).all()


def test_more_lanes_than_files_may_be_open(
    corpora: dict[str, Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes that close their file find their place again."""
    expected = [opened(corpora["arrow"], tokenizer).sample(index) for index in range(3 * BATCH)]
    monkeypatch.setattr(stream, "OPEN_AT_ONCE", 2)
    few = opened(corpora["arrow"], tokenizer)
    assert all((few.sample(index) == sample).all() for index, sample in enumerate(expected))
    assert len(few.open) == 2
    assert sum(lane.texts is not None for lane in few.read.values()) <= 2


@pytest.mark.parametrize("form", ["mixed", "gzip", *STREAMED[1:]])
def test_lanes_of_what_cannot_be_cut_stay_open(
    form: str, corpora: dict[str, Path], tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would read its file from the beginning for every window: compressed ones among others, and datasets of lines."""
    if form == "mixed":
        shutil.copytree(corpora["gzip"], tmp_path / "mixed")
        shutil.copy(corpora["lines"] / "0.jsonl", tmp_path / "mixed" / "plain.jsonl")
    monkeypatch.setattr(stream, "OPEN_AT_ONCE", 2)
    corpus = opened(tmp_path / "mixed" if form == "mixed" else corpora[form], tokenizer)
    for index in range(2 * BATCH):
        corpus.sample(index)
    assert corpus.lanes == BATCH
    assert all(lane.texts is not None for lane in corpus.read.values())


def test_a_small_corpus_has_fewer_lanes(tokenizer: Path, tmp_path: Path) -> None:
    """Three documents and a batch of eight: two lanes, which divide it; each document once an epoch."""
    file = write_lines(tmp_path / "small.jsonl", ["w1 w2 w3 w4", "w5", "w6 w7"])
    corpus = opened(file, tokenizer)
    assert corpus.lanes == 2
    told = [corpus.sample(index) for index in (0, 2, 1, 3)]
    for lane, rows in enumerate((told[:2], told[2:])):
        tokens = np.concatenate([rows[0][:-1], rows[1]]).tolist()
        mine = [documents_in(tokens)[:3]] if lane else []
        assert rows[0][-1] == rows[1][0]
        assert all(mine)
    seen = {
        tuple(one) for rows in (told[:2], told[2:]) for one in documents_in(np.concatenate(rows).tolist())
    }
    assert {(3, 4, 5, 6), (7,), (8, 9)} <= seen


def documents_in(tokens: list[int]) -> list[list[int]]:
    """Words of each document."""
    found: list[list[int]] = [[]]
    for token in tokens:
        if token == 1:
            found.append([])
        else:
            found[-1].append(token)
    return found


# ── blends ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("weights", [(7, 3), (1, 1), (3, 1), (5, 13)])
def test_a_blend_with_text_leaves_no_sample_out(
    weights: tuple[int, int], corpora: dict[str, Path], tokenizer: Path, tmp_path: Path
) -> None:
    """Each source's samples come once; any period of steps is in proportion exactly, places keep their lanes."""
    np.save(tmp_path / "tokens.npy", np.arange(2000) % 259)
    mixed = open_source(
        f"{weights[0]}={corpora['lines']},{weights[1]}={tmp_path / 'tokens.npy'}",
        vocab_size=259,
        sequence_length=SEQUENCE,
        seed=SEED,
        texts=reading(tokenizer),
    )
    assert isinstance(mixed, LaneBlend)
    period = sum(weights)
    seen: list[list[int]] = [[], []]
    for index in range(2 * period * BATCH):
        if index % BATCH == 0:
            before = np.bincount([number % BATCH for number in seen[0]], minlength=BATCH).tolist()
            assert mixed.windows(0, index // BATCH) == before
        source, number = mixed.place(index)
        seen[source].append(number)
        assert source == 1 or number % BATCH == index % BATCH
    assert [len(numbers) for numbers in seen] == [2 * weight * BATCH for weight in weights]
    assert sorted(seen[0]) == list(range(2 * weights[0] * BATCH))
    assert seen[1] == list(range(2 * weights[1] * BATCH))
    alone = opened(corpora["lines"], tokenizer)
    assert all(
        (mixed.sample(index) == alone.sample(mixed.place(index)[1])).all()
        for index in range(3 * BATCH)
        if mixed.place(index)[0] == 0
    )


def test_a_blend_of_texts_resumes_and_small_ones_share_lanes(
    corpora: dict[str, Path], tokenizer: Path, tmp_path: Path
) -> None:
    """Two lanes for eight places: their windows are dealt in order, and places saved at any step lead on."""
    small = write_lines(tmp_path / "small.jsonl", ["w1 w2 w3 w4", "w5", "w6 w7"])

    def made() -> LaneBlend:
        name, texts = f"3={corpora['arrow']},2={small}", reading(tokenizer)
        found = open_source(name, vocab_size=259, sequence_length=SEQUENCE, seed=SEED, texts=texts)
        assert isinstance(found, LaneBlend)
        return found

    whole = made()
    numbers: list[list[int]] = [[], []]
    for index in range(15 * BATCH):
        source, number = whole.place(index)
        numbers[source].append(number)
    by_lane = [[number for number in numbers[1] if number % 2 == lane] for lane in range(2)]
    assert by_lane == [list(range(lane, 2 * len(found), 2)) for lane, found in enumerate(by_lane)]
    expected = [whole.sample(index) for index in range(15 * BATCH)]
    for step in (1, 4, 9):
        half = made()
        for index in range(step * BATCH):
            half.sample(index)
        later = Ahead(made(), samples_of(1, 0))
        later.begin(step, {key: table.tolist() for key, table in text_places(half, step).items()})
        for index in range(step * BATCH, (step + 2) * BATCH):
            assert (later.sample(index) == expected[index]).all()
        later.close()


def test_parts_of_a_blend_that_are_the_same_text_have_each_a_place(
    corpora: dict[str, Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts of three are one text, at windows of their own: both go on there, and neither is read again."""
    name = f"5={corpora['lines']},1={corpora['arrow']},1={corpora['lines']}"

    def made() -> LaneBlend:
        found = open_source(
            name, vocab_size=259, sequence_length=SEQUENCE, seed=SEED, texts=reading(tokenizer)
        )
        assert isinstance(found, LaneBlend)
        return found

    whole, step = made(), 28
    expected = [whole.sample(index) for index in range((step + 1) * BATCH)]
    saved = {key: table.tolist() for key, table in text_places(whole, step).items()}
    assert [[row[0] for row in table] for table in saved.values()] == [
        whole.windows(number, step) for number in range(3)
    ]
    later = Ahead(made(), samples_of(1, 0))
    assert later.begin(step, saved) == ()
    counted = count_texts(monkeypatch)
    for index in range(step * BATCH, (step + 1) * BATCH):
        assert (later.source.sample(index) == expected[index]).all()
    assert sum(counted) <= (SEQUENCE + 500) * BATCH  # a window and a document of each place


# ── reading ahead ─────────────────────────────────────────────────────────────────────────────────────────


def test_reading_ahead_is_bounded(corpora: dict[str, Path], tokenizer: Path) -> None:
    """A thread holds two steps' samples and no more until they are asked for, and ends when told."""
    reader = Ahead(opened(corpora["lines"], tokenizer), samples_of(2, 0))
    reader.sample(0)
    with reader.changed:
        assert reader.changed.wait_for(lambda: reader.step == 2, timeout=20)
    assert len(reader.ready) == 2 * BATCH // 2 - 1
    assert reader.thread is not None
    reader.thread.join(timeout=0.2)
    assert len(reader.ready) == 2 * BATCH // 2 - 1
    reader.close()
    assert not reader.thread.is_alive()


def test_a_sample_that_is_skipped_keeps_nobody_waiting(corpora: dict[str, Path], tokenizer: Path) -> None:
    """The thread that reads ahead is woken by it."""
    ahead, plain = (
        Ahead(opened(corpora["lines"], tokenizer), samples_of(1, 0)),
        opened(corpora["lines"], tokenizer),
    )
    asked = [index * plain.batch for index in (0, 2, 7)]
    found: list[npt.NDArray[np.int64]] = []
    reader = threading.Thread(
        target=lambda: found.extend(ahead.sample(index) for index in asked), daemon=True
    )
    reader.start()
    reader.join(60)
    assert len(found) == len(asked)
    ahead.close()
    for index, tokens in zip(asked, found, strict=True):
        np.testing.assert_array_equal(tokens, plain.sample(index))


def test_what_fails_ahead_fails_the_rank_that_asks(tokenizer: Path, tmp_path: Path) -> None:
    """A damaged line in the middle: its three lines, when a sample needs it and not before."""
    lines = [json.dumps({"text": " ".join(WORDS[:40])}) for _ in range(30)]
    lines[20] = '{"text": broken}'
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    reader = Ahead(
        opened(tmp_path / "bad.jsonl", tokenizer, global_batch_size=1), lambda step: range(step, step + 1)
    )
    with pytest.raises(InputError, match="is not JSON") as raised:
        list(map(reader.sample, range(200)))
    assert str(raised.value).count("\n") == 2
    reader.close()


class Panic(BaseException):
    """What an extension in Rust raises that has come to where it must not."""


def test_a_panic_of_the_tokenizer_fails_the_rank_that_asks(
    corpora: dict[str, Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, as an error that is reported: it is no Exception, and a thread that it ends says nothing."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def panics(_self: object, _some: list[str]) -> object:
        raise Panic("index out of bounds")

    monkeypatch.setattr(stream.Tokenizer, "encode", panics)
    reader = Ahead(opened(corpora["lines"], tokenizer), samples_of(1, 0))
    assert reader.has(0, 20)
    with pytest.raises(RuntimeError, match="Panic: index out of bounds"):
        reader.sample(0)
    monkeypatch.setattr(Ahead, "_read", lambda _: None)
    reader = Ahead(opened(corpora["lines"], tokenizer), samples_of(1, 0))
    assert reader.has(0, 0.1)
    with pytest.raises(RuntimeError, match="has ended"):
        reader.sample(0)


def test_a_read_that_never_ends_is_told(
    corpora: dict[str, Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the file, after an hour without a document; each document that is read begins that hour anew."""
    clock_s, goes_on, plain = [0.0], threading.Semaphore(0), stream.Tokenizer.encode

    def encode(self: object, some: list[str]) -> object:
        assert goes_on.acquire(timeout=60)
        return plain(self, some)  # type: ignore[arg-type]

    monkeypatch.setattr(stream.Tokenizer, "encode", encode)
    monkeypatch.setattr(ahead.time, "monotonic", lambda: clock_s[0])
    reader = Ahead(opened(corpora["lines"], tokenizer), samples_of(1, 0))
    assert ahead.SILENT_S == 3600

    def gives_up_at(seconds: float) -> bool:
        clock_s[0] = seconds
        return reader.has(0)

    assert [gives_up_at(seconds) for seconds in (0.0, 3599.0)] == [False, False]
    goes_on.release()
    while not reader.source.documents:
        threading.Event().wait(0.01)
    assert [gives_up_at(seconds) for seconds in (3601.0, 7200.0, 7201.0)] == [False, False, True]
    with pytest.raises(InputError, match=r"no document in 3600 s, last of .*lines/\d\.jsonl") as raised:
        reader.sample(BATCH - 1)
    assert str(raised.value).count("\n") == 2
    goes_on.release(10**6)
    reader.close()


def in_time(ask: Callable[[], object]) -> list[object]:
    """What is answered within some seconds, else nothing."""
    found: list[object] = []
    asking = threading.Thread(target=lambda: found.append(ask()), daemon=True)
    asking.start()
    asking.join(10)
    return found


def test_places_wait_for_no_reading(
    corpora: dict[str, Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint between steps has all places, also while the next step's text is long looked for."""
    plain, goes_on = opened(corpora["lines"], tokenizer), threading.Event()
    for index in range(BATCH):
        plain.sample(index)
    reader = Ahead(opened(corpora["lines"], tokenizer), samples_of(1, 0))
    sample = reader.source.sample
    monkeypatch.setattr(
        reader.source, "sample", lambda index: sample(index) if index < BATCH or goes_on.wait(60) else None
    )
    for index in range(BATCH):
        reader.sample(index)
    assert not reader.has(1)
    (found,) = in_time(lambda: reader.places(1))
    ((key, expected),) = text_places(plain, 1).items()
    assert found[key].tolist() == expected.tolist()  # type: ignore[index]
    assert (expected[:, 0] == 1).all()
    goes_on.set()
    reader.close()


def test_reading_stops_when_told(
    corpora: dict[str, Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that is long looked for is looked for no more; a read that does not return is left behind."""
    reader = Ahead(opened(corpora["lines"], tokenizer), samples_of(1, 0))
    reader.step = 10**7
    assert not reader.has(reader.step, 0.1)
    assert in_time(reader.close) == [None]
    assert reader.thread is not None
    assert not reader.thread.is_alive()
    goes_on = threading.Event()
    monkeypatch.setattr(stream.Tokenizer, "encode", lambda *_: goes_on.wait(60))
    monkeypatch.setattr(ahead, "CLOSE_S", 0.1)
    stuck = Ahead(opened(corpora["lines"], tokenizer), samples_of(1, 0))
    assert not stuck.has(0)
    assert in_time(stuck.close) == [None]
    goes_on.set()


def test_ranks_are_not_held_up_by_a_step_ahead(
    corpora: dict[str, Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is read, a step's samples are given without a text being tokenized by who asks."""
    import threading

    asked_by: list[threading.Thread] = []
    plain = stream.Tokenizer.encode

    def encode(self: object, some: list[str]) -> object:
        asked_by.append(threading.current_thread())
        return plain(self, some)  # type: ignore[arg-type]

    monkeypatch.setattr(stream.Tokenizer, "encode", encode)
    reader = Ahead(opened(corpora["lines"], tokenizer), samples_of(1, 0))
    for index in range(10 * BATCH):
        reader.sample(index)
    reader.close()
    assert set(asked_by) == {reader.thread}
    assert ahead.STEPS_AHEAD == 2


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────


def test_wrong_texts_are_refused(corpora: dict[str, Path], tokenizer: Path, tmp_path: Path) -> None:
    """Three lines with the numbers, when the source is opened and before anything is read of it."""
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes((corpora["lines"] / "1.jsonl").read_bytes()[:-9])
    parquet = tmp_path / "cut.parquet"
    parquet.write_bytes((corpora["parquet"] / "1.parquet").read_bytes()[:-9])
    arrow = tmp_path / "cut.arrow"
    arrow.write_bytes((corpora["arrow"] / "1.arrow").read_bytes()[:-900])
    (tmp_path / "blank.jsonl").write_text("\n\n")
    alone = tmp_path / "alone.json"
    alone.write_bytes((tokenizer / "tokenizer.json").read_bytes())
    (tmp_path / "none.jsonl").write_text("")
    for name in ("gzip", "zstd"):
        (packed,) = corpora[name].glob("1.*")
        (tmp_path / f"no-{packed.name}").write_bytes(packed.read_bytes()[7:])
    (tmp_path / "none.jsonl.gz").write_bytes(gzip.compress(b"\n"))
    large = tmp_path / "large.txt"
    with large.open("wb") as sparse:
        sparse.truncate(65 << 20)
    for name, fields, said in (
        (cut, {}, "ends in the middle"),
        (parquet, {}, "cannot be read as a table"),
        (arrow, {}, "cannot be read as a table"),
        (tmp_path / "no-1.json.gz", {}, "cannot be decompressed"),
        (tmp_path / "no-1.jsonl.zst", {}, "cannot be decompressed"),
        (tmp_path / "none.jsonl.gz", {}, "holds no document"),
        (corpora["gzip"], {"field": "body"}, "has text"),
        (tmp_path / "blank.jsonl", {}, "holds no document"),
        (tmp_path / "none.jsonl", {}, "1 files, 0 bytes"),
        (tmp_path / "missing.jsonl", {}, "no such file or folder"),
        (large, {}, "more than 64 MiB"),
        (corpora["lines"], {"field": "body"}, "has text"),
        (corpora["parquet"], {"field": "body"}, "has id, text"),
        (corpora["parquet"], {"field": "id"}, "has int64 there"),
        (corpora["lines"], {"tokenizer": str(tmp_path / "no.json")}, "is not a tokenizer"),
        (corpora["lines"], {"end": 999}, "token 999"),
        (corpora["lines"], {"tokenizer": str(alone)}, "which token ends a document is not known"),
        (corpora["lines"], {"sha256": "ab" * 32}, "is not the tokenizer that the run began with"),
    ):
        told = {"tokenizer": str(tokenizer), "global_batch_size": BATCH} | fields
        texts = TextReading(**told)  # type: ignore[arg-type]
        with pytest.raises(InputError) as raised:
            open_source(str(name), vocab_size=259, sequence_length=SEQUENCE, seed=SEED, texts=texts)
        assert said in str(raised.value)
        assert str(raised.value).count("\n") == 2
    with pytest.raises(InputError, match="has ids below 202, vocab_size is 201"):
        open_source(
            str(corpora["lines"]),
            vocab_size=201,
            sequence_length=SEQUENCE,
            seed=SEED,
            texts=reading(tokenizer),
        )
    with pytest.raises(InputError, match="no tokenizer was given"):
        open_source(str(corpora["lines"]), vocab_size=259, sequence_length=SEQUENCE, seed=SEED)


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_a_compressed_file_that_is_cut_off_is_refused(
    form: str, corpora: dict[str, Path], tokenizer: Path, tmp_path: Path
) -> None:
    """In three lines, at the latest when its end is read."""
    (whole,) = corpora[form].glob("1.*")
    cut = tmp_path / whole.name
    cut.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(InputError, match="cannot be decompressed") as raised:
        list(map(opened(cut, tokenizer).sample, range(400)))
    assert str(raised.value).count("\n") == 2


def test_files_that_changed_are_not_taken_for_the_same(tokenizer: Path, tmp_path: Path) -> None:
    """Other bytes, a file more, a file gone, another field: with the numbers; also while they are read."""
    folder = tmp_path / "in"
    folder.mkdir()
    for part in range(3):
        write_lines(folder / f"{part}.jsonl", texts(part, 40))
    before = look_through(str(folder), field="text", lanes=BATCH)
    (tmp_path / contents.TEXTS_FILE).write_text(texts_json({str(folder): before}))
    kept = kept_contents(tmp_path)[str(folder)]
    assert kept == before
    require_unchanged(str(folder), kept, look_through(str(folder), field="text", lanes=1))
    damaged = texts_json({str(folder): before}).replace('"bounds": [0, ', '"bounds": [9, ')
    (tmp_path / contents.TEXTS_FILE).write_text(damaged)
    with pytest.raises(InputError, match="do not follow one another"):
        kept_contents(tmp_path)
    running = opened(folder, tokenizer, kept={str(folder): kept})
    assert running.contents is kept
    old = (folder / "1.jsonl").read_text()
    for change, said in (
        (lambda: (folder / "1.jsonl").write_text(old.replace("w1", "w2")), "1.jsonl has other bytes"),
        (lambda: (folder / "1.jsonl").write_text(old + old), f"{len(old)} bytes then, {2 * len(old)} now"),
        (lambda: write_lines(folder / "4.jsonl", ["w1"]), "4.jsonl is new: 3 files then, 4 now"),
        ((folder / "1.jsonl").unlink, "1.jsonl is gone: 3 files then, 2 now"),
    ):
        change()
        with pytest.raises(InputError) as raised:
            require_unchanged(str(folder), kept, look_through(str(folder), field="text", lanes=BATCH))
        assert said in str(raised.value)
        (folder / "4.jsonl").unlink(missing_ok=True)
        (folder / "1.jsonl").write_text(old)
    (folder / "1.jsonl").write_text(old + old)
    with pytest.raises(InputError, match=f"{len(old)} bytes when the run began, {2 * len(old)} now"):
        list(islice((running.sample(index) for index in range(400)), 400))


def test_places_that_the_corpus_has_not_are_refused(corpora: dict[str, Path], tokenizer: Path) -> None:
    """A checkpoint's place beyond the pieces, between documents, or beyond a document's tokens."""
    whole = opened(corpora["parquet"], tokenizer)
    for index in range(2 * BATCH):
        whole.sample(index)
    good = whole.places([2] * BATCH).tolist()
    for rows in (good[:-1], [row[:-1] for row in good]):
        with pytest.raises(InputError, match=r"place in .* is not there"):
            whole.resume(rows)
    for column, value in ((2, 10**6), (3, 10**6), (4, 10**6), (1, -1)):
        rows = [row[:] for row in good]
        rows[0][column] = value
        later = opened(corpora["parquet"], tokenizer)
        with pytest.raises(InputError, match=r"place in .* is not there"):
            later.sample(2 * BATCH if later.resume(rows) is None else 0)


def test_a_tokenizer_that_cuts_pads_or_draws_lots_does_not(tokenizer: Path, tmp_path: Path) -> None:
    """Truncation and padding, which tokenizer.json may ask for, are taken out; dropout is refused."""
    known = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    known.enable_truncation(3)
    known.enable_padding(length=8)
    known.save(str(tmp_path / "tokenizer.json"))
    found = open_tokenizer(tmp_path, end=1)
    assert [one.tolist() for one in found.encode(["w0 w1 w2 w3 w4", "w5"])] == [[2, 3, 4, 5, 6, 1], [7, 1]]
    with pytest.raises(InputError, match="cannot be tokenized"):
        found.encode(["\ud800"])
    lots = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [], dropout=0.1))
    lots.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="draws lots"):
        open_tokenizer(tmp_path, end=0)


@pytest.mark.parametrize(
    ("rows", "said"), [(-3, "have -3, 1 rows, the table 4"), (2, "have 2, 1 rows, the table 4")]
)
def test_groups_of_rows_that_are_not_the_tables_are_refused(rows: int, said: str, tmp_path: Path) -> None:
    """A footer whose counts are damaged: below zero, or of fewer rows than there are."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["a b", "b", "a", "b a"]}), path, row_group_size=3)
    whole = path.read_bytes()
    groups = parquet.ParquetFile(path).metadata
    assert [groups.row_group(number).num_rows for number in range(2)] == [3, 1]
    count = bytes([0x16, 3 << 1, 0x26])  # Thrift: an i64 of 3 in zigzag, before the first place of the group
    assert whole.count(count) == 1
    zigzag = rows << 1 if rows >= 0 else (-rows << 1) - 1
    path.write_bytes(whole.replace(count, bytes([0x16, zigzag, 0x26])))
    with pytest.raises(InputError, match=said) as raised:
        look_through(str(path), field="text", lanes=2)
    assert str(raised.value).count("\n") == 2
