"""Clusters from files and specs: regular fabrics, trees of switches, mixed nodes, and everything that is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from topology import catalog
from topology.base.errors import InputError
from topology.base.units import GB, GBIT, GIB
from topology.builders import build, default_cluster
from topology.cluster_file import read_cluster, to_toml
from topology.fabric import graph as g
from topology.fabric.axis_report import bisection_bytes_per_s
from topology.fabric.derive import derive, unit_of_gpu, units_at
from topology.spec import ClusterSpec, NodeSpec, SwitchSpec, TierSpec

TREE = """
name = "two rooms"
fabric = "roce"

[[switches]]
name = "room"

[[switches]]
name = "row-a"
parent = "room"
uplink_bandwidth_bytes_per_s = "1600 Gbit/s"

[[switches]]
name = "row-b"
parent = "room"
uplink_bandwidth_bytes_per_s = "800 Gbit/s"

[[nodes]]
machine = "dgx-h100"
count = 2
switch = "row-b"

[[nodes]]
machine = "dgx-h100"
count = 2
switch = "row-a"
"""


def written(folder: Path, text: str) -> Path:
    """A cluster file."""
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def cause_of(path: Path) -> str:
    """The cause of the error a cluster file ends in."""
    with pytest.raises(InputError) as caught:
        catalog.cluster(path)
    return caught.value.cause


def test_a_file_needs_a_gpu_and_a_count_only(tmp_path: Path) -> None:
    """What a file leaves out is the reference machine of its GPU."""
    cluster = catalog.cluster(written(tmp_path, '[[nodes]]\ngpu = "h100"\ncount = 4\n'))
    assert cluster.spec.nodes == default_cluster("h100-sxm", 32).spec.nodes
    assert (cluster.name, cluster.num_gpus) == ("cluster", 32)


def test_a_file_overrides_what_it_states(tmp_path: Path) -> None:
    """Machines are a starting point: NICs, tiers and prices of the file win, with units as written."""
    text = """
    usd_per_gpu_hour = 2.5
    [[nodes]]
    machine = "dgx-a100"
    count = 8
    nic_bandwidth_bytes_per_s = "100 Gbit/s"
    [[tiers]]
    name = "leaf"
    nodes_per_unit = 4
    oversubscription = 2
    """
    cluster = catalog.cluster(written(tmp_path, text))
    rates = [(level.name, level.unit_gpus, level.uplink_bytes_per_s) for level in cluster.hierarchy.levels]
    assert rates == [("node", 8, 100 * GBIT), ("leaf", 32, 50 * GBIT)]
    assert cluster.spec.usd_per_gpu_hour == 2.5


def test_a_file_may_change_a_gpu(tmp_path: Path) -> None:
    """A GPU table overrides the catalog's facts for this cluster only."""
    text = '[[gpus]]\nname = "h100-sxm"\nmemory_bytes = "96 GiB"\n[[nodes]]\ngpu = "h100-sxm"\ncount = 1\n'
    cluster = catalog.cluster(written(tmp_path, text))
    assert cluster.gpu.memory_bytes == 96 * GIB
    assert cluster.gpu.peak("bf16") == catalog.gpu("h100-sxm").peak("bf16")
    assert catalog.gpu("h100-sxm").memory_bytes < 80 * GIB


def test_a_written_cluster_reads_back_equal(tmp_path: Path) -> None:
    """TOML out, TOML in: the same spec, for regular, tree-shaped and rack-scale clusters."""
    tree = catalog.cluster(written(tmp_path, TREE)).spec
    described = replace(catalog.gpu("gb200"), name="my-gpu", memory_bytes=100.0 * GIB)
    rack = replace(catalog.cluster("gb200-nvl72", 288).spec, gpus=(described,))
    for spec in (tree, rack, catalog.cluster("aws-p5.48xlarge", 64).spec):
        assert catalog.cluster(written(tmp_path, to_toml(spec))).spec == spec


