"""Closed-form bandwidths equal explicit flows, link by link, on the whole graph of small clusters.

The oracle routes every flow of every group of an axis at once: through the scale-up switch inside a
domain; otherwise from the sender's NICs over all shortest switch paths (ECMP, evenly) to the receiver's
NICs. On rails a flow first moves, inside its node, to the GPU on the receiver's rail (PXN).
"""

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise, permutations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.counts import tries
from topology.base.units import GB
from topology.builders import build
from topology.cluster import Cluster
from topology.fabric import graph as g
from topology.fabric.hierarchy import all_to_all_bandwidth, p2p_bandwidth, ring_bandwidth
from topology.fabric.mesh import Mesh, mesh
from topology.spec import ClusterSpec, NodeSpec, TierSpec

SCALEUP = 450 * GB
NIC = 50 * GB


class Flows:
    """Loads per directed link of a cluster, as multiples of the rate being asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self.graph = cluster.graph
        self.node = cluster.spec.nodes[0]
        self.rails = cluster.spec.rail_optimized
        network = [d for d in self.graph if g.kind(self.graph, d) in ("nic", "switch")]
        self.network = self.graph.subgraph(network).copy()
        self.shares = cache(self.links)
        self.load: dict[tuple[str, str], float] = defaultdict(float)
        self.paths = cache(
            lambda a, b: [tuple(pairwise(p)) for p in nx.all_shortest_paths(self.network, a, b)]
        )

    def host(self, gpu: int) -> int:
        """Host of a GPU."""
        return gpu // self.node.gpus_per_node

    def domain(self, gpu: int) -> int:
        """Scale-up domain of a GPU."""
        return self.host(gpu) // self.node.nodes_per_domain

    def nics(self, gpu: int) -> list[str]:
        """NICs on a GPU's PCIe switch."""
        (switch,) = [d for d in self.graph.adj[f"gpu{gpu}"] if g.kind(self.graph, d) == "pcie"]
        return [d for d in self.graph.adj[switch] if g.kind(self.graph, d) == "nic"]

    def links(self, sender: int, receiver: int) -> dict[tuple[str, str], float]:
        """Return the share of a flow that each directed link carries."""
        share: dict[tuple[str, str], float] = defaultdict(float)
        if self.domain(sender) == self.domain(receiver):
            self._inside(share, sender, receiver)
            return share
        leaving = sender
        if self.rails:
            leaving = self.host(sender) * self.node.gpus_per_node + receiver % self.node.gpus_per_node
            self._inside(share, sender, leaving)
        sources, targets = self.nics(leaving), self.nics(receiver)
        for a, b in zip(sources, targets, strict=True):
            paths = self.paths(a, b)
            for path in paths:
                for link in path:
                    share[link] += 1 / len(sources) / len(paths)
        return share

    def _inside(self, share: dict[tuple[str, str], float], sender: int, receiver: int) -> None:
        if sender != receiver:
            (switch,) = [d for d in self.graph.adj[f"gpu{sender}"] if g.kind(self.graph, d) == "nvswitch"]
            share[f"gpu{sender}", switch] += 1.0
            share[switch, f"gpu{receiver}"] += 1.0

    def add(self, sender: int, receiver: int, amount: float) -> None:
        """Add a flow of an amount to the links it takes."""
        for link, share in self.shares(sender, receiver).items():
            self.load[link] += share * amount

    def capacity(self, link: tuple[str, str]) -> float:
        """Bandwidth of a link in one direction."""
        return g.link_between(self.graph, *link).bandwidth_bytes_per_s

    def rate(self) -> float:
        """Return the largest rate at which no link is overloaded."""
        return min(self.capacity(link) / load for link, load in self.load.items())


def ring_rate(cluster: Cluster, ranks: Mesh, axis: str) -> float:
    """Bus bandwidth of rings: one channel per member of a group's smallest part, all groups at once."""
    flows = Flows(cluster)
    for group in ranks.groups(axis):
        runs: dict[int, list[int]] = defaultdict(list)
        for gpu in group:
            runs[flows.domain(gpu)].append(gpu)
        parts = list(runs.values())
        channels = min(map(len, parts))
        for channel in range(channels):
            for part, following in zip(parts, parts[1:] + parts[:1], strict=True):
                walk = part[channel + 1 :] + part[: channel + 1]  # leaves its part at member `channel`
                for sender, receiver in pairwise(walk):
                    flows.add(sender, receiver, 1 / channels)
                flows.add(walk[-1], following[channel] if len(parts) > 1 else walk[0], 1 / channels)
    return flows.rate()


