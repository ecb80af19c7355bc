"""What groups of ranks that span units of the fabric take beyond those that do not, in seconds of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from costmodel.estimate import Estimate
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.parallel.axes import AXES, PARTS, Traffic
from costmodel.training.rank_strides import axis_strides
from topology.fabric.hierarchy import (
    Hierarchy,
    Level,
    all_to_all_bandwidth,
    p2p_bandwidth,
    ring_bandwidth,
)

Units = Sequence[NDArray[np.int64]]
TornSeconds = Callable[[str, tuple[bool, ...]], float]
"""Seconds of a step that an axis loses where its groups span units of these levels."""


def levels_of(h: Hierarchy, units: Units) -> tuple[Level, ...]:
    """The level of the hierarchy of each level of units, inner to outer."""
    outer = [level for level in h.levels if level.unit_gpus >= h.gpus_per_node]
    return tuple(level for level, _ in zip(outer, units, strict=False))


def torn_seconds(h: Hierarchy, layout: ParallelLayout, estimate: Estimate, units: Units) -> TornSeconds:
    """Seconds that an axis loses beyond those of groups that span only what cannot hold them."""
    levels = levels_of(h, units)

    @cache
    def lost_s(axis: str, torn: tuple[bool, ...]) -> float:
        if axis not in AXES or AXES[axis].part not in PARTS:
            return 0.0
        best = rate_within(h, layout, axis, [level.name for level in levels])
        kept = [level.name for level, spans in zip(levels, torn, strict=False) if not spans]
        now = rate_within(h, layout, axis, kept)
        shown = exposed_s(h, layout, axis, estimate, now) - exposed_s(h, layout, axis, estimate, best)
        return max(0.0, shown)

    return lost_s


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


def rate_within(h: Hierarchy, layout: ParallelLayout, axis: str, whole: Iterable[str]) -> float:
    """Bytes/s of an axis whose groups span no units of these levels."""
    names = set(whole)
    levels = tuple(level for level in h.levels if level.name not in names)
    inside = any(level.name in names and level.unit_gpus == h.gpus_per_node for level in h.levels)
    where = replace(h, levels=levels, gpus_per_node=h.num_gpus if inside else h.gpus_per_node)
    size = np.array([int(getattr(layout, AXES[axis].members))])
    stride: NDArray[np.int64] = axis_strides(LayoutTable.from_rows([layout]))[AXES[axis].group][:1]
    if AXES[axis].traffic is Traffic.NEXT:
        return float(p2p_bandwidth(where, stride, size)[0])
    swaps_heads = axis == "cp" and layout.cp_kind == "ulysses"
    ring = AXES[axis].traffic is Traffic.RING and not swaps_heads
    return float((ring_bandwidth if ring else all_to_all_bandwidth)(where, size, stride)[0])


def exposed_s(h: Hierarchy, layout: ParallelLayout, axis: str, estimate: Estimate, rate: float) -> float:
    """Exposed seconds of an axis at another rate than it was priced at."""
    part = AXES[axis].part
    shown = float(getattr(estimate.time, f"{part}_s"))
    busy = shown + estimate.time.hidden_s.get(part, 0.0)
    return max(0.0, shown - busy * (1 - rate_within(h, layout, axis, ()) / rate))