def test_a_file_can_be_resized_when_its_nodes_are_alike(tmp_path: Path) -> None:
    """--gpus changes the number of nodes; a tree of switches is what it is."""
    path = written(tmp_path, '[[nodes]]\ngpu = "h100-sxm"\ncount = 4\n')
    assert catalog.cluster(path, 64).num_gpus == 64
    (part,) = catalog.cluster(path, 3).spec.nodes
    assert (part.count, part.gpus_per_node, part.nics_per_node) == (1, 3, 3)
    with pytest.raises(InputError, match="cannot have 60 GPUs"):
        catalog.cluster(path, 60)
    with pytest.raises(InputError, match="cannot have 64 GPUs"):
        catalog.cluster(written(tmp_path, TREE), 64)


def test_a_tree_of_switches_is_numbered_leaf_by_leaf(tmp_path: Path) -> None:
    """GPUs of one row are neighbours, and uplinks that differ are planned for with the slowest."""
    cluster = catalog.cluster(written(tmp_path, TREE))
    assert [node.switch for node in cluster.spec.nodes] == ["row-a", "row-b"]
    assert unit_of_gpu(cluster.graph, 2) == (0,) * 16 + (1,) * 16
    h = cluster.hierarchy
    assert [(level.unit_gpus, level.uplink_bytes_per_s) for level in h.levels] == [
        (8, 50 * GB),
        (16, 800 * GBIT / 16),
    ]
    assert (h.symmetric, h.notes) == (False, ("row-a level: uplinks differ, planned for with the slowest",))


def test_units_of_different_size_are_planned_for_by_their_common_part() -> None:
    """A row of two nodes beside a row of three: only single nodes are common to both."""
    spec = default_cluster("h100-sxm", 8).spec
    switches = (
        SwitchSpec(name="core"),
        SwitchSpec(name="a", parent="core", uplink_bandwidth_bytes_per_s=800 * GB),
        SwitchSpec(name="b", parent="core", uplink_bandwidth_bytes_per_s=1200 * GB),
    )
    nodes = tuple(replace(spec.nodes[0], count=count, switch=name) for name, count in (("a", 2), ("b", 3)))
    h = build(replace(spec, nodes=nodes, tiers=(), switches=switches)).hierarchy
    assert [level.unit_gpus for level in h.levels] == [8, 8]
    assert h.notes == ("a level: units of 16, 24 GPUs, planned for as units of 8",)


def test_mixed_nodes_are_in_the_graph_and_planned_for_as_the_weakest(tmp_path: Path) -> None:
    """H100 and A100 nodes: both in the graph, with their own links; one GPU that both can stand for."""
    text = '[[nodes]]\ngpu = "h100-sxm"\ncount = 2\n[[nodes]]\ngpu = "a100-sxm-40gb"\ncount = 2\n'
    cluster = catalog.cluster(written(tmp_path, text))
    rates = [
        g.link_between(cluster.graph, f"gpu{gpu}", switch).bandwidth_bytes_per_s
        for gpu, switch in ((0, "host0.nvswitch"), (31, "host3.nvswitch"))
    ]
    assert rates == [450 * GB, 300 * GB]
    assert (cluster.gpu.name, cluster.gpu.memory_bytes) == ("a100-sxm-40gb", 40 * GIB)
    assert cluster.gpu.peak("bf16") == catalog.gpu("a100-sxm-40gb").peak("bf16")
    assert cluster.hierarchy.scaleup.bandwidth_bytes_per_s == 300 * GB
    assert cluster.hierarchy.levels[0].uplink_bytes_per_s == 25 * GB
    assert "nodes differ" in cluster.notes[0]
    assert cluster.gpu.tdp_w == (catalog.gpu("h100-sxm").tdp_w + catalog.gpu("a100-sxm-40gb").tdp_w) / 2


