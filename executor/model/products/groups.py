"""Consecutive groups of rows: which expert a row has, and groups padded to whole units of a kernel.

How many rows a group has is known to the device alone, so padded groups lie in as many rows as they need at
most; those behind the last group are of zeros and belong to nobody.

Legend: ``T`` rows, ``n`` their size, ``E`` experts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional


def expert_of_row(offsets: torch.Tensor, rows: int) -> torch.Tensor:
    """Local expert of each of so many rows.

    >>> expert_of_row(torch.tensor([2, 2, 5]), 5).tolist()
    [0, 0, 2, 2, 2]
    """
    return torch.searchsorted(
        offsets, torch.arange(rows, device=offsets.device, dtype=offsets.dtype), right=True
    )


class Padded(NamedTuple):
    """Groups of whole units: rows (L, n), where groups end (E,), and the expert of each unit (L/unit,)."""

    rows: torch.Tensor
    offsets: torch.Tensor
    expert_of_unit: torch.Tensor


def padded(rows: torch.Tensor, offsets: torch.Tensor, unit: int) -> Padded:
    """Groups of rows (T, n), each filled up with zeros to a multiple of `unit`.

    >>> found = padded(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1, 1, 3]), 2)
    >>> found.rows.flatten().tolist(), found.offsets.tolist(), found.expert_of_unit.tolist()
    ([1.0, 0.0, 2.0, 3.0, 0.0, 0.0], [2, 2, 4], [0, 2, 2])
    """
    total, experts = rows.shape[0], offsets.shape[0]
    most = (total + (unit - 1) * experts) // unit * unit
    starts = functional.pad(offsets[:-1], (1, 0))
    whole = (offsets - starts + unit - 1) // unit * unit
    whole_ends = whole.cumsum(0, dtype=torch.int32)
    moved = whole_ends - whole - starts
    place = torch.arange(total, device=rows.device) + moved[expert_of_row(offsets, total)]
    units = torch.arange(0, most, unit, device=offsets.device, dtype=torch.int32)
    return Padded(
        rows.new_zeros(most, rows.shape[1]).index_copy_(0, place, rows),
        whole_ends,
        torch.searchsorted(whole_ends, units, right=True).clamp(max=experts - 1),
    )
