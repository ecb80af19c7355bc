"""Which GPU every rank runs on.

The order of the axes is decided by the search, and priced on units that are all alike. Ranks then follow GPUs
in order, unless another order, or other nodes where some stay idle, costs fewer seconds: where groups span
units of the fabric, racks that are torn or hold no whole number of groups, their axis gets less bandwidth.

Where the sizes of groups divide each other one order is best for all of them (`topology.fabric.packing`).
Where they do not, an order suits some axes and tears others: each set of sizes that do is tried, and of few
nodes every order, so that the axis which loses least is the one that is torn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from costmodel.estimate import Estimate
from costmodel.layout import ParallelLayout
from planner.placement.torn import TornSeconds, Units, run_sizes, torn_seconds
from planner.plan import Problem
from topology.base.columns import distinct
from topology.fabric.mesh import Mesh, mesh
from topology.fabric.packing import least_spanning, packed, spanning, units_of_hosts

Order = NDArray[np.int64]

FEW_NODES = 8
"""Nodes of which every order is tried where sizes of groups do not divide each other."""


def place_on_nodes(problem: Problem, layout: ParallelLayout, estimate: Estimate) -> Mesh:
    """Mesh of a layout, whose estimate says what each axis communicates."""
    axes = [(axis, int(getattr(layout, axis))) for axis in layout.axis_order]
    cluster, spec = problem.cluster, problem.cluster.spec
    host = spec.nodes[0].gpus_per_node
    if spec.num_nodes == 1 or any(node.gpus_per_node != host for node in spec.nodes):
        return mesh(axes)
    if layout.num_gpus < spec.num_gpus and len({node.usd_per_gpu_hour for node in spec.nodes}) > 1:
        return mesh(axes)  # the first nodes are those that are paid for
    units = units_of_hosts(spec)
    lost_s = torn_seconds(cluster.hierarchy, layout, estimate, units)
    chosen = choose_hosts(units, run_sizes(layout, host), -(-layout.num_gpus // host), lost_s)
    gpus = (chosen[:, None] * host + np.arange(host)).reshape(-1)[: layout.num_gpus]
    return mesh(axes, gpus.tolist())


def choose_hosts(
    units: Units, sizes: Mapping[str, int], wanted: int, lost_s: TornSeconds = lambda _axis, _torn: 0.0
) -> Order:
    """Hosts in the order of ranks: those of the cluster, unless another order loses fewer seconds.

    Of orders that lose the same, that with the fewest groups that span units, then that on the fewest units.

    >>> choose_hosts((np.array([0, 0, 0, 1, 1, 1]),), {"ep": 2}, 4).tolist()
    [0, 1, 3, 4]

    Args:
        units: unit of every host at each level, inner to outer.
        sizes: hosts that the groups of an axis span in the order of ranks.
        wanted: hosts to use.
        lost_s: seconds that an axis loses where its groups span units of some levels.
    """
    in_order = np.arange(wanted)
    if not units:
        return in_order

    def worth(order: Order) -> tuple[float, int, int]:
        groups = sum(spanning(order, level, size) for level in units for size in sizes.values())
        return lost_of(units, sizes, order, lost_s), groups, sum(len(distinct(u[order])) for u in units)

    return min((in_order, *_orders(units, sizes, wanted)), key=worth)


def lost_of(units: Units, sizes: Mapping[str, int], order: Order, lost_s: TornSeconds) -> float:
    """Seconds that an order of hosts loses to groups that span units."""
    return sum(
        lost_s(axis, tuple(spanning(order, level, size) > 0 for level in units))
        for axis, size in sizes.items()
    )


def least_lost(units: Units, sizes: Mapping[str, int], wanted: int, lost_s: TornSeconds) -> float:
    """Seconds that every order of hosts loses: to groups that no unit has room for."""
    return sum(
        lost_s(axis, tuple(least_spanning(level, size, wanted) > 0 for level in units))
        for axis, size in sizes.items()
    )


def _orders(units: Units, sizes: Mapping[str, int], wanted: int) -> Iterator[Order]:
    """Orders worth trying: packed for every set of sizes that divide each other, all of few hosts."""
    most = int(np.bincount(units[-1]).max())
    held = sorted({size for size in sizes.values() if 1 < size <= most})
    chains = [c for c in _subsets(held) if all(b % a == 0 for a, b in pairwise(c))]
    whole = [c for c in chains if not any(set(c) < set(other) for other in chains)]
    for chain in whole:
        order = packed(units, chain, wanted)[:wanted]
        if len(order) == wanted:
            yield order
    if len(whole) > 1 and len(units[0]) <= FEW_NODES:
        yield from _every_order(units, wanted)


def _subsets(held: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(held) + 1):
        yield from combinations(held, count)


def _every_order(units: Units, wanted: int) -> Iterator[Order]:
    """Every order of so many hosts; those of the same units are alike, and stay in order among themselves."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for host in range(len(units[0])):
        alike.setdefault(tuple(int(level[host]) for level in units), []).append(host)
    kinds = list(alike.values())

    def grow(taken: list[int], used: list[int]) -> Iterator[Order]:
        if len(taken) == wanted:
            yield np.array(taken, dtype=np.int64)
            return
        for kind, hosts in enumerate(kinds):
            if used[kind] < len(hosts):
                used[kind] += 1
                yield from grow([*taken, hosts[used[kind] - 1]], used)
                used[kind] -= 1

    return grow([], [0] * len(kinds))
