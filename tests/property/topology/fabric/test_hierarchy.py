"""What holds for every cluster: the folded graph tells the same as the full one, and more is never less."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.counts import tries
from topology.base.units import GB
from topology.builders import build, default_cluster
from topology.fabric import graph as g
from topology.fabric.axis_report import axis_bandwidth, bisection_bytes_per_s
from topology.fabric.derive import derive, unit_of_gpu
from topology.fabric.hierarchy import (
    Hierarchy,
    Level,
    all_to_all_bandwidth,
    crosses_node,
    members_per_unit,
    nodes_spanned,
    p2p_bandwidth,
    per_pair,
    ring_bandwidth,
)
from topology.fabric.link import Link
from topology.fabric.wiring import build_graph
from topology.spec import SCALEUPS, ClusterSpec, NodeSpec, SwitchSpec, TierSpec


@st.composite
def specs(draw: st.DrawFn) -> ClusterSpec:
    """Regular clusters of every kind of node, with up to three tiers and a last unit in part."""
    scaleup = draw(st.sampled_from(SCALEUPS))
    hosts_per_domain = draw(st.integers(1, 3)) if scaleup == "nvswitch" else 1
    node = NodeSpec(
        gpu="h100-sxm",
        count=draw(st.integers(1, 14)),
        gpus_per_node=draw(st.sampled_from([1, 2, 4, 6, 8])),
        scaleup=scaleup,
        scaleup_bandwidth_bytes_per_s=draw(st.sampled_from([300 * GB, 450 * GB])),
        nodes_per_domain=hosts_per_domain,
        host_bandwidth_bytes_per_s=64 * GB,
        nics_per_node=draw(st.sampled_from([1, 2, 3, 4, 8, 16])),
        nic_bandwidth_bytes_per_s=draw(st.sampled_from([12.5 * GB, 50 * GB])),
        nic_latency_s=2e-6,
    )
    sizes = [hosts_per_domain * draw(st.integers(1, 3))]
    if draw(st.booleans()):
        sizes.append(sizes[-1] * draw(st.integers(2, 3)))
    tiers = tuple(
        TierSpec(
            name=f"tier{i}", nodes_per_unit=size, oversubscription=draw(st.sampled_from([1.0, 2.0, 7.0]))
        )
        for i, size in enumerate(sizes)
    )
    nodes = (node,)
    if draw(st.booleans()):
        count = hosts_per_domain * draw(st.integers(1, 6))
        other = replace(
            node,
            count=count,
            nic_bandwidth_bytes_per_s=25 * GB,
            gpu=draw(st.sampled_from(["h100-sxm", "l40s"])),
        )
        nodes = (other, node)
    if draw(st.booleans()):
        switches = (
            SwitchSpec(name="root"),
            SwitchSpec(name="a", parent="root", uplink_bandwidth_bytes_per_s=100 * GB),
            SwitchSpec(name="b", parent="a", uplink_bandwidth_bytes_per_s=200 * GB),
        )
        placed = tuple(replace(n, switch=draw(st.sampled_from(["root", "a", "b"]))) for n in nodes)
        return ClusterSpec(name="tree", nodes=placed, switches=switches)
    return ClusterSpec(name="any", nodes=nodes, tiers=tiers, rail_optimized=draw(st.booleans()))


@settings(max_examples=tries(30, 80), deadline=None)
@given(specs())
def test_the_folded_graph_tells_what_the_full_graph_tells(spec: ClusterSpec) -> None:
    """Drawing equal units once loses nothing of the hierarchy."""
    cluster = build(spec)
    folded = derive(build_graph(cluster.spec, folded=True), cluster.gpu)
    full = derive(cluster.graph, cluster.gpu)
    assert replace(folded, levels=()) == replace(full, levels=())
    for ours, theirs in zip(folded.levels, full.levels, strict=True):
        assert (ours.name, ours.unit_gpus, ours.latency_s) == (
            theirs.name,
            theirs.unit_gpus,
            theirs.latency_s,
        )
        assert ours.uplink_bytes_per_s == pytest.approx(theirs.uplink_bytes_per_s, rel=1e-12)


@settings(max_examples=tries(20, 60), deadline=None)
@given(specs())
def test_units_are_aligned_runs_of_gpus(spec: ClusterSpec) -> None:
    """GPU i of a regular cluster is in unit ⌊i/C⌋ of every level, as the closed forms assume."""
    cluster = build(spec)
    assume(cluster.hierarchy.symmetric)
    outer = [level for level in cluster.hierarchy.levels if level.name != "island"]
    for tier, level in enumerate(outer, start=1):
        expected = tuple(gpu // level.unit_gpus for gpu in range(cluster.num_gpus))
        assert unit_of_gpu(cluster.graph, tier) == expected


def hierarchies() -> st.SearchStrategy[Hierarchy]:
    """Hierarchies of regular clusters."""
    return specs().map(lambda spec: build(spec).hierarchy)


@st.composite
def groups(draw: st.DrawFn) -> tuple[Hierarchy, int, int]:
    """A hierarchy, and the size and stride of an axis that fits it."""
    h = draw(hierarchies())
    assume(h.num_gpus > 1)
    divisors = [d for d in range(2, h.num_gpus + 1) if h.num_gpus % d == 0]
    size = draw(st.sampled_from(divisors))
    rest = h.num_gpus // size
    return h, size, draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))


def scaled(h: Hierarchy, factor: float) -> Hierarchy:
    """A hierarchy with all bandwidths multiplied."""
    levels = tuple(replace(level, uplink_bytes_per_s=level.uplink_bytes_per_s * factor) for level in h.levels)
    scaleup = replace(h.scaleup, bandwidth_bytes_per_s=h.scaleup.bandwidth_bytes_per_s * factor)
    return replace(h, levels=levels, scaleup=scaleup)


def rates(h: Hierarchy, size: int, stride: int) -> list[float]:
    """Ring, all-to-all and p2p bandwidth of an axis."""
    return [
        float(ring_bandwidth(h, size, stride)),
        float(all_to_all_bandwidth(h, size, stride)),
        float(p2p_bandwidth(h, stride, size)),
    ]


@settings(max_examples=tries(35, 100), deadline=None)
@given(groups(), st.floats(1.0, 10.0))
def test_rates_scale_with_all_bandwidths(case: tuple[Hierarchy, int, int], factor: float) -> None:
    """Twice the bandwidth everywhere is twice the rate; rates are positive and finite."""
    h, size, stride = case
    before = rates(h, size, stride)
    assert rates(scaled(h, factor), size, stride) == pytest.approx([factor * rate for rate in before])
    assert all(0 < rate < float("inf") for rate in before)


@settings(max_examples=tries(35, 100), deadline=None)
@given(groups(), st.integers(0, 5), st.floats(1.0, 10.0))
def test_a_faster_link_never_slows_an_axis(
    case: tuple[Hierarchy, int, int], which: int, factor: float
) -> None:
    """Raising one level's uplinks raises or keeps every rate."""
    h, size, stride = case
    assume(h.levels)
    index = which % len(h.levels)
    faster = replace(h.levels[index], uplink_bytes_per_s=h.levels[index].uplink_bytes_per_s * factor)
    levels = (*h.levels[:index], faster, *h.levels[index + 1 :])
    assert all(
        a >= b
        for a, b in zip(rates(replace(h, levels=levels), size, stride), rates(h, size, stride), strict=True)
    )


