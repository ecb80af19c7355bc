"""What is left of a cluster when GPUs are lost, so that a run can be planned again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.actions.run import part_of_cluster, without_hosts
from topology.builders import build, default_cluster
from topology.spec import TierSpec


@pytest.mark.parametrize(("gpus", "left"), [(2, 1), (8, 7), (16, 8), (16, 4)])
def test_whole_nodes_or_a_part_of_one_are_left(gpus: int, left: int) -> None:
    """A node that lost a GPU goes on with the others."""
    part = part_of_cluster(default_cluster("h100-sxm", gpus).spec, left)
    assert part is not None
    assert build(part).num_gpus == left


def test_nodes_that_are_not_alike_are_not_planned_for() -> None:
    """Fifteen of sixteen GPUs are no regular cluster: the launcher asks for fewer."""
    assert part_of_cluster(default_cluster("h100-sxm", 16).spec, 15) is None


def test_a_cluster_without_lost_hosts() -> None:
    """The others keep their names and order, whether an entry has many hosts or is one."""
    node = default_cluster("h100-sxm", 8).spec.nodes[0]
    several = replace(node, count=3, hosts=("b", "c", "a"))
    cluster = replace(default_cluster("h100-sxm", 8).spec, nodes=(replace(node, count=1, name="z"), several))
    left = without_hosts(cluster, ("z", "c"))
    assert left is not None
    assert (left.hosts, left.num_gpus) == (("b", "a"), 16)
    assert without_hosts(cluster, ()) is cluster
    assert without_hosts(cluster, ("z", "a", "b", "c")) is None
    racks = replace(cluster, tiers=(TierSpec(name="rack", nodes_per_unit=3, units=(3, 1)),))
    assert without_hosts(racks, ("a",)) is None
