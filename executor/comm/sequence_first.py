"""Activations that lie sequence first: shape (B, S, …), memory in the order of (S, B, …), as Megatron's.

Parts of a sequence are then whole pieces of memory, which tensor parallelism gathers and scatters without a
copy. A split region leaves its result so, and everything that works row by row keeps the order it finds.
With one sequence a microbatch both orders are one.

Legend: ``B`` sequences, ``S`` sequence length, ``H`` hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def lies_sequence_first(x: torch.Tensor) -> bool:
    """Whether x (B, S, H) lies in memory as (S, B, H).

    >>> lies_sequence_first(torch.zeros(3, 2, 4)), lies_sequence_first(torch.zeros(3, 2, 4).transpose(0, 1))
    (False, True)
    """
    return x.dim() > 2 and not x.is_contiguous() and x.transpose(0, 1).is_contiguous()


def laid_sequence_first(x: torch.Tensor) -> torch.Tensor:
    """Give x (B, S, H) itself where it lies as (S, B, H), else a copy that does."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def through(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """A function of each row of x (B, S, H), asked in the order in which rows lie; its result keeps it."""
    if not lies_sequence_first(x):
        return function(x)
    return function(x.transpose(0, 1)).transpose(0, 1)


def rows_of(x: torch.Tensor, *, sequence_first: bool) -> torch.Tensor:
    """Rows (B·S, H) of x (B, S, H), the batches of one position together if `sequence_first`."""
    return (x.transpose(0, 1) if sequence_first else x).flatten(0, -2)


def from_rows(rows: torch.Tensor, like: torch.Tensor, *, sequence_first: bool) -> torch.Tensor:
    """The inverse of `rows_of`: rows (B·S, n) under the first two sizes of `like` (B, S, …)."""
    if not sequence_first:
        return rows.unflatten(0, like.shape[:-1])
    return rows.unflatten(0, (like.shape[1], like.shape[0])).transpose(0, 1)
