"""What a cluster offers: bisection, and what the groups of one parallel axis get, and from which links."""

from dataclasses import dataclass, replace

from topology.fabric.hierarchy import (
    Hierarchy,
    all_to_all_bandwidth,
    nodes_spanned,
    p2p_bandwidth,
    ring_bandwidth,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisBandwidth:
    """What the groups of an axis get: `size` members, `stride` GPUs apart, all groups at once.

    Rates are bytes/s: bus bandwidth of rings, bytes a GPU holds for all-to-all, one hop of p2p.
    `bound_by` is the innermost boundary that sets the ring rate.
    """

    axis: str
    size: int
    stride: int
    nodes: int
    ring_bytes_per_s: float
    all_to_all_bytes_per_s: float
    p2p_bytes_per_s: float
    bound_by: str


def axis_bandwidth(h: Hierarchy, axis: str, size: int, stride: int) -> AxisBandwidth:
    """Return what one axis gets on a hierarchy."""
    return AxisBandwidth(
        axis=axis,
        size=size,
        stride=stride,
        nodes=int(nodes_spanned(h, size, stride)),
        ring_bytes_per_s=float(ring_bandwidth(h, size, stride)),
        all_to_all_bytes_per_s=float(all_to_all_bandwidth(h, size, stride)),
        p2p_bytes_per_s=float(p2p_bandwidth(h, stride, size)),
        bound_by=_bound_by(h, size, stride),
    )


def bisection_bytes_per_s(h: Hierarchy) -> float:
    """Return the bandwidth between two halves of the cluster, in bytes/s: `N/2 · min β` over the boundaries.

    A cluster of one node is cut through its scale-up links.
    """
    narrowest = min((level.uplink_bytes_per_s for level in h.levels), default=h.scaleup.bandwidth_bytes_per_s)
    return h.num_gpus / 2 * narrowest


def oversubscription(h: Hierarchy) -> float:
    """Return the bandwidth out of a node over the narrowest share above it; 1 for a full fabric."""
    rates = [level.uplink_bytes_per_s for level in h.levels if level.unit_gpus >= h.gpus_per_node]
    return rates[0] / min(rates) if rates else 1.0


def _bound_by(h: Hierarchy, size: int, stride: int) -> str:
    """Return the name of the innermost boundary at which rings reach their final rate."""
    final = float(ring_bandwidth(h, size, stride))
    for depth in range(len(h.levels) + 1):
        inner = replace(h, levels=h.levels[:depth])
        if float(ring_bandwidth(inner, size, stride)) <= final:
            return f"{h.levels[depth - 1].name} uplink" if depth else h.scaleup.kind
    return h.scaleup.kind