def test_racks_are_one_domain_of_trays() -> None:
    """An NVL72 rack is 72 GPUs in 18 hosts; two racks are used by halves when that is even."""
    rack, two, three = (catalog.cluster("gb200-nvl72", gpus).hierarchy for gpus in (72, 128, 216))
    assert (rack.gpus_per_node, rack.gpus_per_host, rack.levels) == (72, 4, ())
    assert [(level.unit_gpus, level.uplink_bytes_per_s) for level in two.levels] == [(64, 50 * GB)]
    assert [level.unit_gpus for level in three.levels] == [72]


def test_a_last_unit_that_is_not_full_is_no_asymmetry() -> None:
    """40 nodes in leaves of 32 are a full leaf and a part of one."""
    h = default_cluster("h100-sxm", 320, oversubscription=2.0).hierarchy
    assert [(level.unit_gpus, level.uplink_bytes_per_s) for level in h.levels] == [
        (8, 50 * GB),
        (256, 25 * GB),
    ]
    assert h.symmetric


def test_part_of_a_node_is_used_only_when_it_is_alone() -> None:
    """1 to 8 GPUs, then whole nodes; the error names the next sizes."""
    sizes = [*range(1, 9), 16]
    assert [default_cluster("h100-sxm", n).hierarchy.num_gpus for n in sizes] == sizes
    with pytest.raises(InputError, match="ask for 8 or 16 GPUs"):
        default_cluster("h100-sxm", 12)
    for impossible in (0, -8, 10**12):
        with pytest.raises(InputError, match="not usable"):
            default_cluster("h100-sxm", impossible)


