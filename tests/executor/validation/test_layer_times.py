"""A layer's time on a GPU is held against the cost model's: a rank that takes exactly that holds, whatever it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.case import Case
from costmodel.kernels.tables import load_calibration
from costmodel.layout import PLAIN_SCHEDULE, ParallelLayout, Recompute, num_microbatches
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from planner.plan import Plan
from topology.builders import build

torch = pytest.importorskip("torch")

from executor.validation.layer_times import layer_time
from executor.validation.report import RankMeasurement
from executor.validation.validate import task_of
from tests.executor.conftest import make_plan


def one_layer_s(plan: Plan, *, sliding: bool = False, dense: bool = False) -> tuple[float, float]:
    """The model's own: what the eleventh layer of its kind adds to a step of a microbatch, and recomputing it."""
    request, steps = plan.request, []
    layout = replace(plan.layout, pp=1, virtual_stages=1, schedule=PLAIN_SCHEDULE)
    for layers in (11, 10):
        alike = replace(
            request.model,
            num_layers=layers,
            num_sliding_layers=layers * sliding,
            num_dense_layers=layers * dense,
        )
        found = estimate(
            Case(
                model=alike,
                cluster=build(request.cluster),
                job=request.job,
                stack=stack("meshplan"),
                cal=load_calibration(),
            ),
            layout,
        )
        steps.append(found.time)
    M = num_microbatches(layout, request.job)
    return (steps[0].compute_s - steps[1].compute_s) / M, (steps[0].recompute_s - steps[1].recompute_s) / M


def difference(plan: Plan, layer_s: float, stage: int = 0) -> float:
    """What is found of a rank whose layers take so long."""
    ran = RankMeasurement(
        stage=stage, gpu="NVIDIA H100 80GB HBM3", peak_bytes=1.0, estimated_bytes=1.0, forward_s=1.0,
        backward_s=1.0, layer_forward_s=layer_s / 2, layer_backward_s=layer_s / 2,
    )  # fmt: skip
    check = layer_time(plan, task_of(plan), [ran])
    assert check.value is not None
    assert check.verdict == ("holds" if abs(check.value) <= 0.1 else "does not hold")
    return check.value


@pytest.mark.parametrize("recompute", ["none", "selective", "selective-op", "full"])
def test_a_layer_includes_what_its_policy_recomputes(recompute: Recompute) -> None:
    """Of every policy: the backward that is measured repeats what the policy repeats."""
    layout = ParallelLayout(dp=8, zero_stage=3, recompute=recompute)
    plan = make_plan(layout, spec=model("llama-3.1-8b"), batch=64, sequence=4096)
    plan = replace(plan, recompute_of_stage=tuple(n * (recompute == "full") for n in plan.layers_of_stage))
    plain_s, again_s = one_layer_s(plan)
    assert (again_s > 0) == (recompute != "none")
    assert difference(plan, plain_s + again_s) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gemma-3-27b"])
@pytest.mark.parametrize("layers_of_stage", [(12, 12), (5, 19)])
def test_layers_are_as_mixed_as_those_of_the_rank(name: str, layers_of_stage: tuple[int, int]) -> None:
    """Every second (gpt-oss) or sixth (Gemma 3) layer sees all of the past, others a window."""
    period = {"gpt-oss-20b": 2, "gemma-3-27b": 6}[name]
    spec = replace(model(name), num_layers=24, num_sliding_layers=24 - 24 // period)
    plan = make_plan(ParallelLayout(dp=4, pp=2), spec=spec, batch=64, sequence=8192)
    plan = replace(plan, layers_of_stage=layers_of_stage)
    window_s, whole_s = one_layer_s(plan, sliding=True)[0], one_layer_s(plan)[0]
    assert whole_s > 1.05 * window_s
    first = 0
    for stage, count in enumerate(layers_of_stage):
        whole = sum((layer + 1) % period == 0 for layer in range(first, first + count))
        mean_s = (whole * whole_s + (count - whole) * window_s) / count
        assert difference(plan, mean_s, stage) == pytest.approx(0.0, abs=0.005)
        first += count


def test_dense_layers_are_timed_where_a_rank_has_no_experts() -> None:
    """The first stage of a mixture holds its dense layers, the second experts alone."""
    spec = replace(model("deepseek-v2-lite"), num_layers=8, num_dense_layers=2)
    plan = make_plan(ParallelLayout(dp=4, pp=2), spec=spec, batch=64, sequence=4096)
    plan = replace(plan, layers_of_stage=(2, 6))
    dense_s, experts_s = one_layer_s(plan, dense=True)[0], one_layer_s(plan)[0]
    assert abs(experts_s / dense_s - 1) > 0.1
    assert difference(plan, dense_s, 0) == pytest.approx(0.0, abs=1e-6)
    assert difference(plan, experts_s, 1) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("stage", "share"), [(0, 1.0), (1, 40 / 51)])
def test_the_recomputed_share_is_that_of_the_rank(stage: int, share: float) -> None:
    """Of 10 layers all and of 51 layers 40: not of the mean of both ranks."""
    spec = replace(model("llama-3.1-8b"), num_layers=61)
    layout = ParallelLayout(dp=4, pp=2, recompute="full")
    plan = make_plan(layout, spec=spec, batch=64, sequence=4096)
    plan = replace(plan, layers_of_stage=(10, 51), recompute_of_stage=(10, 40))
    plain_s, again_s = one_layer_s(plan)
    assert difference(plan, plain_s + share * again_s, stage) == pytest.approx(0.0, abs=1e-6)
