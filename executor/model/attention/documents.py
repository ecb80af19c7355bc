"""Documents within packed sequences: where attention stops.

A packed sequence holds the end of one document, whole ones, and the beginning of another. Each ends with its
end-of-document token, so a sequence is told by the lengths of its parts, which every rank can read off the
tokens. They stay on the host: attention then runs document by document, and nothing waits for a device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Lengths = tuple[int, ...]
"""Tokens of each document of a sequence; they sum to S."""

Documents = tuple[Lengths, ...]
"""One entry for every sequence of a microbatch."""


def document_lengths(tokens: npt.NDArray[np.integer], end: int) -> Lengths:
    """Lengths of the documents of a sequence (S,): each up to and with its end token.

    >>> document_lengths(np.array([5, 9, 0, 0, 7, 7]), 0)
    (3, 1, 2)
    """
    ends = np.flatnonzero(tokens == end) + 1
    edges = np.unique(np.concatenate((np.zeros(1, np.int64), ends, np.array([len(tokens)]))))
    return tuple(int(length) for length in np.diff(edges))


def microbatches_of(sequences: npt.NDArray[np.integer], end: int, size: int) -> tuple[Documents, ...]:
    """Documents of every microbatch of so many consecutive sequences (M·B, S)."""
    microbatches: Sequence[Lengths] = [document_lengths(row, end) for row in sequences]
    return tuple(tuple(microbatches[first : first + size]) for first in range(0, len(microbatches), size))
