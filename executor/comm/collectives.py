"""Collectives on plain tensors along any dimension, the few that the executor needs.

Everything goes through torch's functional collective operators, so the same call is traced by fake tensors,
counted by a dispatch mode, and run by gloo or NCCL. A group of one rank costs nothing and issues nothing.

What is gathered or scattered along a dimension goes and comes with that dimension first in memory: a tensor
that lies so is not copied, and the result, of the shape asked for, lies so (`executor.comm.sequence_first`).

Legend: ``n`` ranks of the group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from executor.torch_internals.operators import functional_collectives as _functional

ProcessGroup = Any
"""A torch ``ProcessGroup``; torch is untyped here."""
MESSAGE = "while waiting for a message between pipeline stages"


def arrive(work: Any) -> None:
    """Wait for a message between stages; an error is marked as one of it."""
    try:
        work.wait()
    except RuntimeError as error:
        error.add_note(MESSAGE)
        raise


Begun = Callable[[], torch.Tensor]
"""A collective that runs beside what comes next; called, it waits and gives the result."""


def _finish(begun: torch.Tensor, dim: int, _read: torch.Tensor) -> torch.Tensor:
    """Wait for a collective, which reads its input until then; its result lies as it came, `dim` first."""
    return _functional.wait_tensor(begun).transpose(0, dim)


def begin_all_gather(x: torch.Tensor, dim: int, group: ProcessGroup) -> Begun:
    """Begin to concatenate every rank's `x` along `dim`: shape[dim] becomes n·shape[dim]."""
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return lambda: x
    moved = x.transpose(0, dim).contiguous()
    begun = _functional.all_gather_into_tensor(moved, ranks, group.group_name)
    return functools.partial(_finish, begun, dim, moved)


def begin_reduce_scatter(x: torch.Tensor, dim: int, group: ProcessGroup) -> Begun:
    """Begin to sum `x` over the ranks; shape[dim] becomes shape[dim]/n, this rank's slice."""
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return lambda: x
    moved = x.transpose(0, dim).contiguous()
    begun = _functional.reduce_scatter_tensor(moved, "sum", ranks, group.group_name)
    return functools.partial(_finish, begun, dim, moved)


def all_gather(x: torch.Tensor, dim: int, group: ProcessGroup) -> torch.Tensor:
    """Concatenate every rank's `x` along `dim`: shape[dim] becomes n·shape[dim]."""
    return begin_all_gather(x, dim, group)()


def reduce_scatter(x: torch.Tensor, dim: int, group: ProcessGroup) -> torch.Tensor:
    """Sum `x` over the ranks and keep this rank's slice of `dim`: shape[dim] becomes shape[dim]/n."""
    return begin_reduce_scatter(x, dim, group)()


def all_reduce(x: torch.Tensor, group: ProcessGroup, op: str = "sum") -> torch.Tensor:
    """Reduce `x` over the ranks into a new tensor of the same shape."""
    if dist.get_world_size(group) == 1:
        return x
    return _functional.wait_tensor(_functional.all_reduce(x.contiguous(), op, group.group_name))


def all_to_all(
    x: torch.Tensor, received: Sequence[int] | None, sent: Sequence[int] | None, group: ProcessGroup
) -> torch.Tensor:
    """Send `sent[r]` rows of `x` to rank r, stack the `received[r]` that come back (None: equal parts)."""
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return x
    equal = [x.shape[0] // ranks] * ranks
    arriving, leaving = list(received or equal), list(sent or equal)
    return _functional.wait_tensor(
        _functional.all_to_all_single(x.contiguous(), arriving, leaving, group.group_name)
    )
