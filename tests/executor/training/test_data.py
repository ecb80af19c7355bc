"""Data that people have: Megatron's indexed datasets, and blends in exact proportions."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from executor.data.blend import blend, blend_parts
from executor.data.source import open_source, raw_token_notes
from topology.base.errors import InputError

LENGTHS = (100, 3, 258)


def write_dataset(folder: Path) -> Path:
    """A dataset of three sequences in two documents, written from the format's description."""
    tokens = np.arange(sum(LENGTHS)).astype("<i4") % 250
    (folder / "set.bin").write_bytes(tokens.tobytes())
    places = [4 * sum(LENGTHS[:i]) for i in range(len(LENGTHS))]
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, len(LENGTHS), 3)
    index += struct.pack("<3i", *LENGTHS) + struct.pack("<3q", *places) + struct.pack("<3q", 0, 2, 3)
    (folder / "set.idx").write_bytes(index)
    return folder / "set.idx"


@pytest.mark.parametrize("name", ["set.idx", "set.bin"])
def test_an_indexed_dataset_gives_its_tokens(name: str, tmp_path: Path) -> None:
    """Named by either file; each window of an epoch comes once, its tokens as they were written."""
    write_dataset(tmp_path)
    source = open_source(str(tmp_path / name), vocab_size=259, sequence_length=16, seed=0)
    rows = {int(source.sample(i)[0]): source.sample(i).tolist() for i in range(360 // 16)}
    expected = {start % 250: [t % 250 for t in range(start, start + 17)] for start in range(0, 352, 16)}
    assert rows == expected


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"X"),
        (9, b"\x02"),
        (17, b"\x06"),
        (18, b"\xff" * 8),
        (26, b"\x7f" * 8),
        (34, b"\x65"),
        (46, b"\x04"),
    ],
    ids=["magic", "version", "floats", "sequences", "documents", "length", "place"],
)
def test_a_damaged_index_is_refused(at: int, value: bytes, tmp_path: Path) -> None:
    """Whatever field is wrong: an error that names the file, and no memory taken for sizes that it claims."""
    index = write_dataset(tmp_path)
    content = bytearray(index.read_bytes())
    content[at : at + len(value)] = value
    index.write_bytes(content)
    with pytest.raises(InputError, match=r"set\.idx cannot be read"):
        open_source(str(index), vocab_size=259, sequence_length=16, seed=0)


def test_an_index_of_another_file_is_refused(tmp_path: Path) -> None:
    """A file of tokens that was cut short, or is gone, is not trained on; nor is half an index."""
    index = write_dataset(tmp_path)
    (tmp_path / "set.bin").write_bytes((tmp_path / "set.bin").read_bytes()[:-4])
    with pytest.raises(InputError, match="describes 1444 bytes of tokens, the file has 1440"):
        open_source(str(index), vocab_size=259, sequence_length=16, seed=0)
    (tmp_path / "set.bin").unlink()
    with pytest.raises(InputError, match="No such file"):
        open_source(str(index), vocab_size=259, sequence_length=16, seed=0)
    index.write_bytes(index.read_bytes()[:20])
    with pytest.raises(InputError, match="header alone"):
        open_source(str(index), vocab_size=259, sequence_length=16, seed=0)


@pytest.mark.parametrize(
    ("written", "vocab_size", "bits"),
    [("<u2", 259, 16), ("<i4", 259, 0), ("<i8", 259, 0), ("<u4", 100_000, 32), ("<i8", 100_000, 0)],
)
def test_raw_tokens_of_another_width_are_refused(
    written: str, vocab_size: int, bits: int, tmp_path: Path
) -> None:
    """Every second one would be 0; bits are those that are read, 0 where they are refused."""
    path = tmp_path / "raw.bin"
    path.write_bytes(np.random.default_rng(0).integers(0, 259, 1000).astype(written).tobytes())
    if bits:
        assert len(open_source(str(path), vocab_size=vocab_size, sequence_length=16, seed=0).sample(0)) == 17
        assert raw_token_notes(f"1={path},1=synthetic", vocab_size) == [
            f"{path} has no .idx: it is read as unsigned little-endian token ids of {bits} bits"
        ]
    else:
        with pytest.raises(InputError, match="every second one is 0"):
            open_source(str(path), vocab_size=vocab_size, sequence_length=16, seed=0)


class Numbered:
    """A source whose samples are their numbers."""

    def sample(self, index: int) -> np.ndarray:
        """Its number."""
        return np.array([index])


@pytest.mark.parametrize("weights", [(7, 3), (1, 1, 1), (1000, 1), (5, 3, 2, 1)])
def test_a_blend_is_exact_and_leaves_no_sample_out(weights: tuple[int, ...]) -> None:
    """Each source's samples come once and in order; its share of any beginning is off by (1 + nw/Σw)/2 at most."""
    mixed = blend([Numbered()] * len(weights), weights)
    seen: list[list[int]] = [[] for _ in weights]
    for index in range(3 * sum(weights)):
        source, sample = mixed.place(index)
        seen[source].append(sample)
        for weight, samples in zip(weights, seen, strict=True):
            share = weight / sum(weights)
            assert abs(len(samples) - (index + 1) * share) <= (1 + len(weights) * share) / 2 + 1e-9
    assert seen == [list(range(3 * weight)) for weight in weights]


def test_a_blend_is_told_in_one_word(tmp_path: Path) -> None:
    """Weights are numbers of any unit, names may have commas, and each part is opened as it would be alone."""
    assert blend_parts("2=a,b.npy,6=c") == ((1, "a,b.npy"), (3, "c"))
    index = write_dataset(tmp_path)
    alone = open_source(str(index), vocab_size=259, sequence_length=16, seed=0)
    mixed = open_source(f"3={index},1=synthetic", vocab_size=259, sequence_length=16, seed=0)
    places = [mixed.place(i) for i in range(8)]  # type: ignore[attr-defined]
    assert [source for source, _ in places].count(0) == 6
    for i, (source, sample) in enumerate(places):
        assert source == 1 or (mixed.sample(i) == alone.sample(sample)).all()


@pytest.mark.parametrize("text", ["0=a,1=b", "0.1234567=a", "1=", "0.999999=a,0.000001=b"])
def test_a_wrong_blend_is_refused(text: str) -> None:
    """No weight, too fine a weight, no name, a period that is too long."""
    with pytest.raises(InputError, match="is no blend of data"):
        blend_parts(text)
