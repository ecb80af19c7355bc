"""Thresholds of a fleet that is scaled: what one worker was simulated to carry, and how many there may be."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.simulation.load import Lengths, open_load
from costmodel.serving.simulation.simulator import simulate
from planner.analysis.serving.autoscale import ScalingPolicy
from planner.analysis.serving.rehearsal import rehearsed
from planner.analysis.serving.scaling import scaling_of
from planner.serving.plan import ServingPlan, ServingRequest
from planner.serving.search import search_serving
from tests.unit.planner.deployment.fleets import planned
from topology.builders import default_cluster

CAL, FABRIC = load_calibration(), default_cluster("h100-sxm", 8).hierarchy


@cache
def limited() -> ServingPlan:
    """Three replicas for a rate within limits, one of them spare."""
    job = ServingJob(input_tokens=1000, output_tokens=100, request_rate_per_s=40.0, ttft_s=1.0, tpot_s=0.02)
    request = ServingRequest(model=model("8b"), job=job, gpu="h100-sxm", pins={"tp": 1, "pp": 1}, spare=1)
    found = search_serving(CAL, request, FABRIC)
    assert isinstance(found, ServingPlan)
    return found


def test_each_pool_has_the_rate_of_one_of_its_workers() -> None:
    """A fleet serves no more than its scarcest pool; at least one worker stays, and none is added."""
    plan = planned("vllm")
    found = scaling_of(CAL, plan, FABRIC, policy=ScalingPolicy())
    assert list(found.pools) == ["prefill", "decode"]
    scarcest = min(found.pools[role].rate_per_s * pool.workers for role, pool in plan.pools)
    assert plan.estimate.served_per_s == pytest.approx(scarcest, rel=0.1)
    ends = [(one.fewest, one.most) for one in found.pools.values()]
    assert ends == [(1, pool.workers) for _, pool in plan.pools]


def test_in_flight_is_what_a_worker_was_seen_to_have() -> None:
    """Counted moment by moment in simulations of other requests, somewhat fewer a second and somewhat more."""
    plan = limited()
    pool = scaling_of(CAL, plan, FABRIC, policy=ScalingPolicy()).pools[""]
    worker = rehearsed(CAL, plan, FABRIC, span_s=1.0).pools[""]

    def seen(rate: float) -> float:
        inputs, outputs = Lengths(mean=1000), Lengths(mean=100)
        load = open_load(rate_per_s=rate, count=4000, inputs=inputs, outputs=outputs, seed=7)
        run = simulate(worker.times, worker.rules, load)
        moments = np.linspace(run.arrival_s[1000], run.arrival_s[-1], 2000)[:, None]
        return float(((run.arrival_s <= moments) & (moments < run.finish_s)).sum(axis=1).mean())

    assert seen(0.9 * pool.rate_per_s) < pool.in_flight < seen(1.1 * pool.rate_per_s)
    assert pool.rate_per_s >= 40.0 / (plan.decode.workers - 1) * 0.98


def test_a_trace_and_spare_workers_set_how_many_there_may_be() -> None:
    """Enough for the peak and for one that is lost; the times of a start and of giving up are handed on."""
    plan, policy = limited(), ScalingPolicy(start_up_s=90.0, cool_down_s=180.0)
    first = scaling_of(CAL, plan, FABRIC, policy=policy).pools[""]
    assert (first.fewest, first.most) == (2, plan.decode.workers)
    found = scaling_of(CAL, plan, FABRIC, policy=policy, peak_per_s=9.5 * first.rate_per_s)
    assert found.pools[""] == replace(first, most=11)
    assert (found.start_up_s, found.cool_down_s) == (90.0, 180.0)
