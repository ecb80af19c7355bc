"""Collectives of tensor parallelism: none of a sequence is copied, and those of a backward run under products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from executor.comm.collectives import all_gather, reduce_scatter
from executor.comm.tensor_parallel import TensorAxis
from executor.model.linear import Linear, project_together
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


class Order(TorchDispatchMode):
    """Names of collectives, products and waits."""

    NAMES = ("all_gather_into_tensor", "reduce_scatter_tensor", "wait_tensor", "mm", "addmm_")

    def __init__(self) -> None:
        super().__init__()
        self.seen = list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it, noted."""
        name = func._schema.name.partition("::")[2]
        if name in self.NAMES:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def test_messages_of_a_backward_run_under_its_products() -> None:
    """The gather of inputs under the products of their gradient, the sum of that under those of the weights."""
    axis = TensorAxis(group=dist.group.WORLD, size=RANKS, rank=0, sequence_parallel=True)
    linears = [Linear(16, 8, bias=False), Linear(16, 8, bias=False)]
    x = torch.zeros(1, 4, 16, requires_grad=True)
    results = project_together(x, linears, axis)
    with Order() as order:
        sum(result.sum() for result in results).backward()
    assert order.seen == [
        *("all_gather_into_tensor", "mm", "addmm_", "reduce_scatter_tensor"),
        *("wait_tensor", "mm", "mm", "wait_tensor"),
    ]
