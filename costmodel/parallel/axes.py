"""The axes a job is split over, one record each: what it splits and sends, among which ranks, and its words.

The degree of an axis is the field of its name in `costmodel.layout.ParallelLayout`. The axes of `RANK_AXES`
multiply to the GPUs of a layout; the others re-use the dp·cp·tp ranks of a pipeline stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

AxisName = Literal["tp", "cp", "pp", "dp", "ep", "expert_tp"]

RANK_AXES: tuple[str, ...] = ("pp", "dp", "cp", "tp")
"""Axes whose degrees multiply to the GPUs, slowest-varying first unless a layout says else."""


class Traffic(Enum):
    """How the members of a group talk: around a ring, everyone to everyone, or to the next one."""

    RING = "ring"
    ALL_TO_ALL = "all-to-all"
    NEXT = "next"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One way to split a job.

    Attributes:
        name: Its degree's field of a layout.
        label: What people call it.
        splits: What it splits.
        traffic: How the members of its groups talk.
        part: The part of a step's time in which its communication shows.
        communication: That part in words.
        members: Attribute of a layout with the members of a group that communicates.
        group: That group among those of `costmodel.training.rank_strides.axis_strides`.
        cuts_layer: Whether what one rank computes of a layer depends on its degree.
        offered: Flag of a software stack that says whether it has the axis; empty where every stack has it.
    """

    name: str
    label: str
    splits: str
    traffic: Traffic
    part: str
    communication: str
    members: str
    group: str
    cuts_layer: bool
    offered: str = ""

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        return self.name.replace("_", " ")

    @property
    def leads_part(self) -> bool:
        """Whether the part of the step that its communication shows in is called after it."""
        return self.part == self.name


AXES: Mapping[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis(
            name="tp", label="Tensor", splits="heads, feed-forward width and vocabulary",
            traffic=Traffic.RING, part="tp", communication="tensor-parallel communication",
            members="tp", group="tp", cuts_layer=True, offered="tensor_parallel",
        ),
        Axis(
            name="cp", label="Context", splits="the tokens of a sequence",
            traffic=Traffic.RING, part="cp", communication="context-parallel communication",
            members="cp", group="cp", cuts_layer=True, offered="context_parallel",
        ),
        Axis(
            name="pp", label="Pipeline", splits="layers",
            traffic=Traffic.NEXT, part="pp", communication="pipeline sends",
            members="pp", group="pp", cuts_layer=False, offered="pipeline_parallel",
        ),
        Axis(
            name="dp", label="Data", splits="the sequences of a batch",
            traffic=Traffic.RING, part="dp", communication="data-parallel communication",
            members="replicas", group="data", cuts_layer=False,
        ),
        Axis(
            name="ep", label="Expert", splits="the experts of a layer",
            traffic=Traffic.ALL_TO_ALL, part="ep", communication="expert all-to-all",
            members="ep", group="ep", cuts_layer=True, offered="expert_parallel",
        ),
        Axis(
            name="expert_tp", label="Expert tensor", splits="the width of each expert",
            traffic=Traffic.RING, part="ep", communication="expert all-to-all",
            members="expert_tp", group="expert_tp", cuts_layer=True,
        ),
    )
}  # fmt: skip
"""Every axis by its name, in the order in which a layout is told."""

LAYER_AXES = tuple(axis.name for axis in AXES.values() if axis.cuts_layer)
"""Axes whose degrees decide what one rank computes of a layer."""

STAGE_AXES = tuple(name for name in AXES if name not in RANK_AXES)
"""Axes that re-use the dp·cp·tp ranks of a pipeline stage."""

PARTS: Mapping[str, Axis] = {
    axis.part: axis for axis in sorted(AXES.values(), key=lambda axis: not axis.cuts_layer) if axis.leads_part
}
"""The axis after which each part of a step's communication is called, those of a layer first."""
