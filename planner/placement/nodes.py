"""Which GPU every rank runs on.

The order of the axes is decided by the search, and priced on units that are all alike. Ranks then follow GPUs
in order, unless another order, or other nodes where some stay idle, has fewer groups that span units of the
fabric: racks that are torn, or hold no whole number of groups.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.parallel.axes import AXES
from costmodel.training.rank_strides import axis_strides
from planner.problem import Setting
from topology.base.columns import distinct
from topology.fabric.mesh import Mesh, mesh
from topology.fabric.packing import packed, spanning, units_of_hosts


def place(setting: Setting, layout: ParallelLayout) -> Mesh:
    """Mesh of a layout."""
    axes = [(axis, int(getattr(layout, axis))) for axis in layout.axis_order]
    spec = setting.cluster.spec
    host = spec.nodes[0].gpus_per_node
    if spec.num_nodes == 1 or any(node.gpus_per_node != host for node in spec.nodes):
        return mesh(axes)
    if layout.num_gpus < spec.num_gpus and len({node.usd_per_gpu_hour for node in spec.nodes}) > 1:
        return mesh(axes)  # the first nodes are those that are paid for
    chosen = choose_hosts(units_of_hosts(spec), run_sizes(layout, host), -(-layout.num_gpus // host))
    gpus = (chosen[:, None] * host + np.arange(host)).reshape(-1)[: layout.num_gpus]
    return mesh(axes, gpus.tolist())


def choose_hosts(
    units: tuple[NDArray[np.int64], ...], sizes: Mapping[str, int], wanted: int
) -> NDArray[np.int64]:
    """Hosts in the order of ranks: those of the cluster, unless fewer groups span units in another order.

    >>> choose_hosts((np.array([0, 0, 0, 1, 1, 1]),), {"ep": 2}, 4).tolist()
    [0, 1, 3, 4]

    Args:
        units: unit of every host at each level, inner to outer.
        sizes: hosts that the groups of an axis span in the order of ranks.
        wanted: hosts to use.
    """
    in_order = np.arange(wanted)
    if not units:
        return in_order
    chain: list[int] = []
    for size in sorted(set(sizes.values()) - {1}):
        if size % (chain[-1] if chain else 1) == 0 and size <= max(np.bincount(units[-1])):
            chain.append(size)
    other = packed(units, chain, wanted)[:wanted]

    def torn(order: NDArray[np.int64]) -> list[int]:
        groups = [spanning(order, level, size) for level in units for size in sizes.values()]
        return [*groups, *(len(distinct(level[order])) for level in units)]

    here, there = torn(in_order), torn(other)
    better = all(a <= b for a, b in zip(there, here, strict=True)) and there != here
    return other if better else in_order


def run_sizes(layout: ParallelLayout, gpus_per_host: int) -> dict[str, int]:
    """Consecutive hosts that hold whole groups of an axis, of those that leave their host."""
    strides = axis_strides(LayoutTable.from_rows([layout]))
    sizes = {}
    for name, axis in AXES.items():
        members = int(getattr(layout, axis.members))
        block = members * int(strides[axis.group][0])
        if members > 1 and block > gpus_per_host and block % gpus_per_host == 0:
            sizes[name] = block // gpus_per_host
    return sizes
