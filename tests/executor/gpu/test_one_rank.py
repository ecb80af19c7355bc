"""What only a GPU can show: one rank of a large plan, with random data and weights, beside its estimate.

``pytest -n 0 -m gpu tests/executor/gpu`` on a machine with one GPU, one after the other; of what Meshplan stands
on it needs numpy, cattrs and torch 2.11 or later, and of the tests pytest, pytest-xdist, pytest-timeout and
hypothesis. What was measured is written to ``docs/measurements``, or where MESHPLAN_MEASUREMENTS says. An H200 held
the memory and not the times: ``docs/measurements``.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from planner.plan import Plan, problem_of
from planner.search.verify import estimate_anew
from tests.executor.conftest import make_plan
from topology.builders import default_cluster
from topology.hardware.device_names import gpu_of_device

torch = pytest.importorskip("torch")

from executor.parallel.affinity import bind
from executor.validation.layer_times import layer_time
from executor.validation.report import Check, RankMeasurement
from executor.validation.validate import check_gpu, task_of
from tests.executor.gpu.marks import ON_GPU
from tests.executor.gpu.measurements import Row

pytestmark = ON_GPU

MEMORY = 0.05
LAYOUTS = {
    "ZeRO-3": ParallelLayout(dp=8, zero_stage=3),
    "tensor parallel": ParallelLayout(tp=4, dp=2, zero_stage=1, sequence_parallel=True),
    "recomputed": ParallelLayout(dp=8, zero_stage=3, recompute="full"),
}


def planned(gpu: str, name: str, layout: ParallelLayout) -> Plan:
    """A plan of eight such GPUs for a model, estimated by the cost model."""
    plan = make_plan(layout, spec=model(name), batch=64, sequence=4096)
    recomputed = (plan.layers_of_stage[0] * (layout.recompute == "full"),)
    request = replace(plan.request, cluster=default_cluster(gpu, 8).spec)
    plan = replace(plan, request=request, recompute_of_stage=recomputed)
    return estimate_anew(plan, problem_of(request, load_calibration()))


def gpu_here() -> str:
    """The catalogue's name of this machine's GPU."""
    found = torch.cuda.get_device_properties(0)
    return gpu_of_device(found.name, float(found.total_memory))


@functools.cache
def ran(name: str) -> tuple[Plan, Check, RankMeasurement, Check]:
    """A plan, the verdict on its rank's memory, what was measured, and the verdict on a layer's time."""
    plan = planned(gpu_here(), "llama-3.1-8b", LAYOUTS[name])
    check, (measured,) = check_gpu(plan)
    return plan, check, measured, layer_time(plan, task_of(plan), [measured])


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_rank_allocates_what_is_estimated(name: str, measured_rows: list[Any]) -> None:
    """Peak memory within 5 %."""
    _, check, measured, layer = ran(name)
    layer_s = measured.layer_forward_s + measured.layer_backward_s
    row = Row(
        plan=f"llama-3.1-8b, {name}",
        peak_bytes=measured.peak_bytes,
        estimated_bytes=measured.estimated_bytes,
        forward_s=measured.forward_s,
        backward_s=measured.backward_s,
        layer_s=layer_s,
        layer_estimated_s=layer_s * (1 + (layer.value or 0.0)),
        kernels=measured.kernels,
    )
    measured_rows.append(row)
    assert check.verdict == "holds", check.detail
    assert measured.estimated_bytes == pytest.approx(measured.peak_bytes, rel=MEMORY)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layer_takes_what_is_estimated(name: str) -> None:
    """Forward and backward within 10 %."""
    layer = ran(name)[-1]
    assert layer.verdict == "holds", layer.detail


def test_a_rank_is_bound_or_says_why_not() -> None:
    """Linux knows the address that torch gives."""
    assert bind(torch.device("cuda", 0)).endswith(("not bound", "nodes"))
