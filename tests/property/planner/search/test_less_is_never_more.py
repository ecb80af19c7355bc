"""What is taken out of an allocation never makes a plan better: a node, a GPU, the rate of a NIC."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan import Plan
from planner.search.search import search
from planner.search.verify import verify
from tests.counts import tries
from tests.unit.planner.search.test_pool import CAL, SLACK, plan, request
from tests.unit.topology.pools.test_kinds import pool
from topology.fabric.degraded import degraded
from topology.spec import ClusterSpec

KINDS = ("dgx-h100", "dgx-a100-40gb")


@st.composite
def pools(draw: st.DrawFn) -> ClusterSpec:
    """Two to four nodes of 1, 2 or 4 GPUs, of one kind or two, in leaves of one to three."""
    gpus, per_unit = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3))
    counts = [(kind, draw(st.integers(1, 2))) for kind in KINDS[: draw(st.integers(1, 2))]]
    spec = pool(*counts, per_unit=per_unit)
    nodes = tuple(replace(node, gpus_per_node=gpus, nics_per_node=gpus) for node in spec.nodes)
    return replace(spec, nodes=(replace(nodes[0], count=nodes[0].count + 1), *nodes[1:]))


@pytest.mark.timeout(300)
@settings(max_examples=tries(3, 6), deadline=None)
@given(pools(), st.data())
def test_less_is_never_more(spec: ClusterSpec, data: st.DataObject) -> None:
    """Without a node, with a broken GPU, with a slow NIC: the step is as long or longer."""
    whole, number = plan(spec).estimate.step_time_s, data.draw(st.integers(0, spec.num_nodes - 1))
    for without, faults in (
        ([f"node{number}"], []),
        ([], [f"node{number}:gpu0"]),
        ([], [f"node{number}:nic=10 Gbit/s"]),
    ):
        left = degraded(spec, without, faults)
        assert plan(left).estimate.step_time_s * SLACK >= whole, left


@pytest.mark.timeout(300)
@settings(max_examples=tries(2, 3), deadline=None)
@given(pools())
def test_switches_that_reduce_are_never_worse(spec: ClusterSpec) -> None:
    """In-network reduction only shortens all-reduces; the proof of the faster plan is derived anew."""
    leaf = replace(spec.tiers[0], sharp=True)
    able = replace(spec, tiers=(leaf, replace(leaf, name="spine", nodes_per_unit=spec.num_nodes)))
    steps = []
    for cluster in (able, spec):
        found = search(request(cluster, zero_stage=0), CAL)
        assert isinstance(found, Plan)
        assert all(claim.holds for claim in verify(found, CAL).claims)
        steps.append(found.estimate.step_time_s)
    assert steps[0] <= steps[1] * SLACK