def all_to_all_rate(cluster: Cluster, ranks: Mesh, axis: str) -> float:
    """Algorithm bandwidth of all-to-all: every member sends 1/g of its buffer to each other member."""
    flows = Flows(cluster)
    for group in ranks.groups(axis):
        for sender, receiver in permutations(group, 2):
            flows.add(sender, receiver, 1 / len(group))
    return flows.rate()


def p2p_rate(cluster: Cluster, ranks: Mesh, axis: str) -> float:
    """Rate of the slowest hop when every member sends to the next, links shared evenly."""
    flows = Flows(cluster)
    hops = [hop for group in ranks.groups(axis) for hop in pairwise(group)]
    for sender, receiver in hops:
        flows.add(sender, receiver, 1.0)
    return flows.rate()


def small_cluster(
    *,
    nodes: int,
    gpus_per_node: int = 4,
    nics_per_node: int | None = None,
    nodes_per_domain: int = 1,
    tiers: tuple[tuple[int, float], ...] = (),
    rails: bool = True,
) -> Cluster:
    """A cluster of a few nodes whose tiers are (nodes per unit, oversubscription)."""
    node = NodeSpec(
        gpu="h100-sxm",
        count=nodes,
        gpus_per_node=gpus_per_node,
        scaleup="nvswitch",
        scaleup_bandwidth_bytes_per_s=SCALEUP,
        nodes_per_domain=nodes_per_domain,
        host_bandwidth_bytes_per_s=10 * NIC,
        nics_per_node=gpus_per_node if nics_per_node is None else nics_per_node,
        nic_bandwidth_bytes_per_s=NIC,
    )
    named = tuple(
        TierSpec(name=name, nodes_per_unit=unit, oversubscription=ratio)
        for name, (unit, ratio) in zip(("leaf", "spine"), tiers, strict=False)
    )
    return build(ClusterSpec(name="small", nodes=(node,), tiers=named, rail_optimized=rails))


def assert_equal_to_flows(cluster: Cluster, ranks: Mesh) -> None:
    """Every axis longer than one GPU has, in closed form, the bandwidth of its explicit flows."""
    h = cluster.hierarchy
    for axis, size in ranks.axes:
        if size > 1:
            stride = ranks.stride(axis)
            closed = (
                float(ring_bandwidth(h, size, stride)),
                float(all_to_all_bandwidth(h, size, stride)),
                float(p2p_bandwidth(h, stride, size)),
            )
            explicit = (
                ring_rate(cluster, ranks, axis),
                all_to_all_rate(cluster, ranks, axis),
                p2p_rate(cluster, ranks, axis),
            )
            assert closed == pytest.approx(explicit, rel=1e-9), (axis, size, stride)


ORDERS = (
    ("pp", "dp", "cp", "tp"),
    ("dp", "pp", "cp", "tp"),
    ("tp", "dp", "pp", "cp"),
    ("cp", "tp", "pp", "dp"),
)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("ratio", [1.0, 2.0, 4.0])
@pytest.mark.parametrize(
    "sizes", [{"tp": 4, "cp": 2, "dp": 2, "pp": 2}, {"tp": 2, "cp": 1, "dp": 4, "pp": 4}], ids=str
)
def test_rails_with_powers_of_two(order: tuple[str, ...], ratio: float, sizes: dict[str, int]) -> None:
    """On a rail-optimised leaf-spine-core every order of the axes gets what explicit flows get."""
    cluster = small_cluster(nodes=8, tiers=((2, ratio), (4, 2.0)))
    assert_equal_to_flows(cluster, mesh([(axis, sizes[axis]) for axis in order]))


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("ratio", [1.0, 4.0])
def test_rails_with_other_group_sizes(order: tuple[str, ...], ratio: float) -> None:
    """On rails, groups of 3 and 6 nodes and leaves of 3 nodes get what explicit flows get."""
    cluster = small_cluster(nodes=12, tiers=((3, ratio), (6, 1.5)))
    sizes = {"tp": 4, "cp": 1, "dp": 3, "pp": 4}
    if order[-1] == "tp":
        assert_equal_to_flows(cluster, mesh([(axis, sizes[axis]) for axis in order]))
    else:
        aligned = [axis for axis in order if axis != "tp"] + ["tp"]
        assert_equal_to_flows(
            cluster, mesh([(axis, sizes[axis]) for axis in reversed(aligned[:-1])] + [("tp", 4)])
        )


