"""How busy every level of the fabric is during a step of a plan.

While an axis communicates, its slowest link is saturated and the others carry their share of those flows. So
a level's utilisation is the sum over axes of (seconds the axis communicates / step) · (rate the level then
carries / its bandwidth); seconds include communication hidden under compute.

Legend: `g` members of a group · `s` GPUs between them · `m` members inside one unit of a level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodel.estimate import TimeBreakdown
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.parallel.axes import AXES, PARTS, Traffic
from costmodel.training.rank_strides import axis_strides
from topology.fabric.hierarchy import (
    Hierarchy,
    all_to_all_bandwidth,
    members_per_unit,
    p2p_bandwidth,
    ring_bandwidth,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelLoad:
    """One boundary of the fabric: what a GPU owns of it, and the share of the step it is busy, by axis.

    Without any axis it is not known how busy it is, which is not the same as idle.
    """

    name: str
    unit_gpus: int
    bytes_per_s: float
    busy: Mapping[str, float]

    @property
    def utilisation(self) -> float:
        """Share of the step this level carries traffic at its bandwidth."""
        return sum(self.busy.values())


def axis_group(layout: ParallelLayout, axis: str) -> tuple[int, int]:
    """Members of an axis and GPUs between consecutive ones.

    >>> axis_group(ParallelLayout(tp=8, pp=4), "pp")
    (4, 8)
    """
    return int(getattr(layout, axis)), int(axis_strides(LayoutTable.from_rows([layout]))[axis][0])


def axis_groups(layout: ParallelLayout, axis: str, gpu_of_rank: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """GPUs of every group of an axis, in rank order; experts are spread over neighbouring ranks of a stage.

    >>> axis_groups(ParallelLayout(dp=4, ep=2), "ep", range(4))
    ((0, 1), (2, 3))
    """
    size, stride = axis_group(layout, axis)
    groups: dict[tuple[int, int], list[int]] = {}
    for rank, gpu in enumerate(gpu_of_rank):
        groups.setdefault((rank // (size * stride), rank % stride), []).append(gpu)
    return tuple(tuple(members) for members in groups.values())


def link_load(
    h: Hierarchy, layout: ParallelLayout, time: TimeBreakdown, step_time_s: float
) -> tuple[LevelLoad, ...]:
    """Utilisation of every level, innermost (the scale-up links of a GPU) first."""
    axes = [axis for axis in PARTS if getattr(layout, axis) > 1]
    busy_s = {axis: float(getattr(time, f"{axis}_s")) + time.hidden_s.get(axis, 0.0) for axis in axes}
    return tuple(
        LevelLoad(
            name=name,
            unit_gpus=unit,
            bytes_per_s=rate,
            busy={
                axis: busy_s[axis] / step_time_s * min(1.0, carried_bytes_per_s(h, layout, axis, unit) / rate)
                for axis in axes
            },
        )
        for name, unit, rate in boundaries(h)
    )


def boundaries(h: Hierarchy) -> tuple[tuple[str, int, float], ...]:
    """Name, GPUs of a unit, and bytes/s per GPU of every level, innermost first."""
    inner = ("scale-up", 1, h.scaleup.bandwidth_bytes_per_s)
    return (inner, *((level.name, level.unit_gpus, level.uplink_bytes_per_s) for level in h.levels))


def unloaded_levels(h: Hierarchy) -> tuple[LevelLoad, ...]:
    """Every level of a fabric with what a GPU owns of it; how busy it is only a plan can say."""
    return tuple(
        LevelLoad(name=name, unit_gpus=unit, bytes_per_s=rate, busy={}) for name, unit, rate in boundaries(h)
    )


def axis_load(h: Hierarchy, layout: ParallelLayout, axis: str) -> tuple[LevelLoad, ...]:
    """How full every level is while one axis communicates; the level that binds it is full."""
    return tuple(
        LevelLoad(
            name=name,
            unit_gpus=unit,
            bytes_per_s=rate,
            busy={axis: min(1.0, carried_bytes_per_s(h, layout, axis, unit) / rate)},
        )
        for name, unit, rate in boundaries(h)
    )


def carried_bytes_per_s(h: Hierarchy, layout: ParallelLayout, axis: str, unit_gpus: int) -> float:
    """Bytes/s that one GPU's share of a boundary carries while the axis communicates.

    Ring: r/m leaves a unit that m members share; all-to-all: a·(g−m)/g leaves it; sends to the next stage:
    all of it when the neighbour is outside. Inside a unit of one GPU, that is what the GPU itself sends.
    """
    size, stride = axis_group(layout, axis)
    members = int(members_per_unit(size, stride, unit_gpus))
    if members >= size:
        return 0.0
    swaps_heads = axis == "cp" and layout.cp_kind == "ulysses"
    if AXES[axis].traffic is Traffic.ALL_TO_ALL or swaps_heads:
        inner = size - members if unit_gpus > 1 else int(members_per_unit(size, stride, h.gpus_per_node)) - 1
        return float(all_to_all_bandwidth(h, size, stride)) * inner / size
    stays_inside = unit_gpus == 1 and int(members_per_unit(size, stride, h.gpus_per_node)) == 1
    if stays_inside and h.num_gpus > h.gpus_per_node:
        return 0.0
    if AXES[axis].traffic is Traffic.NEXT:
        return float(p2p_bandwidth(h, stride, size)) / members
    return float(ring_bandwidth(h, size, stride)) / members
