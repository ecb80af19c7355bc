"""The hierarchy of a cluster: what the planner reads instead of the graph, in microseconds.

Legend: level ℓ has units of `C` GPUs, each GPU owning `β` bytes/s of the links that leave its unit; a
group of an axis has `g` members (`size`) `s` GPUs apart (`stride`), groups repeat every `L = g·s` GPUs,
`d = gcd(C, L)` is the finest shift of a unit boundary inside a block of `L`, and `m = max(1, ⌊d/s⌋)` is
the fewest members a group has in a unit it does not fit into (`m = g`: it fits). Every rank of an axis
communicates at once, as one program on all GPUs does.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from topology.fabric.link import Link
from topology.hardware.gpu import Gpu

Counts = npt.NDArray[np.int64]
Count = int | Counts
Rate = npt.NDArray[np.float64]

FEW_PAIRS = 64  # groups that are priced faster one by one than sorted into distinct pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Units of `unit_gpus` GPUs; `uplink_bytes_per_s` is one GPU's share of what leaves its unit.

    `latency_s` is the one-way time of an empty message that crosses this boundary and no outer one;
    `reduces` whether the switches that join the units add up what is all-reduced through them (SHARP).
    """

    name: str
    unit_gpus: int
    uplink_bytes_per_s: float
    latency_s: float
    reduces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Levels inner to outer, each a boundary that traffic may cross; the whole cluster is not a level.

    `gpus_per_node` is the size of the scale-up domain: 8 in a DGX, 72 in an NVL72 rack, whose hosts
    have `gpus_per_host` = 4. `nics_per_node` is counted per host. `rails` is the number of separate leaf
    planes one host's NICs reach (1 when all of them share a leaf).
    """

    gpu: Gpu
    num_gpus: int
    gpus_per_node: int
    gpus_per_host: int
    scaleup: Link
    nic: Link | None
    nics_per_node: int
    rails: int
    levels: tuple[Level, ...]
    symmetric: bool = True
    notes: tuple[str, ...] = ()


def through_hosts(h: Hierarchy) -> Hierarchy:
    """The same where no GPU reads another's memory: what they send inside a node passes their host's."""
    return replace(h, gpu=replace(h.gpu, peer_to_peer=False), scaleup=replace(h.scaleup, kind="pcie"))


def members_per_unit(size: Count, stride: Count, unit_gpus: Count) -> Counts:
    """Return the fewest members a group has in a unit it touches; equal to `size` when it stays inside.

    `m = max(1, ⌊gcd(C, s·g) / s⌋)`, which is `clamp(⌊C/s⌋, 1, g)` when sizes divide each other.

    >>> members_per_unit(np.array([8, 16, 6]), np.array([1, 2, 1]), 8)
    array([8, 4, 2])

    Args:
        size: members of a group, g.
        stride: GPUs between consecutive members, s.
        unit_gpus: GPUs of a unit, C.
    """
    size, stride = np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64)
    common = np.gcd(np.asarray(unit_gpus, dtype=np.int64), size * stride)
    return np.asarray(np.maximum(1, common // stride))


def crosses_node(h: Hierarchy, size: Count, stride: Count) -> npt.NDArray[np.bool_]:
    """Return whether some group of the axis leaves a scale-up domain."""
    members = members_per_unit(size, stride, h.gpus_per_node)
    return np.asarray((h.num_gpus > h.gpus_per_node) & (members < np.asarray(size)))


def nodes_spanned(h: Hierarchy, size: Count, stride: Count) -> Counts:
    """Return the most scale-up domains one group touches, 1 inside one node.

    `min(g, 1 + ⌊(o + (g−1)·s) / C⌋)`, o = min(C, C − d + s) − 1 the last place in a node a group starts.
    """
    size, stride = np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64)
    unit = h.gpus_per_node
    start = np.minimum(unit, unit - np.gcd(unit, size * stride) + stride) - 1
    touched = 1 + (start + (size - 1) * stride) // unit
    return np.asarray(np.where(crosses_node(h, size, stride), np.minimum(size, touched), 1))


def per_pair(
    rate: Callable[[Hierarchy, Counts, Counts], Rate], h: Hierarchy, size: Counts, stride: Counts
) -> Rate:
    """Return a bandwidth of many groups, worked out once per distinct pair of size and stride.

    Args:
        rate: `ring_bandwidth` or `all_to_all_bandwidth`.
        h: the hierarchy.
        size: members of each group, any shape.
        stride: GPUs between consecutive members, of the same shape.
    """
    pair_size, pair_stride, which = distinct_pairs(size, stride)
    return rate(h, pair_size, pair_stride)[which]


def distinct_pairs(size: Counts, stride: Counts) -> tuple[Counts, Counts, Counts]:
    """Return the distinct pairs of sizes and strides of one shape, and which of them each group has.

    Few groups are returned one by one: to price them takes less than to sort them.
    """
    if size.size < FEW_PAIRS:
        return size.ravel(), stride.ravel(), np.arange(size.size).reshape(size.shape)
    span = int(stride.max()) + 1
    pairs, which = np.unique((size * span + stride).ravel(), return_inverse=True)
    return pairs // span, pairs % span, which.reshape(size.shape)


def reduction_depth(h: Hierarchy, size: Count, stride: Count) -> Counts:
    """Return the tiers of switches that add up an all-reduce of an axis; 0 unless all that it crosses do."""
    size, stride = np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64)
    network = [level for level in h.levels if level.unit_gpus >= h.gpus_per_node]
    depth = np.zeros(np.broadcast_shapes(size.shape, stride.shape), dtype=np.int64)
    if not any(level.reduces for level in network):
        return depth
    able = np.ones(depth.shape, dtype=bool)
    for level in network:
        crossed = members_per_unit(size, stride, level.unit_gpus) < size
        depth = depth + crossed
        able &= ~crossed | level.reduces
    return np.asarray(np.where(able, depth, 0))


def reduction_words(h: Hierarchy) -> tuple[str, ...]:
    """Return one sentence on where switches add up all-reduces, none where they do not."""
    names = [level.name for level in h.levels if level.reduces]
    if not names:
        return ()
    crossed = ", ".join(names)
    return (f"all-reduces that cross {crossed} are added up by switches (SHARP: NCCL_COLLNET_ENABLE=1)",)


def ring_bandwidth(h: Hierarchy, size: Count, stride: Count) -> Rate:
    """Return the bus bandwidth of ring collectives of an axis, in bytes/s.

    `busbw = min(scale-up, m·β inside and at the node, C·β/n above)`, n = groups that straddle the
    busiest unit; with sizes that divide each other that is `min over crossed levels of m·β`.

    Args:
        h: the hierarchy.
        size: members of each group, any shape.
        stride: GPUs between consecutive members, broadcastable with `size`.
    Source: explicit ring flows on the graph (tests/oracle/topology/fabric/test_flows.py).
    """
    size, stride = np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64)
    rate = _scaleup_rate(h, size, stride, _innermost_ring_share(h, size, stride))
    for level, above_node in _boundaries(h):
        members = members_per_unit(size, stride, level.unit_gpus)
        if not above_node:
            limit = members * level.uplink_bytes_per_s
        else:
            limit = _shared_limit(h, level, size, stride, ring=True)
        rate = np.where(members < size, np.minimum(rate, limit), rate)
    return rate


def all_to_all_bandwidth(h: Hierarchy, size: Count, stride: Count) -> Rate:
    """Return the algorithm bandwidth of all-to-all of an axis: bytes each GPU holds to send, per second.

    `algbw = min(scale-up·g/(g−1), β·g/(g−m) inside and at the node, C·β·g/Σ k(g−k) above)`, k = members
    of each group in the busiest unit; with sizes that divide each other `β·g/(g−m)` at every level.

    Args:
        h: the hierarchy.
        size: members of each group, any shape.
        stride: GPUs between consecutive members, broadcastable with `size`.
    """
    size, stride = np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64)
    rate = _scaleup_rate(h, size, stride, size / np.maximum(1, size - 1))
    if h.scaleup.kind == "nvlink-mesh":
        rate = _scaleup_rate(h, size, stride, size / max(1, h.gpus_per_node - 1))
    for level, above_node in _boundaries(h):
        members = members_per_unit(size, stride, level.unit_gpus)
        if not above_node:
            limit = level.uplink_bytes_per_s * size / np.maximum(1, size - members)
        else:
            limit = size * _shared_limit(h, level, size, stride, ring=False)
        rate = np.where(members < size, np.minimum(rate, limit), rate)
    return rate


def p2p_bandwidth(h: Hierarchy, stride: Count, size: Count = 2) -> Rate:
    """Return the bandwidth of the slowest hop of an axis to its next member, in bytes/s per GPU.

    At the node `NIC / GPUs that share it`; above, `(C/R)·β / flows on one rail`, R = rails, when the last
    `n = max over boundaries of min(s, head, tail)` GPUs of a unit send at once.

    Args:
        h: the hierarchy.
        stride: GPUs between consecutive members, any shape.
        size: members of the axis; a hop of an axis longer than a node leaves it somewhere.
    """
    size, stride = np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64)
    pair = h.scaleup.bandwidth_bytes_per_s
    if h.scaleup.kind == "nvlink-mesh":
        pair /= max(1, h.gpus_per_node - 1)
    rate = np.full(np.broadcast_shapes(size.shape, stride.shape), pair)
    for level, above_node in _boundaries(h):
        unit = level.unit_gpus
        limit = _hop_limit(h, level, unit, _hops_leaving_unit(size, stride, unit), above_node=above_node)
        rest = h.num_gpus % unit
        if rest and above_node:
            entering = np.asarray(
                _crossing(size, stride, (h.num_gpus - rest) % (size * stride), ring=True), dtype=np.int64
            )
            limit = np.minimum(limit, _hop_limit(h, level, rest, np.minimum(entering, rest), above_node=True))
        rate = np.where(members_per_unit(size, stride, unit) < size, np.minimum(rate, limit), rate)
    return rate


def _hop_limit(h: Hierarchy, level: Level, unit_gpus: int, flows: Counts, *, above_node: bool) -> Rate:
    """Return the rate of each of `flows` neighbouring GPUs that cross a boundary over its separate planes."""
    planes = h.rails if above_node else _planes(h, level)
    width = max(1, h.gpus_per_host // planes)
    if above_node:
        capacity = unit_gpus / planes * level.uplink_bytes_per_s
        on_one = flows // h.gpus_per_host * width + np.minimum(flows % h.gpus_per_host, width)
    else:
        capacity = h.gpus_per_host / planes * level.uplink_bytes_per_s
        on_one = np.minimum(flows, width)
    return np.asarray(capacity / np.maximum(1, on_one))


def _boundaries(h: Hierarchy) -> Iterator[tuple[Level, bool]]:
    """Yield each level and whether it lies above the node, where links are shared and not a GPU's own."""
    above_node = False
    for level in h.levels:
        yield level, above_node
        above_node = above_node or level.unit_gpus == h.gpus_per_node


