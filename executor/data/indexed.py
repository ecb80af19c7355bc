"""Megatron's indexed datasets: ``NAME.bin`` holds tokens, ``NAME.idx`` says what they are.

The index is little-endian: nine bytes of magic, version (8 bytes), code of the token type (1), number of
sequences ``n`` (8), number of document marks ``d`` (8); then n lengths in tokens (4 each), n places in bytes
(8 each) and d marks (8 each). Source: Megatron-LM,
megatron/core/datasets/indexed_dataset.py at 00caa53, read 2026-11-23. Marks of documents are written, and
not used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from topology.base.errors import InputError
from topology.base.files import open_regular, require_regular

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
TOKEN_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Types of tokens by their code; the two kinds of floating-point numbers are no tokens."""
HEADER = struct.Struct("<9sQBQQ")
AT_ONCE = 1 << 20  # sequences checked together: bounds the memory of the check


def index_beside(path: Path) -> Path | None:
    """Index of a dataset named by its index or by its tokens; None for what has none."""
    index = path.with_suffix(".idx")
    return index if path.suffix == ".idx" or (path.suffix == ".bin" and index.exists()) else None


def open_indexed(index: Path) -> npt.NDArray[Any]:
    """Map the tokens of a dataset, in file order, once its index is found to describe the whole file.

    Raises InputError for an index that is damaged, of another version, or of another file.
    """
    try:
        size = require_regular(index).stat().st_size
        with open_regular(index) as stream:
            result = stream.read(HEADER.size)
        if len(result) < HEADER.size:
            raise _damaged(index, f"{len(result)} bytes, its header alone has {HEADER.size}")
        magic, version, code, sequences, marks = HEADER.unpack(result)
        if magic != MAGIC or version != VERSION:
            raise _damaged(
                index, f"it starts with {magic!r} and version {version}, not {MAGIC!r} and {VERSION}"
            )
        if code not in TOKEN_TYPES:
            raise _damaged(index, f"token type {code} is none of {sorted(TOKEN_TYPES)}")
        if size != HEADER.size + 12 * sequences + 8 * marks:
            raise _damaged(index, f"{size} bytes do not hold {sequences} sequences and {marks} documents")
        tokens_file = index.with_suffix(".bin")
        tokens = np.memmap(require_regular(tokens_file), dtype=TOKEN_TYPES[code], mode="r")
        if sequences > len(tokens) + 1:  # the check of a sparse file of them would not end
            raise _damaged(index, f"{sequences} sequences of {len(tokens)} tokens")
        _check_places(index, sequences, tokens)
    except (OSError, ValueError) as error:
        raise _damaged(index, str(error)) from error
    return tokens


def _check_places(index: Path, sequences: int, tokens: npt.NDArray[Any]) -> None:
    """Refuse sequences that leave gaps, overlap, or are not the whole file of tokens."""
    expected = 0
    for start in range(0, sequences, AT_ONCE):
        count = min(AT_ONCE, sequences - start)
        at = HEADER.size + 4 * start
        require_regular(index)
        lengths = np.fromfile(index, "<i4", count, offset=at).astype(np.int64)
        places = np.fromfile(index, "<i8", count, offset=HEADER.size + 4 * sequences + 8 * start)
        ends = expected + np.cumsum(lengths) * tokens.itemsize
        if (lengths < 0).any() or (places != ends - lengths * tokens.itemsize).any():
            raise _damaged(index, "its sequences do not follow one another in the file of tokens")
        expected = int(ends[-1])
    if expected != tokens.nbytes:
        raise _damaged(index, f"it describes {expected} bytes of tokens, the file has {tokens.nbytes}")


def write_indexed(
    index: Path, documents: Iterable[Sequence[int] | npt.NDArray[np.integer]], *, vocab_size: int
) -> list[int]:
    """Write a dataset, its tokens first and its index last, each whole or not at all; lengths by document.

    Tokens are unsigned 16-bit integers where the vocabulary fits, else 32-bit ones.
    """
    code = 8 if vocab_size <= 1 << 16 else 4
    kind = np.dtype(TOKEN_TYPES[code])
    tokens_file, lengths = index.with_suffix(".bin"), []
    index.parent.mkdir(parents=True, exist_ok=True)
    growing, indexing = (path.with_name(f".{path.name}.part") for path in (tokens_file, index))
    try:
        with growing.open("wb") as stream:
            for document in documents:
                stream.write(np.asarray(document, kind).tobytes())
                lengths.append(len(document))
        count = len(lengths)
        places = np.concatenate((np.zeros(1, "<i8"), np.cumsum(lengths, dtype="<i8")))[:count] * kind.itemsize
        marks = np.arange(count + 1, dtype="<i8")
        head = HEADER.pack(MAGIC, VERSION, code, count, count + 1)
        indexing.write_bytes(head + np.asarray(lengths, "<i4").tobytes() + places.tobytes() + marks.tobytes())
        growing.replace(tokens_file)
        indexing.replace(index)
    finally:
        growing.unlink(missing_ok=True)
        indexing.unlink(missing_ok=True)
    return lengths


def _damaged(index: Path, cause: str) -> InputError:
    """Build the error for an index that cannot be used."""
    return InputError(
        what=f"training data {index} cannot be read",
        cause=cause,
        fix="give NAME.idx with NAME.bin beside it, both as Megatron's preprocessing wrote them",
    )
