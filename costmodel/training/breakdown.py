"""Where the seconds of one step go: an array by phase and part, whose sum is the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.estimate import TimeBreakdown
from costmodel.pipeline.in_flight import holds_ends
from costmodel.pipeline.stage_costs import (
    AnyStages,
    StageSplit,
    UnlikeStages,
    microbatch_seconds,
    recomputed_layers,
    tail_seconds,
)
from costmodel.training.constants import Constants
from costmodel.training.op_times import PART_TRANSFERS
from costmodel.training.parts import PARTS, stacked_parts
from costmodel.training.raw_times import Features
from costmodel.training.step_time import compose, step_stretch
from topology.base.arrays import Vector

NOTHING = 1e-9
"""Share of the step below which a difference of two sums is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidingRanks:
    """The ranks that decide a step under one split: which one sets the pace, and which one ends last.

    Attributes:
        microbatch_s: Seconds of a microbatch on every rank.
        recomputed: Recomputed layers of every run on the rank that sets the pace.
        pacing: The slowest rank.
        last: The rank that needs longest after its last microbatch.
    """

    microbatch_s: Vector
    recomputed: Vector
    pacing: int
    last: int


def deciding_ranks(costs: AnyStages, split: StageSplit) -> DecidingRanks:
    """The ranks that decide a step.

    Args:
        costs: What the stage solver saw of the layout.
        split: Layers and recomputed layers of every rank.
    """
    microbatch_s = microbatch_seconds(costs, split)
    pacing = int(microbatch_s.argmax())
    return DecidingRanks(
        microbatch_s=microbatch_s,
        recomputed=recomputed_layers(costs, split)[pacing],
        pacing=pacing,
        last=int(tail_seconds(costs, split).argmax()),
    )


def time_breakdown(
    features: Sequence[Features], c: Constants, costs: AnyStages, split: StageSplit
) -> TimeBreakdown:
    """Parts of the step of the only layout of these features, and the communication that runs under compute.

    Args:
        features: Raw times of one layout, on each kind of GPU that its stages run on.
        c: Constants.
        costs: What the stage solver saw of it.
        split: Layers and recomputed layers of every rank.
    """
    deciding = deciding_ranks(costs, split)
    seconds = step_seconds(features, c, costs, split, deciding)
    parts = dict(zip(PARTS, seconds.sum(axis=0).tolist(), strict=True))
    pacing = deciding.pacing
    moved = _moved_seconds(features[_kind(costs, pacing)], c, split, pacing, costs.num_microbatches)
    hidden = {axis: s - parts[f"{axis}_s"] for axis, s in moved.items()}
    traces = NOTHING * sum(parts.values())
    return TimeBreakdown(**parts, hidden_s={axis: s for axis, s in hidden.items() if s > traces})


def step_seconds(
    features: Sequence[Features], c: Constants, costs: AnyStages, split: StageSplit, deciding: DecidingRanks
) -> Vector:
    """Seconds of a step, shape (`PHASES`, `PARTS`); over the parts they sum to those of `step_phases`.

    Microbatches are those of the rank that sets the pace, the tail that of the rank which ends last.
    Arguments as `time_breakdown`, and the ranks that decide the step.
    """
    t, pacing, last = deciding.microbatch_s, deciding.pacing, deciding.last
    ranks = {_kind(costs, rank) for rank in (pacing, last)}
    by_kind = {kind: compose(features[kind], c, by_part=True) for kind in ranks}

    of = by_kind[_kind(costs, pacing)]
    *layers, first, last_held = _held(features[0], split, pacing)
    microbatch = of.layer_s[..., 0] @ layers + first * of.first_s[:, 0] + last_held * of.last_s[:, 0]
    microbatch += of.recompute_s[..., 0] @ deciding.recomputed + of.every_s[:, 0]
    once = of.constant_s[:, 0]

    of = by_kind[_kind(costs, last)]
    *layers, first, last_held = _held(features[0], split, last)
    forms = (
        of.tail_layer_s[..., 0] @ layers
        + first * of.tail_first_s[..., 0]
        + last_held * of.tail_last_s[..., 0]
    )
    tail = forms[:, forms.sum(axis=0).argmax()]
    fill = stacked_parts(bubble_s=costs.bubble_weight * float(t.sum() - t.max()))
    return np.stack([costs.num_microbatches * microbatch, fill, tail, once])


def _kind(costs: AnyStages, rank: int) -> int:
    """Kind of GPU that a rank runs on, by its place."""
    return costs.kind_of_stage[rank] if isinstance(costs, UnlikeStages) else 0


def _held(f: Features, split: StageSplit, rank: int) -> Vector:
    """Layers of every run on a rank, then 1 where it holds the embedding, and 1 where it holds the head."""
    ends = holds_ends(f.layout_numbers.schedule[0], len(split.layers_of_stage), rank)
    return np.array([*split.layers_of_stage[rank], *ends], dtype=np.float64)


def _moved_seconds(f: Features, c: Constants, split: StageSplit, rank: int, M: int) -> Mapping[str, float]:
    """Communication of one rank in a step by axis, exposed or not; layers are gathered twice."""
    t, *layers, first, last = f.traffic, *_held(f, split, rank)
    modules = [] if f.mtp is None else [f.mtp_layers * last]
    parts = [*f.runs, *([] if f.mtp is None else [f.mtp]), f.embedding, f.head]
    times = np.array([*layers, *modules, first, last * (1 + f.mtp_layers)])
    e = f.environment
    stretch = float(e.exchange * step_stretch(f.layout_numbers.nodes[0], e.level, c))
    moved = {}
    for axis, names in PART_TRANSFERS.items():
        alone = [sum(getattr(part.transfers, name)[0] for name in names) for part in parts]
        moved[axis] = stretch * M * float(times @ alone)
    once = t.step_reduce_s[:, 0] + t.step_gather_s[:, 0]
    once[-2:] += t.tied_s[0]
    gathered = t.microbatch_gather_s[:, 0]
    in_step = c.network_in_step if float(t.network[0]) else 1.0
    held = np.array([*layers, *modules, first, last])
    each = held @ (gathered + t.microbatch_reduce_s[:, 0]) + held[:-2] @ gathered[:-2]
    return moved | {"dp": stretch * in_step * float(held @ once + M * each)}
