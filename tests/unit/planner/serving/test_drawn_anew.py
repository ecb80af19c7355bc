"""The interval of a latency over loads drawn anew."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.simulation.simulator import simulate
from planner.serving.board import enumerate_options
from planner.serving.capacity import after_warm_up, load_at
from planner.serving.fleet import LOADS
from planner.serving.plan import ServingPlan, ServingRequest
from planner.serving.search import search_serving
from topology.builders import default_cluster

CAL = load_calibration()
FABRIC = default_cluster("h100-sxm", 8).hierarchy


def planned(**job: object) -> tuple[ServingRequest, ServingPlan]:
    """8B on H100, in one pool of single GPUs."""
    request = ServingRequest(
        model=model("8b"), gpu="h100-sxm", weights=("fp8",), pins={"tp": 1, "pp": 1},
        job=ServingJob(**{"input_tokens": 1000, "output_tokens": 100, "percentile": 90.0, **job}),  # type: ignore[arg-type]  # test keywords
    )  # fmt: skip
    plan = search_serving(CAL, request, FABRIC)
    assert isinstance(plan, ServingPlan)
    return request, plan


def test_the_interval_is_that_of_five_loads() -> None:
    """Their mean, and Student's t of four degrees of freedom; the load of the plan is the first of them."""
    request, plan = planned(request_rate_per_s=8.0, ttft_s=0.5)
    (option,) = (
        one
        for one in enumerate_options(CAL, request, FABRIC).options
        if one.deployment.layout == plan.decode.layout
    )
    assert plan.decode.workers == 1
    runs = [simulate(option.times, option.rules, load_at(option, 8.0, seed=seed)) for seed in range(LOADS)]
    each = [float(np.percentile(run.ttft_s[after_warm_up(run)], 90)) for run in runs]
    half = 2.776445 * float(np.std(each, ddof=1)) / 5**0.5  # Student's t of four degrees of freedom, 0.975
    mean = float(np.mean(each))
    assert plan.estimate.drawn_anew["ttft"] == pytest.approx((mean - half, mean + half), rel=1e-4)
    assert plan.estimate.ttft.p90_s == pytest.approx(each[0])


def test_latencies_without_a_spread_have_none() -> None:
    """One token at a time from an idle server: every load is the same to it."""
    _, plan = planned(request_rate_per_s=0.01, output_tokens=1)
    low, high = plan.estimate.drawn_anew["ttft"]
    assert high / low < 1.5
    assert "tpot" not in plan.estimate.drawn_anew


def test_a_closed_loop_draws_nothing() -> None:
    """Its requests are sent when others end."""
    _, plan = planned(concurrency=8)
    assert plan.estimate.drawn_anew == {}
