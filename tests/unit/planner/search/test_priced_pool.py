"""What plans of pools cost whose kinds of node have prices: by hand, and never more for a cheaper or another node."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.reports.plan_headline import money_text, price_text
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.bounds.objective import goal_of, goal_of_plan
from planner.plan import Plan, PlanRequest
from planner.questions.settings import override_cluster
from planner.search.search import search
from tests.counts import tries
from tests.unit.planner.search.test_pool import request
from tests.unit.topology.pools.test_kinds import pool
from tests.unit.topology.pools.test_rates import priced
from topology.base.errors import InputError
from topology.spec import ClusterSpec

CAL = load_calibration()
SLACK = 1 + 1e-6  # the documented rounding of seconds in the solver


def plan(asked: PlanRequest) -> Plan:
    """The plan of a question."""
    found = search(asked, CAL)
    assert isinstance(found, Plan)
    return found


def cost_usd(cluster: ClusterSpec) -> float:
    """Dollars of a step of the least cost."""
    found = plan(request(cluster, "cost")).estimate.usd_per_step
    assert found is not None
    return found


FIVE = pool(("dgx-h100", 4), ("dgx-a100", 1), per_unit=32)


@pytest.mark.parametrize(
    ("dollars", "kinds", "hour_usd"),
    [((6.88, 3.43), 1, 32 * 6.88), ((4.0, 0.8), 2, 32 * 4.0 + 8 * 0.8)],
    ids=["an A100 that is dear for its speed", "a cheap one"],
)
def test_an_old_node_is_rented_where_it_is_cheap_for_its_speed(
    dollars: tuple[float, float], kinds: int, hour_usd: float
) -> None:
    """70B on four DGX-H100 and one DGX-A100: 50.4 s on both, 55.2 s on the H100, so both cost less where an A100 does below 38 % of an H100."""
    asked = PlanRequest(
        model=model("llama-3.1-70b"),
        cluster=priced(replace(FIVE, tiers=(replace(FIVE.tiers[0], oversubscription=1.0),)), *dollars),
        job=TrainingJob(sequence_length=4096, global_batch_size=512),
        objective="cost",
        engine="megatron",
        stack="megatron-core",
        pins={"tp": 4, "dp": 2},
    )
    found = plan(asked)
    assert len(found.request.cluster.nodes) == kinds
    assert found.layout.num_gpus == (40 if kinds == 2 else 32)
    assert found.estimate.step_time_s == pytest.approx(50.357 if kinds == 2 else 55.171, rel=1e-3)
    assert found.estimate.usd_per_step == pytest.approx(hour_usd * found.estimate.step_time_s / 3600)
    assert found.optimality.status == "proven"
    scored = float(goal_of_plan(found).score(found.layout.num_gpus, 3600.0))
    assert scored == pytest.approx(hour_usd * 3600)


def test_idle_nodes_are_paid_for_at_their_own_price() -> None:
    """Asked for the shortest step, every hour of every node is billed: 16 × 4 + 8 × 1 dollars."""
    found = plan(request(priced(pool(("dgx-h100", 2), ("dgx-a100-40gb", 1)), 4.0, 1.0)))
    assert [node.gpu for node in found.request.cluster.nodes] == ["h100-sxm"]
    assert found.estimate.usd_per_step == pytest.approx(found.estimate.step_time_s / 3600 * 72.0)
    assert "at $4.00, with $8.00 an hour of idle nodes, per GPU-hour" in money_text(
        found.request, found.estimate
    )


SPOT = priced(pool(("dgx-h100", 1), ("dgx-h100", 1)), 4.0, 1.5)


def test_spot_nodes_are_rented_before_others() -> None:
    """One GPU of either price does the same work: the least cost is on the cheaper node alone, or both."""
    assert cost_usd(SPOT) <= cost_usd(priced(pool(("dgx-h100", 1)), 1.5)) * SLACK
    assert price_text(SPOT) == "$4.00 (h100-sxm) and $1.50 (h100-sxm)"


def test_a_kind_without_a_price_is_named() -> None:
    """No price of the plan then, and no least cost; one price of all is stated by a setting."""
    half = priced(SPOT, None, 1.5)
    found = plan(request(half))
    assert found.estimate.usd_per_step is None
    assert "no price known of h100-sxm" in money_text(found.request, found.estimate)
    with pytest.raises(InputError, match="every kind of node"):
        goal_of(request(half, "cost"))
    with pytest.raises(InputError, match="every kind of node"):
        goal_of(request(priced(SPOT, 0.0, 1.5), "cost"))
    assert goal_of(request(replace(half, usd_per_gpu_hour=2.0), "cost")).rates == ((8, 2.0), (8, 1.5))
    stated = override_cluster(half, {"usd_per_gpu_hour": "3"})
    assert price_text(stated) == "$3.00"
    assert goal_of(request(stated, "cost")).rates == ()


@settings(max_examples=tries(2, 4), deadline=None)
@given(
    dollars=st.tuples(st.floats(0.5, 8), st.floats(0.5, 8)),
    cheaper=st.sampled_from([0, 1]),
    share=st.floats(0.1, 1.0),
    added=st.sampled_from([0, 1]),
)
def test_a_cheaper_or_another_node_never_costs_more(
    dollars: tuple[float, float], cheaper: int, share: float, added: int
) -> None:
    """A lower price of either kind, and a node of either behind the others, never raise the least cost."""
    spec = priced(pool(("dgx-h100", 1), ("dgx-a100", 1)), *dollars)
    before = cost_usd(spec)
    less = [each * (share if place == cheaper else 1) for place, each in enumerate(dollars)]
    assert cost_usd(priced(spec, *less)) <= before * SLACK
    assert cost_usd(replace(spec, nodes=(*spec.nodes, spec.nodes[added]))) <= before * SLACK
