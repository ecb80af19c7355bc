"""A corpus as it was when a run began, and its pieces: some documents of one file, dealt to lanes.

Where a file says how far it goes (lines, rows), its pieces are stretches of it. Where only reading tells, as
in a compressed file, or a dataset has few stretches, documents are dealt by turns: piece k of K is every
K-th of them, which is how `datasets` splits what has too few files. Each of its K readers then reads the
whole stretch, and decodes and tokenizes its own documents alone.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import NamedTuple

from topology.base.errors import InputError
from topology.base.files import open_regular, require_regular

END = 1 << 62  # of a file of which nobody knows how far it goes
HEAD_BYTES, TAIL_BYTES = 1 << 12, 1 << 16  # of a checksum; a Parquet file's own contents are at its end
UNLIKE = 1.25  # times the mean that the heaviest lane may have, where more turns can help
MOST_TURNS = 4  # of a file for each lane that it could fill


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """One file: `mark` is a checksum of its ends, `bounds` are the places where its pieces begin and end.

    Documents of each are dealt by `turns`; `size_bytes` is 0 where nobody says it.
    """

    name: str
    size_bytes: int
    mark: str
    bounds: tuple[int, ...]
    turns: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The part of a Hugging Face dataset that is read; `path` is its folder, or its name on the hub.

    `revision` is the hub's commit, empty for a folder; `shards` are its files, as the library counts them;
    `columns` says whether its reader can leave columns out.
    """

    path: str
    config: str
    split: str
    revision: str
    shards: int
    columns: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Files of a corpus in the order of their names, cut for `lanes` lanes at most; texts are in `field`.

    `hub` says what `datasets` is asked for, None where the files are read by ourselves.
    """

    lanes: int
    field: str
    files: tuple[TextFile, ...]
    skipped: int = 0
    hub: Split | None = None

    @property
    def sha256(self) -> str:
        """Checksum of the files, whatever they are cut for and wherever they lie."""
        text = "\n".join(f"{file.name} {file.size_bytes} {file.mark}" for file in self.files)
        if self.hub is not None:
            text += f"\n{self.hub.revision} {self.hub.config} {self.hub.split}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        """Of all files, 0 where nobody says it."""
        return sum(file.size_bytes for file in self.files)


def mark_of(path: Path, size: int) -> str:
    """Checksum of the first and last bytes of a file."""
    with open_regular(path) as stream:
        sha256 = hashlib.sha256(stream.read(HEAD_BYTES))
        stream.seek(max(0, size - TAIL_BYTES))
        sha256.update(stream.read(TAIL_BYTES))
    return sha256.hexdigest()[:16]


def require_same(path: Path, size_bytes: int) -> None:
    """Refuse a file that has another size than when the run began, and one that is no regular file."""
    try:
        size = require_regular(path).stat().st_size
    except OSError as error:
        raise InputError(
            what=f"{path} cannot be read",
            cause=str(error),
            fix="put the file back and start again: the run resumes from its last checkpoint",
        ) from error
    if size != size_bytes:
        raise InputError(
            what=f"{path} has changed while it is trained on",
            cause=f"{size_bytes} bytes when the run began, {size} now",
            fix="put the file back and start again: the run resumes from its last checkpoint",
        )


class Piece(NamedTuple):
    """Documents of one file from place `start` to before `stop`, of these the `turn`-th of every `turns`.

    `weight` is its part of the file's bytes.
    """

    file: int
    start: int
    stop: int
    weight: float
    turn: int = 0
    turns: int = 1


def pieces_of(contents: Contents) -> list[Piece]:
    """All pieces, in the order of files and places."""
    return [
        Piece(
            number,
            start,
            stop,
            max(1, file.size_bytes) * (stop - start) / file.bounds[-1] / file.turns,
            turn,
            file.turns,
        )
        for number, file in enumerate(contents.files)
        for start, stop in pairwise(file.bounds)
        for turn in range(file.turns)
    ]


def deal(pieces: Sequence[Piece], lanes: int) -> list[list[Piece]]:
    """Pieces of each lane: the heaviest first, each to the lane that has least so far.

    >>> [sum(piece.weight for piece in lane) for lane in deal([Piece(0, i, i + 1, i) for i in range(8)], 2)]
    [14, 14]
    """
    dealt: list[list[Piece]] = [[] for _ in range(lanes)]
    loads = [(0.0, lane) for lane in range(lanes)]
    for piece in sorted(pieces, key=lambda piece: -piece.weight):
        load, lane = heapq.heappop(loads)
        dealt[lane].append(piece)
        heapq.heappush(loads, (load + piece.weight, lane))
    return dealt


def with_turns(contents: Contents) -> Contents:
    """Deal by turns what cannot be cut, in as few as give every lane a like part: each turn reads it once.

    >>> def turns(*sizes, lanes=8):
    ...     files = tuple(TextFile(name="", size_bytes=size, mark="", bounds=(0, END)) for size in sizes)
    ...     return [file.turns for file in with_turns(Contents(lanes=lanes, field="", files=files)).files]
    >>> turns(90), turns(*[90] * 8), turns(*[90] * 12), turns(800, 8)
    ([8], [1, 1, 1, 1, 1, 1, 1, 1], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2], [8, 1])
    """
    dealt = [contents.hub is not None or file.bounds[-1] == END for file in contents.files]
    if not any(dealt):
        return contents
    total = sum(max(1, file.size_bytes) for file in contents.files)
    result = contents
    for most in range(1, MOST_TURNS + 1):
        wanted = [most * contents.lanes * max(1, file.size_bytes) / total for file in contents.files]
        files = tuple(
            replace(file, turns=max(1, ceil(count / (len(file.bounds) - 1)))) if by_turns else file
            for file, count, by_turns in zip(contents.files, wanted, dealt, strict=True)
        )
        result = replace(contents, files=files)
        loads = [sum(piece.weight for piece in lane) for lane in deal(pieces_of(result), contents.lanes)]
        if max(loads) <= UNLIKE * sum(loads) / len(loads):
            break
    return result