@pytest.mark.parametrize(
    ("nodes", "axes"),
    [
        (6, [("dp", 8), ("tp", 3)]),
        (12, [("dp", 8), ("tp", 6)]),
        (12, [("pp", 4), ("dp", 2), ("tp", 6)]),
        (12, [("pp", 3), ("tp", 4), ("dp", 4)]),
        (12, [("tp", 12), ("dp", 4)]),
        (12, [("dp", 4), ("tp", 12)]),
        (12, [("dp", 16), ("tp", 3)]),
        (20, [("dp", 8), ("tp", 10)]),
        (18, [("pp", 6), ("dp", 12)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("ratio", [1.0, 3.0, 8.0])
def test_groups_that_do_not_fit_units(nodes: int, axes: list[tuple[str, int]], ratio: float) -> None:
    """Groups of 3, 6, 10 or 12 cut across nodes and leaves; the closed form finds the busiest unit."""
    cluster = small_cluster(nodes=nodes, tiers=((2, ratio),), rails=False)
    assert_equal_to_flows(cluster, mesh(axes))


@pytest.mark.parametrize(
    "axes",
    [[("dp", 2), ("tp", 16)], [("dp", 16), ("tp", 2)], [("pp", 4), ("tp", 8)], [("tp", 4), ("dp", 8)]],
    ids=str,
)
@pytest.mark.parametrize("nics", [2, 4, 8])
def test_more_and_fewer_nics_than_gpus(axes: list[tuple[str, int]], nics: int) -> None:
    """Two GPUs on one NIC share it, and a GPU with two NICs uses both."""
    cluster = small_cluster(nodes=8, nics_per_node=nics, tiers=((4, 2.0),), rails=False)
    assert_equal_to_flows(cluster, mesh(axes))


@pytest.mark.parametrize(
    "axes", [[("dp", 4), ("tp", 16)], [("pp", 8), ("dp", 2), ("tp", 4)], [("ep", 32), ("tp", 2)]], ids=str
)
def test_scale_up_domains_of_several_hosts(axes: list[tuple[str, int]]) -> None:
    """Four hosts of four GPUs in one NVLink domain are one node, as a rack of trays is."""
    cluster = small_cluster(nodes=16, nodes_per_domain=4, tiers=((8, 2.0),), rails=False)
    assert cluster.hierarchy.gpus_per_node == 16
    assert_equal_to_flows(cluster, mesh(axes))


def factorizations(total: int) -> list[tuple[int, int, int]]:
    """All ordered ways to write a number as a product of three."""
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    return [(a, b, total // a // b) for a in divisors for b in divisors if total // a % b == 0]


@st.composite
def clusters_and_meshes(draw: st.DrawFn) -> tuple[Cluster, Mesh]:
    """Clusters with leaves of 1 to 4 nodes, spines of 2 leaves or none, and any three axes over them."""
    per_leaf = draw(st.integers(1, 4))
    leaves = draw(st.sampled_from([2, 4, 6]))
    tiers = [(per_leaf, draw(st.sampled_from([1.0, 2.0, 3.0, 7.0])))]
    if draw(st.booleans()):
        tiers.append((2 * per_leaf, draw(st.sampled_from([1.0, 4.0]))))
    nodes, gpus_per_node = per_leaf * leaves, draw(st.sampled_from([2, 3, 4]))
    cluster = small_cluster(nodes=nodes, gpus_per_node=gpus_per_node, tiers=tuple(tiers), rails=False)
    sizes = draw(st.sampled_from(factorizations(cluster.num_gpus)))
    return cluster, mesh([("pp", sizes[0]), ("dp", sizes[1]), ("tp", sizes[2])])


@settings(max_examples=tries(15, 40), deadline=None)
@given(clusters_and_meshes())
def test_any_factorization_of_any_small_cluster(case: tuple[Cluster, Mesh]) -> None:
    """Whatever the factors, the closed form is the explicit flow; no special case is left out."""
    assert_equal_to_flows(*case)


@settings(max_examples=tries(15, 40), deadline=None)
@given(st.integers(2, 4), st.integers(1, 2), st.sampled_from([1.0, 3.0, 8.0]), st.booleans(), st.data())
def test_a_last_unit_in_part_is_never_flattered(
    per_leaf: int, leaves: int, ratio: float, rails: bool, data: st.DataObject
) -> None:
    """With fewer nodes in the last leaf, the closed form is at most what explicit flows get."""
    nodes = per_leaf * leaves + data.draw(st.integers(1, per_leaf - 1))
    cluster = small_cluster(nodes=nodes, tiers=((per_leaf, ratio),), rails=rails)
    sizes = data.draw(st.sampled_from(factorizations(nodes)))
    ranks = mesh([("pp", sizes[0]), ("dp", sizes[1]), ("cp", sizes[2]), ("tp", 4)])
    h = cluster.hierarchy
    for axis, size in ranks.axes:
        if size > 1:
            stride, slack = ranks.stride(axis), 1 + 1e-9
            assert float(ring_bandwidth(h, size, stride)) <= slack * ring_rate(cluster, ranks, axis)
            assert float(all_to_all_bandwidth(h, size, stride)) <= slack * all_to_all_rate(
                cluster, ranks, axis
            )
            assert float(p2p_bandwidth(h, stride, size)) <= slack * p2p_rate(cluster, ranks, axis)


def test_rank_order_decides_what_an_axis_gets() -> None:
    """16,384 GPUs, tp8 cp2 dp64 pp16, 1:7 at the top: tp-dp-pp-cp drops CP from 50 to 7.1 GB/s."""
    node = small_cluster(nodes=1, gpus_per_node=8).spec.nodes[0]
    tiers = (
        TierSpec(name="leaf", nodes_per_unit=32),
        TierSpec(name="spine", nodes_per_unit=384, oversubscription=7),
    )
    spec = ClusterSpec(name="7:1", nodes=(NodeSpec(**{**_fields(node), "count": 2048}),), tiers=tiers)
    h = build(spec).hierarchy
    good, bad = ring_bandwidth(h, np.array([2, 2]), np.array([8, 8192]))
    assert (round(float(good) / GB, 1), round(float(bad) / GB, 1)) == (50.0, 7.1)


def _fields(node: NodeSpec) -> dict[str, object]:
    return {name: getattr(node, name) for name in node.__dataclass_fields__}


@pytest.mark.parametrize("ratio", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("units", [(3, 2, 1), (4, 1, 1), (1, 3, 2)], ids=str)
@pytest.mark.parametrize(
    "axes", [[("dp", 6), ("tp", 4)], [("pp", 2), ("dp", 3), ("tp", 4)], [("dp", 12), ("tp", 2)]], ids=str
)
def test_racks_that_differ_promise_no_more_than_their_flows(
    axes: list[tuple[str, int]], units: tuple[int, ...], ratio: float
) -> None:
    """Units of unequal size are planned for by their common part: at most what explicit flows get, and all of it at 1:1."""
    spec = small_cluster(nodes=6, tiers=((max(units), ratio),)).spec
    cluster = build(replace(spec, tiers=(replace(spec.tiers[0], units=units),)))
    h, ranks = cluster.hierarchy, mesh(axes)
    for axis, size in ranks.axes:
        stride = ranks.stride(axis)
        ring, explicit = float(ring_bandwidth(h, size, stride)), ring_rate(cluster, ranks, axis)
        assert ring <= explicit * (1 + 1e-9), (axis, size, stride)
        if ratio == 1:
            assert ring == pytest.approx(explicit, rel=1e-9)
        assert float(all_to_all_bandwidth(h, size, stride)) <= all_to_all_rate(cluster, ranks, axis) * (
            1 + 1e-9
        )
