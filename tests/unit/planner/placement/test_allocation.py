"""What to ask a scheduler for: in its own words, with what waiting for it is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.placement.allocation import Wanted, asked_for
from tests.unit.planner.placement.test_placement import expert_groups, racks, rows

LEAF = Wanted(level="row", is_domain=False, block=4, nodes=32, unit_nodes=18, lost_s=0.25, steps=2400)


def test_leaf_switches_are_counted_and_waited_for() -> None:
    """Rows of eighteen hold four blocks of four each: two rows, for as long as the job would lose."""
    told = asked_for(LEAF)
    assert "Slurm --switches=2@10;" in told
    assert "kueue.x-k8s.io/podset-slice-required-topology: <label of the row>" in told
    assert "kueue.x-k8s.io/podset-slice-size: 4;" in told
    assert "kai.scheduler/topology-preferred-placement: <label of the row>" in told
    assert "topologySpreadConstraints of maxSkew: 1, minDomains: 2" in told
    assert told.endswith("worth waiting up to 600 s for the job's 2,400 steps")


@pytest.mark.parametrize(
    ("changes", "said", "unsaid"),
    [
        ({"is_domain": True}, "Slurm --segment=4;", "--switches"),
        ({"steps": None}, "Slurm --switches=2; ", "@"),
        ({"steps": None}, "worth waiting up to 250 s for every 1,000 steps", "the job's"),
        ({"nodes": 16}, "kueue.x-k8s.io/podset-required-topology: <label of the row>;", "slice"),
        ({"nodes": 16}, "kai.scheduler/topology-required-placement", "topologySpread"),
        ({"nodes": 36}, "--switches=3@", "preferred-topology"),
        ({"nodes": 40}, "--switches=3@", "topologySpread"),  # three rows would have thirteen and a third
    ],
)
def test_each_scheduler_is_asked_for_what_it_can_be(
    changes: dict[str, object], said: str, unsaid: str
) -> None:
    """Segments of domains, whole jobs in one unit, even spreads of whole blocks only."""
    told = asked_for(replace(LEAF, **changes))  # type: ignore[arg-type]
    assert (said in told, unsaid in told) == (True, False), told


def test_what_is_asked_for_has_no_torn_blocks() -> None:
    """Thirty-six trays in three racks of whole blocks lose nothing; in the two that were given they do."""
    plan, (given,) = expert_groups(racks(18, 18), 144)
    wanted = Wanted(
        level=given.level, is_domain=given.is_domain, block=given.hosts, nodes=36,
        unit_nodes=given.unit_hosts, lost_s=given.torn_s, steps=None,
    )  # fmt: skip
    assert (given.placed, given.unit_hosts, given.is_domain, wanted.units) == (1, 18, True, 3)
    assert any(asked_for(wanted) in said for said in plan.assumptions)
    for trays in ((16, 16, 4), (12, 12, 12)):
        asked, found = expert_groups(racks(*trays), 144)
        assert [one.placed for one in found] in ([], [0])
        assert not [said for said in asked.assumptions if "ask for nodes" in said]


def test_below_switches_the_words_are_those_of_a_tree() -> None:
    """Sixteen-fold experts are pairs of DGX; in rows of three, one and four one pair is torn."""
    plan, (pair,) = expert_groups(rows(3, 1, 4), 64)
    assert (pair.is_domain, pair.hosts, pair.unit_hosts, pair.placed) == (False, 2, 4, 1)
    (said,) = [said for said in plan.assumptions if "ask for nodes" in said]
    assert "Slurm --switches=2;" in said