def test_measured_runs_choose_their_own_nics() -> None:
    """One NIC of the stated rate per GPU replaces the machine's."""
    h = default_cluster("a100-sxm-80gb", 64, nic_bandwidth_bytes_per_s=100 * GBIT).hierarchy
    assert (h.levels[0].uplink_bytes_per_s, h.nics_per_node) == (100 * GBIT, 8)
    assert default_cluster("gb200", 8, gpus_per_node=4).hierarchy.gpus_per_node == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[nodes]]\ngpu = "h100-sxm"\ncount = 2\nnic_bandwidth_bytes_per_s = nan', "nodes[0].nic_bandwidth_bytes_per_s: nan"),
        ('[[nodes]]\ngpu = "h100-sxm"\ncount = 2\nnic_bandwidth_bytes_per_s = -5', "nodes[0].nic_bandwidth_bytes_per_s = -5"),
        ('[[nodes]]\ngpu = "h100-sxm"\ncount = 2\nscaleup_bandwidth_bytes_per_s = 0', "scaleup_bandwidth_bytes_per_s = 0"),
        ('[[nodes]]\ngpu = "h100-sxm"\ncount = 0', "nodes[0].count = 0"),
        ('[[nodes]]\ngpu = "h100-sxm"\ncount = 2.5', "nodes[0].count: 2.5"),
        ('[[nodes]]\ngpu = "h100-sxm"\ncount = 1000000000000', "more than the 1048576"),
        ('[[nodes]]\ngpu = "h100-sxm"\ncount = 99999999999999999999', "nodes[0].count"),
        ('[[nodes]]\ngpu = "h100-sxm"\n', "missing key nodes[0].count"),
        ('[[nodes]]\ngpu = "h100-sxm"\ncount = 2\nnics_per_node = 0', "disconnected"),
        ('[[nodes]]\ngpu = "h100-sxm"\ncount = 2\nscaleup = "magic"', "scaleup = 'magic'"),
        ("nodes = []", "nodes is empty"),
        ("nodes = 3", "nodes: 3 is not a list"),
        ('[[nodes]]\ngpu = "h100-sxm"\ncount = 8\n[[tiers]]\nname = "leaf"\nnodes_per_unit = 2\noversubscription = 0.5', "tiers[0].oversubscription"),
        ('[[nodes]]\ngpu = "h100-sxm"\ncount = 8\n[[tiers]]\nname = "a"\nnodes_per_unit = 4\n[[tiers]]\nname = "a"\nnodes_per_unit = 6', "tier name 'a' is used 2 times"),
        ('[[gpus]]\nname = "h100-sxm"\nmemory_bytes = -1\n[[nodes]]\ngpu = "h100-sxm"\ncount = 1', "gpus[0].memory_bytes = -1"),
        (TREE + '[[switches]]\nname = "row-a"\nparent = "room"\nuplink_bandwidth_bytes_per_s = 1e9', "switch name 'row-a' is used 2 times"),
        (TREE + '[[switches]]\nname = "attic"', "the topology is disconnected"),
        (TREE.replace('name = "room"', 'name = ""'), "name is empty"),
        (TREE.replace('name = "room"', 'name = "room"\nparent = "row-a"\nuplink_bandwidth_bytes_per_s = 1e9'), "switches are cyclic: room -> row-a -> room"),
        (TREE.replace('switch = "row-b"', 'switch = "row-c"'), "'row-c', which is no switch"),
        (TREE.replace('parent = "room"', 'parent = "hall"', 1), "'hall', which is no switch"),
        (TREE + '[[nodes]]\nmachine = "dgx-h100"\ncount = 1\nname = "x"\nswitch = "row-a"\n' * 2, "node name 'x' is used 2 times"),
        (TREE + '[[tiers]]\nname = "leaf"\nnodes_per_unit = 2\n', "tiers and switches are both given"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused_with_its_path(tmp_path: Path, text: str, said: str) -> None:
    """Every wrong cluster file ends in a sentence that names the value."""
    assert said in cause_of(written(tmp_path, text))


def test_all_unknown_keys_are_reported_together(tmp_path: Path) -> None:
    """Three typing mistakes are found in one go, each with its path."""
    text = 'rail_optimised = true\n[[nodes]]\ngpu = "h100-sxm"\ncount = 1\ngpu_count = 8\n[[tiers]]\nname = "leaf"\nnodes_per_unit = 1\nratio = 2\n'
    found = cause_of(written(tmp_path, text))
    for key in ("rail_optimised (did you mean rail_optimized?)", "nodes[0].gpu_count", "tiers[0].ratio"):
        assert f"unknown key {key}" in found


@pytest.mark.parametrize(("key", "name"), [("gpu", "h1000-sxm"), ("machine", "dgx-h1000")])
def test_unknown_names_in_a_file_are_placed(tmp_path: Path, key: str, name: str) -> None:
    """The error says in which table of which file the unknown name stands."""
    path = written(tmp_path, f'[[nodes]]\n{key} = "{name}"\ncount = 1\n')
    with pytest.raises(InputError, match=r"cluster\.toml: nodes\[0\]: unknown"):
        catalog.cluster(path)


def test_a_graph_that_falls_apart_is_refused() -> None:
    """Islands are named, whatever drew the graph."""
    spec = catalog.cluster("dgx-h100", 16).spec
    cluster = build(spec)
    graph = cluster.graph.copy()
    graph.remove_nodes_from(g.devices_of(graph, "switch"))
    with pytest.raises(InputError, match="2 islands"):
        derive(graph, cluster.gpu)
    with pytest.raises(InputError, match="it has no GPUs"):
        derive(g.Graph(), cluster.gpu)


def test_the_graph_has_every_device() -> None:
    """Two DGX H100: GPUs, NICs, PCIe switches, an NVSwitch plane per node, one leaf per rail."""
    graph = catalog.cluster("dgx-h100", 16).graph
    counts = {
        kind: len(g.devices_of(graph, kind)) for kind in ("gpu", "nic", "pcie", "host", "nvswitch", "switch")
    }
    assert counts == {"gpu": 16, "nic": 16, "pcie": 16, "host": 2, "nvswitch": 2, "switch": 8}
    assert [unit.gpus for unit in units_at(graph, 1)] == [8, 8]


def test_bridged_pairs_are_a_level_inside_the_node() -> None:
    """Four A100 PCIe in two pairs: NVLink inside a pair, PCIe between pairs."""
    h = catalog.cluster("azure-nc96ads-a100-v4").hierarchy
    assert (h.scaleup.kind, h.scaleup.bandwidth_bytes_per_s) == ("nvlink-pairs", 300 * GB)
    assert [(level.name, level.unit_gpus, level.uplink_bytes_per_s) for level in h.levels] == [
        ("island", 2, 32 * GB)
    ]


def test_specs_are_checked_even_without_a_file() -> None:
    """A spec made by hand goes through the same rules."""
    node = NodeSpec(
        gpu="h100-sxm", count=2, gpus_per_node=8, scaleup="nvswitch", scaleup_bandwidth_bytes_per_s=float("inf"),
        host_bandwidth_bytes_per_s=GB, nics_per_node=8, nic_bandwidth_bytes_per_s=GB,
    )  # fmt: skip
    with pytest.raises(InputError, match="scaleup_bandwidth_bytes_per_s = inf"):
        build(ClusterSpec(name="hand-made", nodes=(node,)))


def test_the_clusters_of_the_documentation_build(tmp_path: Path) -> None:
    """Every TOML block of docs/clusters.md is a whole cluster file."""
    page = (Path(__file__).parents[3] / "docs" / "clusters.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in page.split("```toml\n")[1:]]
    sizes = [catalog.cluster(written(tmp_path, block)).num_gpus for block in blocks]
    assert sizes == [512, 8, 128]


def test_rail_only_and_multi_plane_fabrics_are_described() -> None:
    """One tier that joins all nodes is a switch per rail and no spine; planes are NICs of a share of the rate."""
    spec = default_cluster("h100-sxm", 512).spec
    rails = build(replace(spec, tiers=(TierSpec(name="rail", nodes_per_unit=64),))).hierarchy
    assert ([level.name for level in rails.levels], rails.rails) == (["node"], 8)
    node = replace(spec.nodes[0], nics_per_node=32, nic_bandwidth_bytes_per_s=12.5 * GB)
    planes, plain = build(replace(spec, nodes=(node,))).hierarchy, build(spec).hierarchy
    assert [level.uplink_bytes_per_s for level in planes.levels] == [50 * GB, 50 * GB]
    assert [level.unit_gpus for level in planes.levels] == [level.unit_gpus for level in plain.levels]


@pytest.mark.parametrize(
    "words", ["[torus]\ndims = [4, 4, 4]", '[[tiers]]\nname = "torus"\nrings = [4, 4, 4]']
)
def test_a_torus_is_refused_with_the_tree_of_its_bisection(words: str, tmp_path: Path) -> None:
    """Rings per dimension are no tree; the help names the oversubscription by the bisection."""
    path = tmp_path / "torus.toml"
    path.write_text(f'{words}\n[[nodes]]\nmachine = "dgx-h100"\ncount = 64\n')
    with pytest.raises(InputError, match="describes a torus, which is not planned for"):
        read_cluster(path)


def test_the_tree_of_a_torus_has_its_bisection(tmp_path: Path) -> None:
    """4 x 4 x 4 nodes of six links: 32 links cross the middle each way, a sixth of what 32 nodes could send."""
    path = tmp_path / "tree.toml"
    path.write_text(
        '[[nodes]]\nmachine = "dgx-h100"\ncount = 64\nnics_per_node = 6\ngpus_per_node = 6\n'
        '[[tiers]]\nname = "node of a torus"\nnodes_per_unit = 1\noversubscription = 6\n'
        '[[tiers]]\nname = "torus"\nnodes_per_unit = 64\n'
    )
    spec = read_cluster(path)
    link = spec.nodes[0].nic_bandwidth_bytes_per_s
    assert bisection_bytes_per_s(build(spec).hierarchy) == pytest.approx(32 * link)
