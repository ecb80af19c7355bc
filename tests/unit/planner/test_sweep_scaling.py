"""Points of a sweep know how they scale, and what of their step is waiting."""

from dataclasses import replace

import pytest

import meshplan
from app.analysis.sweep import sweep_answer
from app.reports.answer import render


def test_efficiency_is_against_the_fewest_gpus_of_the_same_question() -> None:
    """Tokens/s/GPU over that of eight GPUs, whatever the order; each batch has its own eight."""
    points = meshplan.sweep("llama-3.2-1b", gpus=[16, 8], seq="4k", batch=[64, 128])
    by_question = {(p.request.cluster.num_gpus, p.request.job.global_batch_size): p for p in points}
    for batch in (64, 128):
        few, many = by_question[8, batch], by_question[16, batch]
        assert few.plan is not None
        assert many.plan is not None
        expected = few.plan.estimate.step_time_s / many.plan.estimate.step_time_s / 2
        assert few.scaling_efficiency == 1.0
        assert many.scaling_efficiency == pytest.approx(expected)


def test_waiting_is_what_the_step_has_beside_its_own_work() -> None:
    """Communication, computing, the bubble, the update and the host are the whole step."""
    [point] = meshplan.sweep("llama-3.2-1b", gpus=16, seq="4k", batch=64)
    assert point.plan is not None
    time = point.plan.estimate.time
    work = time.compute_s + time.recompute_s + time.bubble_s + time.optimizer_s + time.host_s
    assert point.communication_share == pytest.approx(1 - work / point.plan.estimate.step_time_s)
    partly = replace(point, plan=replace(point.plan, idle_gpus=8))
    assert "; 8 GPUs idle" in render(sweep_answer([partly]), "table")
    assert "idle" not in render(sweep_answer([point]), "table")


def test_a_point_without_a_plan_has_no_efficiency() -> None:
    """And none of its columns."""
    [few, many] = meshplan.sweep("70b", gpus=[1, 32], seq="4k", batch=64)
    assert (few.plan, few.scaling_efficiency, few.communication_share) == (None, 0.0, 0.0)
    assert many.scaling_efficiency == 1.0