@settings(max_examples=tries(35, 100), deadline=None)
@given(groups())
def test_arrays_and_numbers_agree(case: tuple[Hierarchy, int, int]) -> None:
    """One code path: an array of layouts gets what each gets alone, and shapes broadcast."""
    h, size, stride = case
    sizes, strides = np.array([[size], [1]]), np.array([stride, 1, stride])
    for function in (ring_bandwidth, all_to_all_bandwidth, lambda h, g, s: p2p_bandwidth(h, s, g)):
        table = function(h, sizes, strides)
        assert table.shape == (2, 3)
        assert float(table[0, 2]) == float(function(h, size, stride))


@settings(max_examples=tries(35, 100), deadline=None)
@given(groups())
def test_a_group_spans_nodes_exactly_when_it_crosses(case: tuple[Hierarchy, int, int]) -> None:
    """One node and no crossing are the same fact; the groups themselves are counted."""
    h, size, stride = case
    first = np.arange(h.num_gpus).reshape(-1, size, stride)
    nodes = np.sort(first // h.gpus_per_node, axis=1)
    touched = 1 + (np.diff(nodes, axis=1) > 0).sum(axis=1).max()
    crosses, spans = bool(crosses_node(h, size, stride)), int(nodes_spanned(h, size, stride))
    assert crosses == (spans > 1)
    assert spans >= touched
    if h.num_gpus % h.gpus_per_node == 0:
        assert spans == touched


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 512))
def test_members_are_the_published_clamp_where_sizes_divide(size: int, stride: int, unit: int) -> None:
    """The fewest members are clamp(⌊C/s⌋, 1, g) for units and groups that nest."""
    block = size * stride
    nested = unit % block == 0 or (block % unit == 0 and (unit % stride == 0 or stride % unit == 0))
    assume(nested)
    assert int(members_per_unit(size, stride, unit)) == min(max(unit // stride, 1), size)


def test_a_group_of_one_has_no_traffic_to_bound() -> None:
    """Size one never crosses, whatever its stride."""
    h = default_cluster("h100-sxm", 64).hierarchy
    assert not bool(crosses_node(h, 1, 48))
    assert rates(h, 1, 48) == [450 * GB] * 3


def test_bandwidth_of_a_mesh_of_pairs() -> None:
    """MI300X: a pair has one link of seven, so two GPUs get a seventh of what eight get."""
    h = default_cluster("mi300x", 8).hierarchy
    two, eight = ring_bandwidth(h, np.array([2, 8]), 1)
    assert (float(two) / GB, float(eight) / GB) == (64.0, 448.0)
    assert float(all_to_all_bandwidth(h, 2, 1)) / GB == 128.0
    assert float(p2p_bandwidth(h, 1)) / GB == 64.0


def test_known_rates_of_an_oversubscribed_cluster() -> None:
    """On a 2:1 fabric dp has 32 members to share a leaf's uplinks, pp across leaves one; the bound is named."""
    h = default_cluster("h100-sxm", 512, oversubscription=2.0).hierarchy
    tp, dp = axis_bandwidth(h, "tp", 8, 1), axis_bandwidth(h, "dp", 64, 8)
    assert (tp.ring_bytes_per_s, tp.bound_by, tp.nodes) == (450 * GB, "nvswitch", 1)
    assert (dp.ring_bytes_per_s, dp.bound_by, dp.nodes) == (50 * GB, "node uplink", 64)
    assert dp.all_to_all_bytes_per_s == 50 * GB
    pp = axis_bandwidth(h, "pp", 2, 256)
    assert (pp.ring_bytes_per_s, pp.p2p_bytes_per_s, pp.bound_by) == (25 * GB, 25 * GB, "leaf uplink")
    assert bisection_bytes_per_s(h) == 256 * 25 * GB


def test_levels_are_plain_values() -> None:
    """A hierarchy may be made by hand, for tests and what-ifs."""
    gpu = default_cluster("h100-sxm", 1).gpu
    link = Link(kind="nvswitch", bandwidth_bytes_per_s=450 * GB)
    node = Level(name="node", unit_gpus=8, uplink_bytes_per_s=50 * GB, latency_s=0.0)
    h = Hierarchy(
        gpu=gpu, num_gpus=16, gpus_per_node=8, gpus_per_host=8, scaleup=link, nic=None, nics_per_node=8, rails=8,
        levels=(node,),
    )  # fmt: skip
    assert hash(h) == hash(replace(h))
    assert float(ring_bandwidth(h, 16, 1)) == 400 * GB


def test_sixteen_thousand_gpus_cost_what_a_few_hundred_vertices_cost() -> None:
    """The hierarchy of 16,384 GPUs is derived from under 1,500 vertices."""
    cluster = default_cluster("h100-sxm", 16384, oversubscription=2.0)
    folded = build_graph(cluster.spec, folded=True)
    assert len(folded) < 1500
    assert len(g.devices_of(folded, "gpu")) == 8
    assert [level.unit_gpus for level in cluster.hierarchy.levels] == [8, 256, 1024]


def test_the_planner_asks_for_many_groups_at_once() -> None:
    """A column of groups is answered in one call, each as if it were asked alone."""
    h = default_cluster("h100-sxm", 16384, oversubscription=2.0).hierarchy
    sizes = 2 ** np.random.default_rng(0).integers(0, 8, 200_000)
    strides = 2 ** np.random.default_rng(1).integers(0, 7, 200_000)
    found = ring_bandwidth(h, sizes, strides)
    sampled = np.arange(0, 200_000, 20_000)
    alone = [float(ring_bandwidth(h, int(sizes[i]), int(strides[i]))) for i in sampled]
    assert found[sampled].tolist() == alone
    assert per_pair(ring_bandwidth, h, sizes, strides).tolist() == found.tolist()
