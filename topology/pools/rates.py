"""What the nodes of a cluster cost an hour: each kind its own price, or the cluster's where it has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from topology.fabric.wiring import in_tree_order
from topology.pools.kinds import kinds_of
from topology.spec import ClusterSpec, NodeSpec

Rates = tuple[tuple[int, float], ...]
"""GPUs and dollars an hour of each of them, entry by entry."""

Units = tuple[tuple[int, int], ...]
"""GPUs, and GPUs of each node, entry by entry: a node is what is rented, whether its GPUs work or idle."""


def gpus_in_rank_order(spec: ClusterSpec) -> Units:
    """GPUs and those of each node in the order of ranks."""
    nodes = in_tree_order(spec) if spec.switches else spec.nodes
    return tuple((node.count * node.gpus_per_node, node.gpus_per_node) for node in nodes)


def rented_gpus(units: Units, num_gpus: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """GPUs of the whole nodes on which the first GPUs lie, as many as there are at most.

    >>> rented_gpus(((16, 8), (8, 4)), [1, 8, 9, 17, 24]).tolist()
    [8.0, 8.0, 16.0, 20.0, 24.0]
    """
    used = np.asarray(num_gpus, dtype=np.float64)
    rented, start = np.zeros(used.shape), 0
    for gpus, of_node in units:
        rented += np.clip(np.ceil((used - start) / of_node) * of_node, 0, gpus)
        start += gpus
    return rented


def by_node(spec: ClusterSpec) -> bool:
    """Whether some nodes have a price of their own."""
    return any(node.usd_per_gpu_hour is not None for node in spec.nodes)


def rate_of(spec: ClusterSpec, node: NodeSpec) -> float | None:
    """Dollars an hour of one GPU of a node, None where neither it nor the cluster has a price."""
    return spec.usd_per_gpu_hour if node.usd_per_gpu_hour is None else node.usd_per_gpu_hour


def unpriced(spec: ClusterSpec) -> tuple[str, ...]:
    """Kinds of node without a price, in words."""
    kinds = (kind for kind in kinds_of(spec) if rate_of(spec, kind) is None)
    return tuple(dict.fromkeys(kind.gpu for kind in kinds))


def rates_of(spec: ClusterSpec) -> Rates | None:
    """GPUs and their price in the order of ranks; None where some kind of node has no price."""
    return _rates(spec, in_tree_order(spec) if spec.switches else spec.nodes)


def rates_of_kinds(spec: ClusterSpec) -> Rates | None:
    """GPUs and their price of each kind of node, in the order of `kinds_of`."""
    return _rates(spec, kinds_of(spec))


def rented_of_kinds(spec: ClusterSpec, used: Sequence[int]) -> tuple[int, ...]:
    """GPUs of the whole nodes of each kind that hold so many of its GPUs, in the order of `kinds_of`."""
    kinds = zip(kinds_of(spec), used, strict=True)
    return tuple(-(-gpus // kind.gpus_per_node) * kind.gpus_per_node for kind, gpus in kinds)


def usd_per_hour(rates: Rates, num_gpus: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Dollars an hour of the first GPUs.

    >>> usd_per_hour(((8, 2.0), (8, 1.0)), [4, 8, 12, 16]).tolist()
    [8.0, 16.0, 20.0, 24.0]
    """
    gpus = np.array([0, *(count for count, _ in rates)], dtype=np.float64)
    dollars = np.array([0.0, *(count * rate for count, rate in rates)])
    return np.asarray(np.interp(np.asarray(num_gpus, dtype=np.float64), np.cumsum(gpus), np.cumsum(dollars)))


def mean_usd_per_gpu_hour(
    spec: ClusterSpec, paid_gpus: int, of_kinds: Sequence[int] | None = None
) -> float | None:
    """Dollars an hour over the GPUs that are paid for; None where some kind of node has no price.

    Args:
        spec: the cluster; idle nodes of its pool are paid for too.
        paid_gpus: GPUs that are paid for, the first in the order of ranks.
        of_kinds: how many of them are of each kind of node, where they are not the first.
    """
    if not by_node(spec) and not spec.idle_usd_per_hour:
        return spec.usd_per_gpu_hour
    rates, of_each = rates_of(spec), rates_of_kinds(spec)
    if rates is None or of_each is None:
        return None
    dollars = float(usd_per_hour(rates, paid_gpus))
    if of_kinds is not None:
        dollars = sum(count * rate for count, (_, rate) in zip(of_kinds, of_each, strict=True))
    return (dollars + spec.idle_usd_per_hour) / paid_gpus


def each_priced(spec: ClusterSpec) -> ClusterSpec:
    """The cluster with the price of every node in its own entry, if it is in some."""
    if not by_node(spec):
        return spec
    return replace(
        spec, nodes=tuple(replace(node, usd_per_gpu_hour=rate_of(spec, node)) for node in spec.nodes)
    )


def with_idle(part: ClusterSpec, offered: ClusterSpec) -> ClusterSpec:
    """The part of a pool, whose other nodes are paid for while they idle."""
    rates, every = rates_of(part), rates_of(offered)
    if rates is None or every is None:
        return part
    hours = [float(usd_per_hour(each, spec.num_gpus)) for each, spec in ((every, offered), (rates, part))]
    return replace(part, idle_usd_per_hour=max(0.0, hours[0] - hours[1]))


def _rates(spec: ClusterSpec, nodes: Sequence[NodeSpec]) -> Rates | None:
    rates = [(node.count * node.gpus_per_node, rate_of(spec, node)) for node in nodes]
    known = tuple((gpus, rate) for gpus, rate in rates if rate is not None)
    return known if len(known) == len(rates) else None
