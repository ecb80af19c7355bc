"""Seconds of a collective over a group of GPUs: measured inside a node, a calibrated closed form above it.

Legend: n = size of the group, N = nodes (scale-up domains) it spans, stride = GPUs between consecutive
members, B = message bytes, W = bus bandwidth that the hierarchy allows. `message_bytes` follows nccl-tests:
the reduced buffer of an all-reduce, the gathered total of all-gather and reduce-scatter, what one GPU holds
to send in an all-to-all, the message of a p2p or broadcast. Every group of the axis communicates at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from costmodel.kernels.grids import KernelTime, floats, stacked
from costmodel.kernels.nccl_tables import node_seconds, node_source
from costmodel.kernels.tables import Calibration, measured_ratio
from topology.base.arrays import Floats, Mask
from topology.base.errors import InputError
from topology.fabric.hierarchy import (
    Counts,
    Hierarchy,
    all_to_all_bandwidth,
    crosses_node,
    distinct_pairs,
    members_per_unit,
    nodes_spanned,
    p2p_bandwidth,
    per_pair,
    reduction_depth,
    ring_bandwidth,
)

TWO_NODES = 2
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "broadcast")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """The groups of one axis on a hierarchy: what every collective over them needs to know.

    `inside` counts the members that share a node; `nodes` and `ring_bytes_per_s` matter when `leaves` is true
    (some group spans nodes).
    """

    size: Counts
    stride: Counts
    leaves: bool
    crosses: Mask
    inside: Counts
    nodes: Counts
    ring_bytes_per_s: Floats


def group_of(h: Hierarchy, size: ArrayLike, stride: ArrayLike) -> Group:
    """Return the groups of `size` members, `stride` GPUs apart; one serves all collectives of an axis."""
    n, s = np.broadcast_arrays(np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64))
    pair_n, pair_s, which = distinct_pairs(n, s)
    crosses = crosses_node(h, pair_n, pair_s)
    if not crosses.any():
        return Group(
            size=n, stride=s, leaves=False, crosses=np.zeros(n.shape, dtype=np.bool_), inside=n,
            nodes=np.ones((), dtype=np.int64), ring_bytes_per_s=np.full((), h.scaleup.bandwidth_bytes_per_s),
        )  # fmt: skip
    return Group(
        size=n,
        stride=s,
        leaves=True,
        crosses=crosses[which],
        inside=np.where(crosses, members_per_unit(pair_n, pair_s, h.gpus_per_node), pair_n)[which],
        nodes=nodes_spanned(h, pair_n, pair_s)[which],
        ring_bytes_per_s=ring_bandwidth(h, pair_n, pair_s)[which],
    )


def collective_time(
    cal: Calibration, h: Hierarchy, op: str, message_bytes: ArrayLike, size: ArrayLike, stride: ArrayLike
) -> Floats:
    """Seconds of one collective; zero for a group of one or an empty message (see `collective`).

    Many layouts leave many groups idle, so only the others are looked up.
    """
    b, n, s = np.broadcast_arrays(floats(message_bytes), np.asarray(size), np.asarray(stride))
    busy = (n > 1) & (b > 0)
    if busy.all():
        return collective(cal, h, op, b, group_of(h, n, s)).seconds
    seconds = np.zeros(b.shape)
    if busy.any():
        seconds[busy] = collective(cal, h, op, b[busy], group_of(h, n[busy], s[busy])).seconds
    return seconds


def collective(cal: Calibration, h: Hierarchy, op: str, message_bytes: ArrayLike, group: Group) -> KernelTime:
    """Seconds of one collective, where it was extrapolated, and from what.

    Inside a node the measured table is read; across nodes `network_seconds` continues from it.

    Args:
        cal: tables.
        h: the hierarchy of the cluster.
        op: one of `OPS`.
        message_bytes: B.
        group: the groups of the axis.
    """
    if op not in OPS:
        raise InputError(f"unknown collective {op}", f"known are {', '.join(OPS)}", "choose one of these")
    b = floats(message_bytes)
    seconds, beyond = node_seconds(cal, h, op, b, group.inside, group.stride)
    source = node_source(cal, h)
    if group.leaves:
        seconds = np.where(group.crosses, network_seconds(cal, h, op, b, group, seconds), seconds)
        beyond = beyond | group.crosses
        source = f"{source}; across nodes a closed form on the hierarchy"
    if cal.measurements:
        seconds = _corrected(cal, h, op, b, group, seconds)
    seconds = np.where((group.size > 1) & (b > 0), seconds, 0.0)
    flagged = np.broadcast_to(beyond, seconds.shape)
    return KernelTime(seconds=seconds, extrapolated=flagged, source=source)


def network_seconds(
    cal: Calibration, h: Hierarchy, op: str, message_bytes: Floats, group: Group, node_part: Floats
) -> Floats:
    """Seconds of a collective whose group spans N > 1 nodes.

        ring        t = t1·log2 N + max(t0 + x, in-node) + s·x/(x + x_h),   x = k·(n−1)/n·B/(e·W)
                    s = s0 + k·[(n − N)·α_in + N·α_out],   k = 2 for all-reduce, else 1
        tree        the same with x/e_tree and s = s0 + 2·log2 N·α_out (all-reduce takes the faster)
        in network  switches of D tiers add up: x = B/(e·W), s = s0 + 2·D·α_out (where all of them can)
        all-to-all  t = max(t0 + x, in-node) + s_a·x/(x + x_h),   x = B/(e·algbw)
        p2p         t = α_p2p + B/(e·p2p bandwidth)

    s is what filling the pipeline of n steps costs; a message too small to be cut into n worthwhile chunks
    does not pay it in full, hence the saturation. Two nodes exchange halves directly, so an all-reduce then
    sends B per node instead of 2(n−1)/n·B. Domains larger than a DGX node drive only as many NICs as the
    library has channels for.

    Args:
        cal: tables.
        h: the hierarchy of the cluster.
        op: one of `OPS`.
        message_bytes: B.
        group: the groups of the axis.
        node_part: seconds of the same collective among the members inside one node.

    Source: constants fitted on nccl_published.csv and SimAI's scaling efficiencies (fits.json "network").
    """
    net = cal.network()
    if op == "p2p":
        rate = p2p_bandwidth(h, group.stride, group.size)
        return np.asarray(net["p2p_s"] + message_bytes / (net["efficiency"] * rate))
    if op == "all_to_all":
        rate = per_pair(all_to_all_bandwidth, h, group.size, group.stride)
        x = message_bytes / (net["efficiency"] * rate)
        fill = net["all_to_all_fill_s"] * x / (x + net["half_s"])
        return np.asarray(np.maximum(net["base_s"] + x, node_part) + fill)
    n, nodes = group.size, group.nodes
    phases = 2.0 if op == "all_reduce" else 1.0
    share = phases * (n - 1) / n
    boost = np.where(nodes == TWO_NODES, share, 1.0) if op == "all_reduce" else np.ones(())
    x = share * message_bytes / _network_rate(h, net, group, boost)
    base, hops = net["base_s"], net["hop_s"] * np.log2(nodes)
    fill = net["fill_s"] + phases * ((n - nodes) * net["step_inside_s"] + nodes * net["step_outside_s"])
    ring = hops + np.maximum(base + x, node_part) + fill * x / (x + net["half_s"])
    if op != "all_reduce":
        return np.asarray(ring)
    slow = x / net["tree_share"]
    climb = net["fill_s"] + 2 * np.log2(nodes) * net["step_outside_s"]
    tree = hops + np.maximum(base + slow, node_part) + climb * slow / (slow + net["half_s"])
    values = np.minimum(ring, tree)
    depth = reduction_depth(h, n, group.stride)
    if not depth.any():
        return np.asarray(values)
    once = message_bytes / _network_rate(h, net, group, np.ones(()))
    up_down = net["fill_s"] + 2 * depth * net["step_outside_s"]
    reduced = hops + np.maximum(base + once, node_part) + up_down * once / (once + net["half_s"])
    return np.asarray(np.where(depth > 0, np.minimum(values, reduced), values))


def _network_rate(h: Hierarchy, net: Mapping[str, float], group: Group, boost: Floats) -> Floats:
    """Return the bus bandwidth of a ring across nodes in bytes/s, with efficiency and channel limit."""
    rate = group.ring_bytes_per_s * boost
    if h.nic is not None:
        widest = np.minimum(group.inside, net["ring_nics"])
        rate = np.minimum(rate, widest * h.nic.bandwidth_bytes_per_s * boost)
    return np.asarray(net["efficiency"] * rate)


def _corrected(
    cal: Calibration, h: Hierarchy, op: str, message_bytes: Floats, group: Group, seconds: Floats
) -> Floats:
    """Return seconds pulled to the user's own measurements of this collective, if any."""
    mine = cal.measured(op, h.gpu)
    if not mine:
        return seconds
    b, n, s = np.array([[m.inputs[key] for m in mine] for key in ("bytes", "size", "stride")])
    plain = Calibration(directory=cal.directory, tables=cal.tables)
    ratios = np.array([m.value for m in mine]) / collective_time(plain, h, op, b, n, s)
    at = stacked(message_bytes, group.size.astype(np.float64), group.stride.astype(np.float64))
    return seconds * measured_ratio(np.stack([b, n, s]), ratios, np.maximum(at, 1.0))
