"""Where the members of each group sit: distances between ranks of an axis, for many layouts at once.

The axes of a layout are nested from slowest to fastest; an axis' stride is the product of the sizes of the
faster ones. Experts re-use the dp·cp·tp block of a stage: expert-tensor ranks are neighbours, expert ranks
come next, and the replicas of an expert follow.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from costmodel.layout import AXIS_ORDERS, LayoutTable

Counts = NDArray[np.int64]
AXES = ("pp", "dp", "cp", "tp")

_FASTER = np.array([[[order.index(b) > order.index(a) for b in AXES] for a in AXES] for order in AXIS_ORDERS])


def axis_strides(table: LayoutTable) -> Mapping[str, Counts]:
    """GPUs between consecutive members of every axis and derived group, one entry per layout.

    ``data`` is the group that reduces gradients (dp and cp together), ``ep``, ``expert_tp`` and
    ``expert_data`` are the expert groups.

    >>> from costmodel.layout import ParallelLayout
    >>> strides = axis_strides(LayoutTable.of([ParallelLayout(tp=2, cp=4, dp=3, pp=5, ep=4)]))
    >>> {name: int(stride[0]) for name, stride in strides.items()}
    {'pp': 24, 'dp': 8, 'cp': 2, 'tp': 1, 'data': 2, 'expert_tp': 1, 'ep': 1, 'expert_data': 4}
    """
    sizes = {axis: getattr(table, axis) for axis in AXES}
    strides: dict[str, Counts] = {}
    for a, axis in enumerate(AXES):
        stride = np.ones(len(table), dtype=np.int64)
        for b, other in enumerate(AXES):
            if a != b:
                stride = stride * np.where(_FASTER[table.axis_order, a, b], sizes[other], 1)
        strides[axis] = stride
    both = (table.dp > 1) & (table.cp > 1)
    outer = np.where(table.dp > 1, strides["dp"], strides["cp"])
    strides["data"] = np.where(both, np.minimum(strides["dp"], strides["cp"]), outer)
    block = np.minimum(np.minimum(strides["dp"], strides["cp"]), strides["tp"])
    strides["expert_tp"] = block
    strides["ep"] = block * table.expert_tp
    strides["expert_data"] = block * table.expert_tp * table.ep
    return strides
