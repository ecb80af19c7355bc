"""Weights that a backward needs next are gathered before the products of the layer before it, in a pipeline too."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode

from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from executor.torch_internals.operators import in_backward
from executor.validation.fake_rank import RankTask, fake_rank
from tests.executor.parallel.test_parity import DENSE, MOE

LAYERS = 4
PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten._grouped_mm.default}


class Order(TorchDispatchMode):
    """Gathers and products of each backward, one letter each."""

    def __init__(self) -> None:
        super().__init__()
        self.backwards = [""]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it, noted."""
        if in_backward():
            if func is torch.ops.c10d._allgather_base_.default:
                self.backwards[-1] += "g"
            elif func in PRODUCTS:
                self.backwards[-1] += "p"
        return func(*args, **(kwargs or {}))

    def next(self) -> None:
        """Another computation begins."""
        self.backwards.append("")


@pytest.mark.parametrize(("spec", "units"), [(DENSE, 1), (dataclasses.replace(MOE, num_dense_layers=0), 2)])
def test_a_backward_gathers_ahead_in_a_pipeline(spec: ModelSpec, units: int) -> None:
    """The middle of three stages, several forwards in flight: no gather waits for products, and none is in vain."""
    task = RankTask(
        spec=dataclasses.replace(spec, num_layers=LAYERS + 2),
        layout=ParallelLayout(pp=3, dp=2, zero_stage=3),
        sequence_length=16,
        num_microbatches=3,
        layers_of_stage=(1, LAYERS, 1),
        recompute_of_stage=(0, 0, 0),
        stage=1,
    )
    with fake_rank(task) as rank, Order() as order:
        rank.pipeline.after_compute = order.next
        rank.run_microbatches()
    backwards = [each for each in order.backwards if each]
    assert len(backwards) == task.num_microbatches
    for each in backwards:
        assert each.count("g") == units * LAYERS
        assert each.startswith("ggp")
        assert each.rindex("g") < each.rindex("p") - each.count("p") / LAYERS / units / 2
