"""The figures of a cluster's links, as the pairs of its hosts have measured them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from executor.bench.node_links import NodeLinks
from executor.bench.node_pairs import boundaries_of, medians
from topology.cluster import Cluster
from topology.pools.kinds import kinds_of
from topology.spec import ClusterSpec, NodeSpec, TierSpec

KEPT = "nodes are of several kinds: their figures stay, only what was measured is kept"


def with_links(cluster: Cluster, links: NodeLinks) -> tuple[ClusterSpec, tuple[str, ...]]:
    """The cluster with measured bandwidths and latencies, and what was changed or could not be.

    Hosts that share the innermost unit say what their NICs have (the links of a scale-up domain, where that
    is it); pairs that cross a tier what is left of it there, and how much later a message arrives.
    """
    spec, usual = cluster.spec, medians(links.pairs)
    if len(kinds_of(spec)) > 1:
        return spec, (KEPT,)
    values = [(level.name, *usual[level.name][1:]) for level in boundaries_of(cluster) if level.name in usual]
    domain = (
        spec.nodes[0].nodes_per_domain > 1 and bool(values) and values[0][0] == boundaries_of(cluster)[0].name
    )
    nodes = tuple(_of_nodes(node, links.ranks_per_host, values, domain=domain) for node in spec.nodes)
    fabric = values[1:] if domain else values
    tiers = tuple(_of_tier(tier, fabric) for tier in spec.tiers)
    notes = (
        ["uplinks of named switches stay as they are: a pair is not their whole load"]
        if spec.switches
        else []
    )
    return replace(spec, nodes=nodes, tiers=tiers), tuple(notes)


def _of_nodes(
    node: NodeSpec, ranks: int, values: Sequence[tuple[str, float, float]], *, domain: bool
) -> NodeSpec:
    """Its NICs, each a rank's or several ranks' share; links of its domain where hosts share one."""
    if domain:
        _, latency_s, rate = values[0]
        node = replace(node, scaleup_bandwidth_bytes_per_s=rate / ranks, scaleup_latency_s=latency_s)
        values = values[1:]
    if not values:
        return node
    _, latency_s, rate = values[0]
    per_nic = rate / min(ranks, node.nics_per_node)
    return replace(node, nic_bandwidth_bytes_per_s=per_nic, nic_latency_s=latency_s)


def _of_tier(tier: TierSpec, values: Sequence[tuple[str, float, float]]) -> TierSpec:
    """What pairs that cross it have, beside those within: of a message that goes up and down again."""
    names = [name for name, *_ in values]
    if tier.name not in names or tier.name == names[-1]:
        return tier
    (_, inside_s, inside), (_, across_s, across) = values[names.index(tier.name) :][:2]
    return replace(
        tier,
        oversubscription=max(1.0, inside / across),
        latency_s=max(0.0, (across_s - inside_s) / 2),
    )
