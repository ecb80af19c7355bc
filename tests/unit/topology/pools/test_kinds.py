"""Pools whose nodes differ: their kinds, and the clusters that some kinds make."""

from dataclasses import replace

import pytest

from topology.builders import build, default_cluster, machine_node
from topology.hardware.datasheets import machines
from topology.pools.kinds import is_part, kinds_of, nodes_in_words, nodes_left_out, part_of, parts_of_pool
from topology.spec import ClusterSpec, SwitchSpec, TierSpec


def pool(*machines_and_counts: tuple[str, int], per_unit: int = 32, **facts: object) -> ClusterSpec:
    """Nodes of some machines, in this order."""
    nodes = tuple(machine_node(machines()[name], count) for name, count in machines_and_counts)
    tiers = (TierSpec(name="leaf", nodes_per_unit=per_unit, oversubscription=2.0),)
    return replace(ClusterSpec(name="pool", nodes=nodes, tiers=tiers), **facts)  # type: ignore[arg-type]


def test_kinds_are_what_nodes_say_but_their_number_name_and_switch() -> None:
    """Two entries of one machine are one kind; another NIC is another."""
    spec = pool(("dgx-h100", 2), ("dgx-a100", 3), ("dgx-h100", 4))
    assert [(kind.gpu, kind.count) for kind in kinds_of(spec)] == [("h100-sxm", 6), ("a100-sxm-80gb", 3)]
    slower = replace(spec.nodes[0], nic_bandwidth_bytes_per_s=1e9)
    assert len(kinds_of(replace(spec, nodes=(*spec.nodes, slower)))) == 3
    assert len(kinds_of(default_cluster("h100-sxm", 64).spec)) == 1


def test_parts_are_every_choice_of_kinds() -> None:
    """Three kinds make seven clusters, the pool itself first; each can be built."""
    spec = pool(("dgx-h100", 2), ("dgx-a100", 3), ("dgx-b200", 1))
    parts = list(parts_of_pool(spec))
    assert parts[0] == spec
    assert sorted(part.num_gpus for part in parts) == [8, 16, 24, 24, 32, 40, 48]
    assert all(build(part).num_gpus == part.num_gpus for part in parts)
    assert all(is_part(part, spec) for part in parts)
    assert not is_part(pool(("dgx-h100", 3)), spec)
    assert nodes_in_words(nodes_left_out(spec, parts[-1])) == "2 × 8 h100-sxm + 3 × 8 a100-sxm-80gb"


@pytest.mark.parametrize(
    ("first", "unit"),
    [(4, 4), (2, 2), (3, 1), (8, 4)],
    ids=["a whole unit", "half a unit", "odd nodes", "two units"],
)
def test_nodes_keep_to_their_units_where_others_are_left_out(first: int, unit: int) -> None:
    """Leaves of four nodes: leaving out nodes before others takes no group to be nearer than it is."""
    spec = pool(("dgx-a100", first), ("dgx-h100", 8), per_unit=4)
    part = part_of(spec, kinds_of(spec)[1:])
    assert [tier.nodes_per_unit for tier in part.tiers] == [unit]
    behind = part_of(spec, kinds_of(spec)[:1])
    assert [tier.nodes_per_unit for tier in behind.tiers] == [4]


def test_kinds_are_told_apart_by_more_than_their_number() -> None:
    """Leaving out by kind finds the kind whatever its count says."""
    spec = pool(("dgx-a100", 2), ("dgx-h100", 2))
    assert part_of(spec, (replace(kinds_of(spec)[0], count=7),)).num_gpus == 16


def test_trees_of_switches_keep_their_nodes_where_they_hang() -> None:
    """A leaf that loses its nodes stays in the tree and joins nothing."""
    switches = (
        SwitchSpec(name="core"),
        SwitchSpec(name="a", parent="core", uplink_bandwidth_bytes_per_s=1e11),
        SwitchSpec(name="b", parent="core", uplink_bandwidth_bytes_per_s=1e11),
    )
    spec = pool(("dgx-a100", 2), ("dgx-h100", 2), tiers=(), switches=switches)
    spec = replace(spec, nodes=tuple(replace(n, switch=s) for n, s in zip(spec.nodes, "ab", strict=True)))
    part = part_of(spec, kinds_of(spec)[1:])
    assert build(part).hierarchy.num_gpus == 16
    assert [node.switch for node in part.nodes] == ["b"]


def test_of_many_kinds_few_choices_are_looked_at() -> None:
    """Of eight kinds: all, all but one, each alone; never 255."""
    kinds = [replace(machine_node(machines()["dgx-h100"], 1), nic_latency_s=n * 1e-7) for n in range(8)]
    assert len(list(parts_of_pool(replace(pool(("dgx-h100", 1)), nodes=tuple(kinds))))) == 17


def test_parts_keep_what_is_left_of_units_that_differ() -> None:
    """Leaves of two, one and two nodes: without the kind of the first and the last, one of each remains."""
    spec = pool(("dgx-h100", 1), ("dgx-a100", 3), ("dgx-h100", 1), per_unit=2)
    spec = replace(spec, tiers=(replace(spec.tiers[0], units=(2, 1, 2)),))
    parts = {part.num_nodes: part for part in parts_of_pool(spec)}
    assert {count: part.tiers[0].units for count, part in parts.items()} == {
        5: (2, 1, 2), 3: (1, 1, 1), 2: (1, 1)
    }  # fmt: skip
    assert all(build(part).num_gpus == part.num_gpus for part in parts.values())


def test_kinds_of_one_machine_may_differ_in_price_alone() -> None:
    """Spot and reserved nodes are two kinds; a part of them is one whatever its prices say."""
    spot = replace(machine_node(machines()["dgx-h100"], 2), usd_per_gpu_hour=1.5)
    spec = replace(pool(("dgx-h100", 3)), nodes=(*pool(("dgx-h100", 3)).nodes, spot))
    assert [kind.count for kind in kinds_of(spec)] == [3, 2]
    part = part_of(spec, kinds_of(spec)[:1])
    assert is_part(replace(part, usd_per_gpu_hour=4.0, idle_usd_per_hour=24.0), spec)
    assert build(spec).hierarchy == build(replace(spec, nodes=(spot.times(5),))).hierarchy
