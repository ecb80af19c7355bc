"""Which keys each query sees: the past, at most a window of it, within its document.

The host knows all of it, so a mask is a few whole numbers, and what is derived from them is made once for all
layers and microbatches that share it. Keys may be those of a whole sequence while queries are one rank's.

Legend: ``S`` tokens of a sequence, ``c`` ranks it is cut over, ``w`` window, ``B'`` sequences with masks of
their own: all of a microbatch, or one for all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from executor.model.attention.documents import Documents
from topology.base.arrays import Mask as Bools

BLOCK = 128  # queries and keys of a block that a kernel skips, masks or takes whole
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A causal mask of sequences of `length`, of rank `rank`'s queries where `ranks` share a sequence."""

    length: int
    window: int | None = None
    ranks: int = 1
    rank: int = 0
    documents: Documents | None = None

    @property
    def numbers(self) -> list[int]:
        """All that it says as an operator's argument: see `mask_of`.

        >>> Mask(length=8, window=3, documents=((5, 3), (8,))).numbers
        [8, 3, 1, 0, 5, 3, 8]
        """
        lengths = [length for row in self.documents or () for length in row]
        return [self.length, self.window or 0, self.ranks, self.rank, *lengths]

    def pairs(self, sequences: int) -> Fraction:
        """Query–key pairs of so many sequences and one head: S·w − w²/2 each, or of each document.

        The diagonal and the far edge of a window count half, as in the cost model. Of a cut sequence it is
        an even share; under a window the rank with its beginning has fewer.

        >>> Mask(length=8).pairs(2), Mask(length=8, window=2).pairs(1), Mask(length=8, ranks=2).pairs(1)
        (Fraction(64, 1), Fraction(14, 1), Fraction(16, 1))
        """
        lengths = [n for row in self.documents for n in row] if self.documents else [self.length] * sequences
        reach = [n if self.window is None else min(n, self.window) for n in lengths]
        doubled = sum(2 * n * w - w * w for n, w in zip(lengths, reach, strict=True))
        return Fraction(doubled, 2 * self.ranks)


def mask_of(numbers: Sequence[int]) -> Mask:
    """Undo `Mask.numbers`: length, window or 0, ranks, rank, and lengths of documents row after row.

    >>> mask_of([8, 0, 1, 0, 5, 3, 8]).documents
    ((5, 3), (8,))
    """
    length, window, ranks, rank, *lengths = numbers
    rows: list[tuple[int, ...]] = []
    row: list[int] = []
    end = 0
    for part in lengths:
        row.append(part)
        end += part
        if end == length:
            rows.append(tuple(row))
            row, end = [], 0
    return Mask(length=length, window=window or None, ranks=ranks, rank=rank, documents=tuple(rows) or None)


def zigzag(length: int, ranks: int, rank: int) -> Ints:
    """Positions of the tokens that one of the ranks holds, (S/c,): chunks r and 2c − 1 − r of 2c.

    >>> zigzag(8, 2, 0).tolist(), zigzag(8, 2, 1).tolist()
    ([0, 1, 6, 7], [2, 3, 4, 5])
    """
    if ranks == 1:
        return np.arange(length, dtype=np.int32)
    chunks = np.arange(length, dtype=np.int32).reshape(2 * ranks, -1)
    return np.concatenate((chunks[rank], chunks[2 * ranks - 1 - rank]))


class Reach(NamedTuple):
    """Positions of queries (S/c,) and of keys (S,), and the first position that each query sees (B', S/c)."""

    queries: Ints
    keys: Ints
    first: Ints


@functools.lru_cache(maxsize=64)
def query_reach(mask: Mask) -> Reach:
    """From where to where each query sees; gathered keys lie rank after rank."""
    owned = [zigzag(mask.length, mask.ranks, rank) for rank in range(mask.ranks)]
    queries = owned[mask.rank]
    begins = [np.zeros(mask.length, np.int32)]
    if mask.documents is not None:
        begins = [np.repeat(np.cumsum((0, *row[:-1])), row).astype(np.int32) for row in mask.documents]
    first = np.stack(begins)[:, queries]
    if mask.window is not None:
        first = np.maximum(first, queries - (mask.window - 1))
    return Reach(queries, np.concatenate(owned), first.astype(np.int32))


def keys_of_rows(mask: Mask, rows: slice) -> slice:
    """Where the keys lie that any of these queries sees.

    >>> keys_of_rows(Mask(length=8, window=2), slice(4, 6))
    slice(3, 6, None)
    """
    queries, keys, first = query_reach(mask)
    seen = np.flatnonzero((keys <= queries[rows].max()) & (keys >= first[:, rows].min()))
    return slice(int(seen[0]), int(seen[-1]) + 1)


def mask_blocks(mask: Mask) -> tuple[Bools, Bools]:
    """Which blocks of queries and keys are seen in part, and which whole: two of (B', S/c/128, S/128).

    A block that sticks out of the sequence is never whole.
    """
    queries, keys, first = query_reach(mask)
    (q_low, q_high), (k_low, k_high) = _bounds(queries), _bounds(keys)
    first_low, first_high = (bound[:, :, None] for bound in _bounds(first))
    some = (k_low <= q_high[:, None]) & (k_high >= first_low)
    every = (k_high <= q_low[:, None]) & (k_low >= first_high)
    every &= _filled(queries)[:, None] & _filled(keys)
    return some & ~every, every


def _bounds(values: Ints) -> tuple[Ints, Ints]:
    """Least and largest value of each block along the last axis."""
    starts = np.arange(0, values.shape[-1], BLOCK)
    return np.minimum.reduceat(values, starts, -1), np.maximum.reduceat(values, starts, -1)


def _filled(values: Ints) -> Bools:
    """Whether each block has all of its tokens."""
    starts = np.arange(0, values.shape[-1], BLOCK)
    return np.asarray(starts + BLOCK <= values.shape[-1])
