"""Pools whose nodes differ: never worse than their best part, and the plan says what it leaves idle."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.plan import Objective, Plan, PlanRequest, from_json, to_json
from planner.search.given_layout import plan_of_layout
from planner.search.search import search
from planner.search.verify import verify
from planner.structure import structure_claims
from tests.counts import tries
from tests.unit.topology.pools.test_kinds import pool
from topology.pools.kinds import parts_of_pool
from topology.spec import ClusterSpec

CAL = load_calibration()
SLACK = 1 + 1e-6  # the documented rounding of seconds in the solver


def request(cluster: ClusterSpec, objective: Objective = "step-time", **pins: object) -> PlanRequest:
    """A small question: few layers are looked at, many layouts are not."""
    small = replace(model("llama-3.2-1b"), num_layers=3)
    job = TrainingJob(sequence_length=4096, global_batch_size=48)
    pins = {"cp": 1, "schedule": "1f1b", "recompute": "none", "microbatch_size": 1, **pins}
    return PlanRequest(model=small, cluster=cluster, job=job, objective=objective, pins=pins)


def plan(cluster: ClusterSpec, objective: Objective = "step-time") -> Plan:
    """The plan of the small question on a cluster."""
    found = search(request(cluster, objective), CAL)
    assert isinstance(found, Plan)
    return found


MIXED = pool(("dgx-h100", 2), ("dgx-a100-40gb", 1), usd_per_gpu_hour=2.0)


@pytest.mark.parametrize("objective", ["step-time", "cost"])
def test_a_pool_is_planned_as_its_best_part(objective: Objective) -> None:
    """The plan is the best over every choice of kinds, each searched by itself, and proven against all."""
    found = plan(MIXED, objective)
    alone = [search(request(replace(part, name=""), objective), CAL) for part in parts_of_pool(MIXED)]
    steps = [
        one.estimate.step_time_s * (one.layout.num_gpus if objective == "cost" else 1)
        for one in alone
        if isinstance(one, Plan)
    ]
    own = found.estimate.step_time_s * (found.layout.num_gpus if objective == "cost" else 1)
    assert own <= min(steps) * SLACK
    assert found.optimality.status == "proven"
    assert found.pool is not None
    assert found.pool.offered == MIXED
    assert len(found.pool.others) == 2


def test_an_old_node_is_left_idle_and_paid_for() -> None:
    """Two nodes of H100 beside one of A100: the A100 are idle, the plan says what using them takes."""
    found = plan(MIXED)
    assert [node.gpu for node in found.request.cluster.nodes] == ["h100-sxm"]
    everything = found.pool.others[0] if found.pool else None
    assert everything is not None
    assert everything.num_gpus == 24
    assert everything.step_time_s is not None
    assert everything.step_time_s > found.estimate.step_time_s
    assert "1 × 8 a100-sxm-40gb left idle; with every node a step takes" in found.assumptions[0]
    hour_usd = 24 * 2.0
    assert found.estimate.usd_per_step == pytest.approx(found.estimate.step_time_s / 3600 * hour_usd)


def test_an_idle_kind_of_a_goal_that_rents_costs_nothing() -> None:
    """The objective ``cost`` says what to rent: nobody pays for a node that is not rented."""
    found = plan(MIXED, "cost")
    assert found.request.cluster.usd_per_gpu_hour == 2.0


def test_a_plan_of_a_pool_is_derived_anew_on_every_part() -> None:
    """`verify` looks at the parts that were not taken, also after a round through JSON."""
    found = plan(pool(("dgx-h100", 1), ("dgx-a100-40gb", 1)))
    claims = verify(from_json(to_json(found)), CAL).claims
    assert [claim.name for claim in claims if not claim.holds] == []
    assert sum(claim.name.startswith("bound on ") for claim in claims) == 2


def test_a_better_part_that_was_kept_quiet_is_found_out() -> None:
    """The plan of the slower part that calls itself the best of the pool is told otherwise."""
    mixed = pool(("dgx-h100", 1), ("dgx-a100-40gb", 1))
    found, slower = plan(mixed), plan(pool(("dgx-a100-40gb", 1)))
    assert found.pool is not None
    part = next(part for part in parts_of_pool(mixed) if part.nodes == slower.request.cluster.nodes)
    lying = replace(slower, request=replace(slower.request, cluster=part), origin=None, pool=found.pool)
    wrong = {claim.name for claim in verify(lying, CAL).claims if not claim.holds}
    assert "bound on 1 × 8 h100-sxm" in wrong


def test_nodes_that_were_never_offered_are_found_out() -> None:
    """A plan on nodes that are no part of its pool does not fit together."""
    found = plan(MIXED)
    edited = replace(found, request=replace(found.request, cluster=pool(("dgx-a100", 2))))
    wrong = {claim.name for claim in structure_claims(edited) if not claim.holds}
    assert wrong == {"used nodes are some kinds of the pool"}


def test_a_given_layout_runs_where_it_is_fastest() -> None:
    """Sixteen ranks on a pool of 16 H100 and 8 A100 run on the H100; what fills the pool uses all."""
    sixteen = plan_of_layout(request(MIXED, tp=8, dp=2), CAL)
    assert isinstance(sixteen, Plan)
    assert [node.gpu for node in sixteen.request.cluster.nodes] == ["h100-sxm"]
    filling = plan_of_layout(request(MIXED, tp=8), CAL)
    assert isinstance(filling, Plan)
    assert filling.layout.num_gpus == 24


@settings(max_examples=tries(2, 4), deadline=None)
@given(
    counts=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    added=st.sampled_from([0, 1]),
    kinds=st.sampled_from([("dgx-h100", "dgx-a100"), ("dgx-a100", "dgx-a100-40gb")]),
)
def test_a_node_more_is_never_worse(counts: tuple[int, int], added: int, kinds: tuple[str, str]) -> None:
    """Adding a node of either kind never lengthens the step, so taking one away never shortens it."""
    more = tuple(count + (place == added) for place, count in enumerate(counts))
    steps = [plan(pool(*zip(kinds, numbers, strict=True))).estimate.step_time_s for numbers in (counts, more)]
    assert steps[1] <= steps[0] * SLACK
