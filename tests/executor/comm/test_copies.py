"""Copies around collectives of tensor parallelism: none of a sequence at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from executor.comm.collectives import all_gather, reduce_scatter
from executor.torch_internals.groups import end_fake_group, start_fake_group

RANKS = 4


class Copies(TorchDispatchMode):
    """Counts operators that write a tensor anew."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it, counted."""
        self.count += func in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default)
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    """One process in a group whose collectives return at once."""
    start_fake_group(RANKS, 0)
    yield
    end_fake_group()


@pytest.mark.parametrize("collective", [all_gather, reduce_scatter])
@pytest.mark.parametrize(("sequences", "copies"), [(1, 0), (2, 2)])
def test_a_sequence_at_a_time_is_sent_as_it_lies(collective: Any, sequences: int, copies: int) -> None:
    """Of several the part of each is gathered into one message, and spread again."""
    with Copies() as seen:
        collective(torch.zeros(sequences, 8, 16), 1, dist.group.WORLD)
    assert seen.count == copies