def _planes(h: Hierarchy, level: Level) -> int:
    """Return the separate ways out of a host: a link per GPU inside the node, its NICs at it."""
    if level.unit_gpus < h.gpus_per_node:
        return h.gpus_per_host
    return max(1, min(h.nics_per_node, h.gpus_per_host))


def _scaleup_rate(h: Hierarchy, size: Rate | Counts, stride: Count, share: Rate) -> Rate:
    """Return the scale-up bandwidth times a share of it, broadcast over the axes."""
    shape = np.broadcast_shapes(np.shape(size), np.shape(stride))
    return np.broadcast_to(h.scaleup.bandwidth_bytes_per_s * share, shape).astype(np.float64)


def _innermost_ring_share(h: Hierarchy, size: Counts, stride: Counts) -> Rate:
    """Return the share of a GPU's scale-up links that a ring can use: all of a switch, m−1 of a mesh."""
    if h.scaleup.kind != "nvlink-mesh":
        return np.ones(np.broadcast_shapes(size.shape, stride.shape))
    inside = members_per_unit(size, stride, h.gpus_per_node)
    return np.where(inside > 1, (inside - 1) / max(1, h.gpus_per_node - 1), 1.0)


def _shared_limit(h: Hierarchy, level: Level, size: Counts, stride: Counts, *, ring: bool) -> Rate:
    """Return what a unit's uplinks allow for what leaves the busiest one, a smaller last unit included."""
    unit = level.unit_gpus
    busiest = np.maximum(1, _busiest_unit(size, stride, unit, ring=ring))
    limit = unit * level.uplink_bytes_per_s / busiest
    rest = h.num_gpus % unit
    if rest:
        last = np.maximum(1, _crossing(size, stride, (h.num_gpus - rest) % (size * stride), ring=ring))
        limit = np.minimum(limit, rest * level.uplink_bytes_per_s / last)
    return np.asarray(limit)


