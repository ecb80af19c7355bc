"""Plans are compared in work done, and ties are said."""

from dataclasses import replace
from typing import Any

import pytest

from costmodel.training.bands import tie_ratio
from planner.analysis.compare import compare, within_band
from planner.analysis.op_points import op_points
from planner.analysis.what_if import offers
from planner.plan import Plan, PlanRequest
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search


def plan_of(**flags: Any) -> Plan:
    """A plan of eight GPUs."""
    found = search(understand(Flags(**{"model": "llama-3.1-8b", "gpus": "8", **flags})).request)
    assert isinstance(found, Plan)
    return found


def at(plan: Plan, factor: float) -> Plan:
    """The plan with a step `factor` times as long, its band in proportion."""
    one = plan.estimate
    return replace(plan, estimate=replace(one, step_time_s=one.step_time_s * factor, lower_s=one.lower_s * factor,
                                          upper_s=one.upper_s * factor))  # fmt: skip


def test_plans_of_one_job_tie_up_to_the_ratio_of_misranked_layouts():
    """As the list of alternatives does."""
    plan = plan_of()
    assert compare(plan, at(plan, 0.999 * tie_ratio())).tied
    assert not compare(plan, at(plan, 1.001 * tie_ratio())).tied


def test_unlike_gpus_are_told_apart_only_beyond_their_bands():
    """Errors of another kind of GPU are others, so the bands themselves must part."""
    one, other = plan_of(), plan_of(gpu="a100-sxm-80gb")
    beyond = at(other, one.estimate.upper_s / other.estimate.lower_s * 1.001)
    assert not compare(one, beyond).tied
    assert compare(one, at(beyond, 0.998)).tied


def test_twice_the_batch_in_twice_the_time_is_the_same_speed():
    """Steps are not the unit."""
    one, double = plan_of(), plan_of(global_batch_size="1024")
    found = compare(
        one, replace(double, estimate=replace(double.estimate, step_time_s=2 * one.estimate.step_time_s))
    )
    assert found.speed == pytest.approx(1.0)
    assert not found.same_work
    assert found.same_model
    assert found.tied


def test_the_offer_of_this_cluster_is_this_plan():
    """At the price that was set, on the fabric that was described; every kind has its own ring."""
    for flags in (
        {"settings": ("cluster.usd_per_gpu_hour=3",)},
        {"gpu": "mi300x"},
        {"settings": ("cluster.oversubscription=4",)},
    ):
        plan = plan_of(**flags)
        own = next(
            offer for offer in offers(plan.request, ("h100-sxm", "b200-sxm"), (8, 16), found_plan)
            if (offer.gpu, offer.num_gpus) == (plan.request.cluster.nodes[0].gpu, 8)
        )  # fmt: skip
        assert own.usd_per_billion_tokens == plan.estimate.usd_per_billion_tokens
        assert own.step_time_s == plan.estimate.step_time_s


def found_plan(request: PlanRequest) -> Plan | None:
    """A plan, or None."""
    found = search(request)
    return found if isinstance(found, Plan) else None


def test_models_are_not_compared():
    """A smaller model is not a faster plan."""
    found = compare(plan_of(), plan_of(model="qwen3-0.6b"))
    assert not found.same_model
    assert not found.tied


def test_kernels_of_a_layer_count_once_for_each_layer():
    """A head that takes as long as 30 layers is not half of the model's time."""
    plan = plan_of(model="deepseek-v3", gpus="512")
    points = op_points(plan)
    assert {point.calls for point in points} == {1, 3, 58}
    head = sum(point.total_s for point in points if point.calls == 1)
    assert head / sum(point.total_s for point in points) < 0.1


@pytest.mark.parametrize("gain", [0.9, 0.98, 0.9964, 1.0, 1.0036, 1.02, 1.1])
def test_a_number_is_within_the_band_both_ways(gain: float) -> None:
    """The same answer of a number and of its inverse, whichever plan is first; at speed itself it is the tie."""
    one, other = plan_of(), plan_of(gpus="16")
    assert within_band(one, other, gain) == within_band(other, one, 1 / gain)
    assert within_band(one, other, gain) == (max(gain, 1 / gain) <= tie_ratio())
    found = compare(one, other)
    assert found.tied == within_band(one, other, found.speed)
