"""Who holds a cluster pays for all of it: figures per GPU count idle GPUs, unless the plan says what to rent."""

from dataclasses import replace

import pytest

from costmodel.case import Case
from costmodel.estimate import Estimate
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from planner.plan import Objective, Plan, PlanRequest
from planner.search.search import search
from topology.builders import default_cluster

CAL = load_calibration()
MODEL, JOB = model("llama-3.2-1b"), TrainingJob(sequence_length=4096, global_batch_size=64)


def of_eight_gpus(held: int, *, paid: int | None = None) -> Estimate:
    """Eight GPUs work in a cluster of this many, whose nodes all have the same price."""
    cluster = default_cluster("h100-sxm", held)
    return estimate(
        Case(model=MODEL, cluster=cluster, job=JOB, stack=stack("megatron-core"), cal=CAL),
        ParallelLayout(dp=8),
        paid_gpus=paid,
    )


def test_idle_gpus_are_paid_for() -> None:
    """With as many idle GPUs beside the working ones, a token costs twice as much and uses half the peak."""
    alone, beside = of_eight_gpus(8), of_eight_gpus(16)
    assert beside.step_time_s == alone.step_time_s
    assert alone.usd_per_billion_tokens is not None
    assert beside.usd_per_billion_tokens == pytest.approx(2 * alone.usd_per_billion_tokens)
    assert beside.tokens_per_s_per_gpu == pytest.approx(alone.tokens_per_s_per_gpu / 2)
    assert beside.mfu == pytest.approx(alone.mfu / 2)


def test_idle_gpus_draw_no_design_power() -> None:
    """Energy is that of the GPUs that work."""
    assert of_eight_gpus(16).wh_per_step == pytest.approx(of_eight_gpus(8).wh_per_step)


@pytest.mark.parametrize("objective", ["cost", "gpus"])
def test_a_plan_that_says_what_to_rent_counts_only_that(objective: Objective) -> None:
    """The cheapest plan on 16 GPUs uses fewer, and its figures are those of the whole nodes it rents."""
    job = replace(JOB, total_tokens=10**9, deadline_s=86400.0)
    cluster = default_cluster("h100-sxm", 16)
    found = search(PlanRequest(model=MODEL, cluster=cluster.spec, job=job, objective=objective), CAL)
    assert isinstance(found, Plan)
    assert found.idle_gpus > 0
    rented = -(-found.layout.num_gpus // 8) * 8
    rate = job.tokens_per_step / found.estimate.step_time_s / rented
    assert found.estimate.tokens_per_s_per_gpu == pytest.approx(rate)