def _busiest_unit(size: Counts, stride: Counts, unit: int, *, ring: bool) -> Rate:
    """Return what leaves the busiest unit: straddling groups (ring) or Σ k(g−k) (all-to-all).

    A unit starts inside one block and ends inside another; both cuts together are worst when the parts
    are as equal as the grid of `d` allows, because what a cut of a block costs is concave in its place.
    """
    block = size * stride
    grid = np.gcd(unit, block)
    wrapped = unit % block
    worst = np.zeros(np.broadcast_shapes(size.shape, stride.shape))
    for parts in (wrapped, block - wrapped):
        steps = parts // grid
        low = steps // 2 * grid
        load = _crossing(size, stride, low, ring=ring) + _crossing(size, stride, parts - low, ring=ring)
        allowed = (parts == wrapped) | (unit > block)
        worst = np.maximum(worst, np.where(allowed, load, 0.0))
    return worst


def _crossing(size: Counts, stride: Counts, at: Counts, *, ring: bool) -> Rate:
    """Return what crosses a cut of a block of groups: how many groups, or Σ k(g−k) member pairs."""
    if ring:
        return np.asarray(np.minimum(np.minimum(at, stride), size * stride - at), dtype=np.float64)
    full, rest = at // stride, at % stride
    pairs = rest * (full + 1) * (size - full - 1) + (stride - rest) * full * (size - full)
    return np.asarray(pairs, dtype=np.float64)


def _hops_leaving_unit(size: Counts, stride: Counts, unit: int) -> Counts:
    """Return the most GPUs of one unit whose next member is in another unit."""
    block = size * stride
    grid = np.gcd(unit, block)
    middle = block // 2 // grid * grid
    return np.asarray(np.minimum(np.minimum(np.minimum(middle, stride), block - middle), unit))
