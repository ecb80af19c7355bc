"""Collectives of tensor parallelism copy no activations, and those of a backward run under its products."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from costmodel.layout import ParallelLayout
from costmodel.models.spec import NormKind
from executor.comm.collectives import all_gather, reduce_scatter
from executor.comm.tensor_parallel import TensorAxis
from executor.model.linear import Linear, project_together
from executor.model.products.formats import EightBits
from executor.torch_internals.groups import end_fake_group, start_fake_group
from executor.validation.fake_rank import RankTask, fake_rank
from tests.executor.parallel.test_parity import DENSE

RANKS = 4


class Copies(TorchDispatchMode):
    """Shapes of tensors of three dimensions that operators write anew."""

    def __init__(self) -> None:
        super().__init__()
        self.of = list[tuple[int, ...]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it, noted."""
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default) and result.dim() > 2:
            self.of.append(tuple(result.shape))
        return result


@pytest.fixture
def ranks() -> Iterator[None]:
    """One process in a group whose collectives return at once."""
    start_fake_group(RANKS, 0)
    yield
    end_fake_group()


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("collective", [all_gather, reduce_scatter])
@pytest.mark.parametrize("sequences", [1, 2])
def test_what_lies_sequence_first_is_sent_as_it_lies(collective: Any, sequences: int) -> None:
    """Of one sequence or of several: the result is as it came, too."""
    with Copies() as seen:
        result = collective(torch.zeros(8, sequences, 16).transpose(0, 1), 1, dist.group.WORLD)
    assert seen.of == []
    assert result.transpose(0, 1).is_contiguous()


@pytest.mark.parametrize(
    ("family", "eight_bits"), [("rmsnorm", None), ("layernorm", None), ("rmsnorm", "fp8")]
)
def test_a_step_of_several_sequences_copies_no_hidden_states(
    family: NormKind, eight_bits: EightBits | None
) -> None:
    """Forward and backward, but for what a CPU's attention returns: gradients of queries, keys and values."""
    spec = dataclasses.replace(DENSE, num_layers=2, norm=family, hidden_size=64, head_dim=16)
    layout = ParallelLayout(tp=2, microbatch_size=2, sequence_parallel=True)
    task = RankTask(
        spec=spec,
        layout=layout,
        sequence_length=16,
        num_microbatches=1,
        layers_of_stage=(2,),
        recompute_of_stage=(0,),
        stage=0,
        eight_bits=eight_bits,
    )
    with fake_rank(task) as rank, Copies() as seen:
        rank.run_microbatches()
    heads = spec.num_attention_heads // 2, spec.num_key_value_heads // 2
    of_layer = [(16, 2, count * spec.head_dim) for count in (heads[0], heads[1], heads[1])]
    assert sorted(seen.of) == sorted(of_layer * spec.num_layers)


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


@pytest.mark.usefixtures("ranks")
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
