"""Gradient buckets of a size: latency of each, the last one shown, and a size between that is best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.collectives import collective_time
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.parameters import parameter_count
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from costmodel.training.raw_times import features_of
from planner.plan import PlanRequest
from planner.search.infeasible import Infeasible
from planner.search.search import search
from topology.base.errors import InputError
from topology.base.units import GB, KB, MB
from topology.builders import default_cluster

CAL = load_calibration()
SPEC = model("llama-3.2-1b")
CLUSTER = default_cluster("a100-sxm-80gb", 16)
JOB = TrainingJob(sequence_length=2048, global_batch_size=64)
DDP = ParallelLayout(dp=16, microbatch_size=4)
PROFILE = stack("pytorch")


def in_buckets(size: float | None, job: TrainingJob = JOB) -> TrainingJob:
    """The job with buckets of so many bytes."""
    return replace(job, bucket_bytes=size)


def step_s(size: float | None, layout: ParallelLayout = DDP) -> float:
    """Seconds of a step."""
    return estimate(
        Case(model=SPEC, cluster=CLUSTER, job=in_buckets(size), stack=PROFILE, cal=CAL), layout
    ).step_time_s


@pytest.mark.parametrize("size", [1 * MB, 25 * MB])
def test_a_reduction_is_as_many_all_reduces_as_buckets(size: float) -> None:
    """So many messages of a bucket's bytes, each with its own latency; the last of them is left when the backward ends."""
    table = LayoutTable.from_rows([DDP])
    traffic = features_of(
        Case(model=SPEC, cluster=CLUSTER, job=in_buckets(size), stack=PROFILE, cal=CAL), table
    ).traffic
    whole = parameter_count(SPEC) * PROFILE.memory.gradient_reduce_bytes
    each = float(np.ravel(collective_time(CAL, CLUSTER.hierarchy, "all_reduce", np.array([size]), 16, 1))[0])
    counts = np.array([SPEC.num_layers, 1, 1])
    assert float(traffic.last_bucket_s[0]) == pytest.approx(each, rel=1e-6)
    assert float(counts @ traffic.step_reduce_s[:, 0]) == pytest.approx(whole / size * each, rel=1e-6)


def test_a_size_between_is_best() -> None:
    """Small buckets pay latency, one of everything cannot start before the backward has ended."""
    small, usual, whole = (step_s(size) for size in (100 * KB, 25 * MB, 100 * GB))
    assert usual < small
    assert usual < whole
    assert step_s(None) <= usual < 1.02 * step_s(None)


def test_one_bucket_of_everything_is_not_hidden() -> None:
    """All of the reduction shows, and no more than it."""
    table = LayoutTable.from_rows([DDP])
    bare = replace(PROFILE, timing=replace(PROFILE.timing, gradient_overlap=False))
    shown = estimate(
        Case(model=SPEC, cluster=CLUSTER, job=in_buckets(100 * GB), stack=PROFILE, cal=CAL), DDP
    ).step_time_s
    never = estimate(
        Case(model=SPEC, cluster=CLUSTER, job=in_buckets(100 * GB), stack=bare, cal=CAL), DDP
    ).step_time_s
    assert shown == pytest.approx(never)
    reduced = features_of(
        Case(model=SPEC, cluster=CLUSTER, job=in_buckets(100 * GB), stack=PROFILE, cal=CAL), table
    ).traffic
    assert float(reduced.last_bucket_s[0]) == pytest.approx(
        float(np.array([SPEC.num_layers, 1, 1]) @ reduced.step_reduce_s[:, 0])
    )


def test_a_search_is_below_every_layout_that_is_pinned() -> None:
    """Its bound holds with buckets too."""
    job = in_buckets(1 * MB)
    asked = PlanRequest(model=SPEC, cluster=CLUSTER.spec, job=job, stack="pytorch")
    best = search(asked)
    assert not isinstance(best, Infeasible)
    assert best.optimality.status == "proven"
    for pins in ({"dp": 16}, {"dp": 8}, {"tp": 2}, {"tp": 4, "dp": 4}, {"zero_stage": 1}):
        other = search(replace(asked, pins=pins))
        if not isinstance(other, Infeasible):
            assert other.estimate.step_time_s >= best.optimality.bound_s * (1 - 1e-9)


def test_sharded_gradients_and_engines_that_are_not_told_are_refused() -> None:
    """ZeRO-3 reduces by layer; a plan for an engine says what it is not told."""
    asked = PlanRequest(model=SPEC, cluster=CLUSTER.spec, job=in_buckets(25 * MB), stack="pytorch")
    sharded = search(replace(asked, pins={"zero_stage": 3, "dp": 16}))
    told = search(replace(asked, engine="deepspeed"))
    assert isinstance(sharded, Infeasible)
    assert "gradient-buckets" in str(sharded)
    assert isinstance(told, Infeasible)
    assert "deepspeed-compression" in str(told)


@pytest.mark.parametrize("size", [0.0, -1.0, 1e30])
def test_a_size_that_no_bucket_has_is_refused(size: float) -> None:
    """Positive, and at most the gradients of the largest model."""
    with pytest.raises(InputError):
        in_buckets(size)
