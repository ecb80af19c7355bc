"""What is left of an allocation: hosts that are out, GPUs that are broken, NICs that are slow."""

from dataclasses import replace
from pathlib import Path

import pytest

from topology.base.errors import InputError
from topology.base.units import GBIT
from topology.builders import build, default_cluster, machine_node
from topology.cluster_file import read_cluster, to_toml
from topology.discover.cluster import discover, dump_facts
from topology.fabric.degraded import degraded, left_out_words
from topology.hardware.datasheets import machines
from topology.pools.kinds import kinds_of
from topology.spec import ClusterSpec, TierSpec

NODES = (machine_node(machines()["dgx-h100"], 6),)
PAIRS = ClusterSpec(name="six", nodes=NODES, tiers=(TierSpec(name="leaf", nodes_per_unit=2),))


def test_a_host_that_is_out_leaves_its_unit_smaller() -> None:
    """Of leaves of two, the second has one; the last may be smaller without being irregular."""
    left = degraded(PAIRS, ["node2"])
    assert (left.num_nodes, left.tiers[0].units, left.left_out) == (5, (2, 1, 2), ("node2",))
    assert degraded(PAIRS, ["node5"]).tiers == PAIRS.tiers
    assert degraded(PAIRS, ["node2", "node3"]).tiers == PAIRS.tiers
    assert build(left).hierarchy.num_gpus == 40


def test_hosts_keep_their_names_and_places() -> None:
    """Names of the others stay in the order of the tree; a switch without hosts is no part of the fabric."""
    tree = "SwitchName=s0 Switches=s[1-2]\nSwitchName=s1 Nodes=n[1-3]\nSwitchName=s2 Nodes=n[4-6]\n"
    spec = discover([dump_facts(tree, "t")], gpu="h100-sxm").spec
    assert degraded(spec, ["n2", "n5"]).hosts == ("n1", "n3", "n4", "n6")
    assert degraded(spec, ["n2", "n5"]).tiers[0].nodes_per_unit == 2


def test_a_rack_that_lost_a_tray_is_a_smaller_domain() -> None:
    """18 and 17 trays are one kind, the smaller domain last; 17 and 18 are two."""
    blocks = "BlockName=a Nodes=t[01-18]\nBlockName=b Nodes=t[19-36]\n"
    spec = discover([dump_facts(blocks, "t")], gpu="gb200").spec
    last, first = degraded(spec, ["t20"]), degraded(spec, ["t02"])
    assert [(node.count, node.nodes_per_domain) for node in last.nodes] == [(35, 18)]
    assert [(node.count, node.nodes_per_domain) for node in first.nodes] == [(17, 17), (18, 18)]
    assert build(last).hierarchy.gpus_per_node == 72


def test_a_broken_gpu_idles_its_node_while_others_are_whole() -> None:
    """Every node of a job has equally many ranks; where no node is whole, all use as many as the best has."""
    left = degraded(PAIRS, [], ["node4:gpu3"])
    assert (left.num_nodes, left.nodes[0].gpus_per_node, left.left_out) == (5, 8, ("node4:gpu3",))
    assert "all of node4 stays idle" in left_out_words(left)[0]
    alone = degraded(default_cluster("h100-sxm", 8).spec, [], ["node0:gpu3"])
    assert (alone.num_gpus, alone.nodes[0].nics_per_node) == (7, 7)
    assert "CUDA_VISIBLE_DEVICES" in left_out_words(alone)[0]
    each = degraded(PAIRS, [], [*(f"node{i}:gpu{i}" for i in range(6)), "node0:gpu7"])
    assert (each.num_nodes, each.nodes[0].gpus_per_node) == (5, 7)


def test_a_slow_nic_makes_a_kind_of_its_own() -> None:
    """The others stay as they are; a collective over all of them runs at the slow one's rate."""
    left = degraded(PAIRS, [], ["node1:nic=100 Gbit/s"])
    assert [node.count for node in left.nodes] == [1, 1, 4]
    assert len(kinds_of(left)) == 2
    assert left.tiers == PAIRS.tiers
    nic = build(left).hierarchy.nic
    assert nic is not None
    assert nic.bandwidth_bytes_per_s == 100 * GBIT


def test_a_slow_tray_slows_its_domain() -> None:
    """A scale-up domain is one kind of node: all its trays are planned for at the slowest's rate."""
    rack = replace(machine_node(machines()["gb200-nvl72"], 18), nodes_per_domain=18)
    left = degraded(ClusterSpec(name="rack", nodes=(rack,)), [], ["node3:nic=100 Gbit/s"])
    (node,) = left.nodes
    assert (node.count, node.nodes_per_domain, node.nic_bandwidth_bytes_per_s) == (18, 18, 100 * GBIT)


@pytest.mark.parametrize(
    ("without", "faults", "what"),
    [
        (["nod17"], [], "no host is called 'nod17'"),
        (["node6"], [], "no host is called 'node6'"),
        ([f"node{i}" for i in range(6)], [], "nothing of cluster 'six' is left"),
        ([], ["node1"], "is no fault of a host"),
        ([], ["node1:gpu8"], "node1 has no GPU 8"),
        ([], ["node1:nic=9 Tbit/s"], "is no slower NIC"),
        ([], ["node9:gpu1"], "no host is called 'node9'"),
    ],
)
def test_what_no_host_has_is_refused(without: list[str], faults: list[str], what: str) -> None:
    """In three lines, with the names most like it."""
    with pytest.raises(InputError) as refused:
        degraded(PAIRS, without, faults)
    assert what in refused.value.what
    if "called" in what:
        assert refused.value.fix.startswith("did you mean node")


def test_a_file_says_it_too_and_keeps_it(tmp_path: Path) -> None:
    """`without` and `degraded` of a file are applied as it is read; what is written back is read alike."""
    path = tmp_path / "c.toml"
    path.write_text(
        'without = ["node1"]\ndegraded = ["node0:nic=100 Gbit/s"]\n[[nodes]]\nmachine = "dgx-h100"\ncount = 3\n'
    )
    spec = read_cluster(path)
    assert ([node.count for node in spec.nodes], spec.left_out) == ([1, 1], ("node1",))
    path.write_text(to_toml(spec))
    assert read_cluster(path) == spec
    path.write_text('without = "node1"\n[[nodes]]\nmachine = "dgx-h100"\ncount = 3\n')
    with pytest.raises(InputError):
        read_cluster(path)
