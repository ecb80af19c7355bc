"""Where the members of each group sit: distances between ranks of an axis, for many layouts at once.

The axes of a layout are nested from slowest to fastest; an axis' stride is the product of the sizes of the
faster ones. Experts re-use the dp·cp·tp block of a stage: expert-tensor ranks are neighbours, expert ranks
come next, and the replicas of an expert follow. A group made of two axes with a third between them has no
single distance; it is given the mean one, so that no unit of the fabric seems to hold more of its members
than it does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from costmodel.layout import AXIS_ORDERS, LayoutTable
from costmodel.parallel.axes import AXES, RANK_AXES

Counts = NDArray[np.int64]
_FASTER = np.array(
    [[[order.index(b) > order.index(a) for order in AXIS_ORDERS] for b in RANK_AXES] for a in RANK_AXES]
)
"""Whether the second axis varies faster than the first, under every order."""


def axis_strides(table: LayoutTable) -> Mapping[str, Counts]:
    """GPUs between consecutive members of every axis and derived group, one entry per layout.

    ``data`` is the group that reduces gradients (dp and cp together), ``ep``, ``expert_tp`` and
    ``expert_data`` are the expert groups.

    >>> from costmodel.layout import ParallelLayout
    >>> strides = axis_strides(LayoutTable.from_rows([ParallelLayout(tp=2, cp=4, dp=3, pp=5, ep=4)]))
    >>> {name: int(stride[0]) for name, stride in strides.items()}
    {'pp': 24, 'dp': 8, 'cp': 2, 'tp': 1, 'data': 2, 'expert_tp': 1, 'ep': 1, 'expert_data': 4}
    """
    sizes = np.stack([getattr(table, axis) for axis in RANK_AXES])
    of_axes = np.where(_FASTER.take(table.axis_order, axis=-1), sizes, 1).prod(axis=1)
    strides: dict[str, Counts] = dict(zip(RANK_AXES, of_axes, strict=True))
    strides["data"] = _data_stride(table, strides)
    strides |= _expert_strides(table, strides)
    return {axis.name: strides[axis.group] for axis in AXES.values() if axis.name not in strides} | strides


def _data_stride(table: LayoutTable, strides: Mapping[str, Counts]) -> Counts:
    """Mean distance of the ranks of dp and cp together: with an axis between the two there are gaps."""
    dp, cp = strides["dp"], strides["cp"]
    inner = np.where(dp < cp, table.dp, table.cp)
    alone = np.where(table.dp > 1, dp, cp)
    return np.where((table.dp > 1) & (table.cp > 1), np.maximum(dp, cp) // inner, alone)


def _expert_strides(table: LayoutTable, strides: Mapping[str, Counts]) -> dict[str, Counts]:
    """Mean distances in the dp·cp·tp block; with pp inside it, what reaches past pp is pp times as far."""
    faster, slower = (np.ones(len(table), dtype=np.int64) for _ in range(2))
    for axis in (name for name in RANK_AXES if name != "pp"):
        inside, size = strides[axis] < strides["pp"], getattr(table, axis)
        faster, slower = faster * np.where(inside, size, 1), slower * np.where(inside, 1, size)
    gap = np.where((faster > 1) & (slower > 1), table.pp, 1)
    neighbour = np.where(faster == 1, table.pp, 1)
    experts_over = table.expert_shards
    return {
        "expert_tp": neighbour * np.where(table.expert_tp > faster, gap, 1),
        "ep": neighbour * table.expert_tp * np.where(experts_over > faster, gap, 1),
        "expert_data": neighbour * experts_over * gap,
    }
