"""Parts of a tensor: a rank's shard is what a chain of cuts leaves, as ``torch.chunk`` would cut."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Cuts = tuple[tuple[int, int, int], ...]
"""Cuts of a tensor, one after the other: dimension, number of parts, index."""


def chunk_bounds(length: int, parts: int, index: int) -> tuple[int, int]:
    """Start and end of part `index` when `length` is cut as ``torch.chunk`` cuts it: ceil(length/parts) each.

    >>> [chunk_bounds(10, 4, i) for i in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    step = -(-length // parts)
    return min(index * step, length), min((index + 1) * step, length)


def box(shape: Sequence[int], cuts: Cuts) -> tuple[slice, ...]:
    """What cuts leave of a tensor of this shape, dimension by dimension.

    >>> box((6, 8), ((0, 2, 1), (1, 4, 0), (0, 3, 2)))
    (slice(5, 6, None), slice(0, 2, None))
    """
    left = [(0, size) for size in shape]
    for dimension, parts, index in cuts:
        start, end = left[dimension]
        low, high = chunk_bounds(end - start, parts, index)
        left[dimension] = (start + low, start + high)
    return tuple(slice(start, end) for start, end in left)


def take(tensor: torch.Tensor, cuts: Cuts) -> torch.Tensor:
    """View of what cuts leave of a whole tensor."""
    return tensor[box(tensor.shape, cuts)] if cuts else tensor
