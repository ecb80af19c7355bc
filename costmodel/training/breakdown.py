"""Where the seconds of one step go: parts of the pacing rank, bubble and tail, which sum to the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.estimate import TimeBreakdown
from costmodel.layout import RECOMPUTES
from costmodel.pipeline.in_flight import holds_ends
from costmodel.pipeline.stage_costs import (
    AnyStages,
    StageCosts,
    StageSplit,
    UnlikeStages,
    microbatch_seconds,
    recomputed_layers,
    step_time,
    tail_seconds,
)
from costmodel.training.constants import Constants
from costmodel.training.layer_time import embedding_step, head_step, layer_step
from costmodel.training.op_times import PART_TRANSFERS
from costmodel.training.raw_times import Features, PartTimes
from costmodel.training.step_time import mtp_seconds, step_stretch, update_seconds_per_parameter

NOTHING = 1e-9
"""Share of the step below which a difference of two sums is rounding."""


@dataclass(frozen=True, slots=True)
class _PerMicrobatch:
    """Seconds of one microbatch on the pacing rank, by part; `moving` is all communication by axis."""

    compute: float
    recompute: float
    tp: float
    cp: float
    ep: float
    dp: float
    host: float
    moving_tp: float
    moving_cp: float
    moving_ep: float


def time_breakdown(
    features: Sequence[Features], c: Constants, costs: AnyStages, split: StageSplit
) -> TimeBreakdown:
    """Parts of the step of the only layout of these features, each added up by itself: their sum is the step.

    Args:
        features: Raw times of one layout, on each kind of GPU that its stages run on.
        c: Constants.
        costs: What the stage solver saw of it.
        split: Layers and recomputed layers of every rank.
    """
    seconds = microbatch_seconds(costs, split)
    pacing = int(np.argmax(seconds))
    M, total = costs.num_microbatches, step_time(costs, split)
    f, of_pacing = _of_rank(features, costs, pacing)
    part = _pacing_rank(f, c, of_pacing, split, pacing)
    tail = tail_seconds(costs, split)
    last = int(np.argmax(tail))
    update = _update_seconds(_of_rank(features, costs, last)[0], c, split, last)
    dp = M * part.dp + max(0.0, float(tail.max()) - update)
    moving = {axis: M * getattr(part, f"moving_{axis}") for axis in PART_TRANSFERS}
    shown = {axis: M * getattr(part, axis) for axis in moving}
    fixed_s = float(f.environment.level) * c.step_fixed_s
    moving["dp"], shown["dp"] = _replica_seconds(f, c, split, pacing, M), dp
    return TimeBreakdown(
        compute_s=M * part.compute,
        recompute_s=M * part.recompute,
        tp_s=shown["tp"],
        cp_s=shown["cp"],
        ep_s=shown["ep"],
        pp_s=costs.constant_s - fixed_s,
        dp_s=dp,
        bubble_s=costs.bubble_weight * float(seconds.sum() - seconds.max()),
        optimizer_s=update,
        host_s=M * part.host + fixed_s,
        hidden_s=_hidden(moving, shown, total),
    )


def _of_rank(features: Sequence[Features], costs: AnyStages, rank: int) -> tuple[Features, StageCosts]:
    """Raw times and costs of the kind of GPU that a rank runs on."""
    if isinstance(costs, UnlikeStages):
        return features[costs.kind_of_stage[rank]], costs.of(rank)
    return features[0], costs


def _pacing_rank(
    f: Features, c: Constants, costs: StageCosts, split: StageSplit, rank: int
) -> _PerMicrobatch:
    """Add up the layers and ends of one rank by part."""
    recomputed = recomputed_layers(costs, split)[rank]
    stretch = _stretch(f, c)
    policy = int(f.layout_numbers.recompute[0])
    policy = 0 if policy == RECOMPUTES.index("full") else policy
    sums = dict.fromkeys(_PerMicrobatch.__slots__, 0.0)
    layers = [*zip(f.runs, split.layers_of_stage[rank], costs.layer_s, strict=True)]
    heads, ends_held = 1 + f.mtp_layers, _ends_held(f, split, rank)
    if f.mtp is not None:
        layers.append((f.mtp, f.mtp_layers * ends_held[1], float(mtp_seconds(f, c)[0])))
    for part, count, seconds in layers:
        step = layer_step(part, f, c)
        one = {name: float(getattr(step, f"{name}_s")[0]) for name in PART_TRANSFERS}
        plain = float(step.forward_s[0] + step.backward_s[0, 0])
        repeated = float(step.forward_s[0] + step.backward_s[policy, 0]) - plain
        for name, value in one.items():
            sums[name] += stretch * count * value
            sums[f"moving_{name}"] += stretch * count * _transfer_seconds(part, name)
        sums["compute"] += stretch * count * float(step.compute_s[0])
        sums["host"] += stretch * count * max(0.0, plain - float(step.compute_s[0]) - sum(one.values()))
        sums["dp"] += count * (seconds - stretch * (plain + repeated))
        sums["recompute"] += stretch * count * repeated
    sums["recompute"] += float(np.dot(recomputed, costs.recompute_s))
    traffic = _microbatch_traffic(f, c)
    sums["dp"] += stretch * float(traffic[: len(f.runs)].max())
    sums["host"] += stretch * float(f.environment.host_s_per_microbatch)
    ends = (f.embedding, embedding_step(f, c), 1), (f.head, head_step(f, c), heads)
    for held, (end, step, times), exchange in zip(ends_held, ends, traffic[-2:], strict=True):
        sums["compute"] += held * times * stretch * float(step.compute_s[0])
        sums["tp"] += held * times * stretch * float(step.tp_s[0])
        sums["moving_tp"] += held * times * stretch * _transfer_seconds(end, "tp")
        sums["dp"] += held * stretch * float(exchange)
    return _PerMicrobatch(**sums)


def _stretch(f: Features, c: Constants) -> float:
    """Factor on the times of this step."""
    return float(step_stretch(f.layout_numbers.nodes[0], f.environment.level, c))


def _ends_held(f: Features, split: StageSplit, rank: int) -> tuple[float, float]:
    """1 where the rank holds the embedding, and 1 where it holds the head."""
    first, last = holds_ends(f.layout_numbers.schedule[0], len(split.layers_of_stage), rank)
    return float(first), float(last)


def _transfer_seconds(part: PartTimes, axis: str) -> float:
    """Collectives of one axis in a layer or an end, exposed or not."""
    seconds = (float(getattr(part.transfers, name)[0]) for name in PART_TRANSFERS[axis])
    return sum(seconds)


def _traffic_factor(f: Features, c: Constants) -> float:
    """Replica traffic in a step over the same alone."""
    return c.network_in_step if float(f.traffic.network[0]) else 1.0


def _microbatch_traffic(f: Features, c: Constants) -> NDArray[np.float64]:
    """One gathering and one reduction of every layer and end in a microbatch (zero below ZeRO-2)."""
    once: NDArray[np.float64] = (f.traffic.microbatch_gather_s + f.traffic.microbatch_reduce_s)[:, 0]
    return _traffic_factor(f, c) * once


def _update_seconds(f: Features, c: Constants, split: StageSplit, rank: int) -> float:
    """Optimizer step of one rank."""
    e, held = f.environment, _held(split, f, rank) @ f.traffic.updated_parameters[:, 0]
    products = _held(split, f, rank) @ f.traffic.update_s[:, 0]
    return float(e.level * (update_seconds_per_parameter(e, c) * held + products))


def _held(split: StageSplit, f: Features, rank: int) -> NDArray[np.float64]:
    """How many layers of every run, how many modules, and which of the two ends, a rank holds."""
    first, last = _ends_held(f, split, rank)
    modules = [] if f.mtp is None else [f.mtp_layers * last]
    return np.array([*split.layers_of_stage[rank], *modules, first, last], dtype=np.float64)


def _replica_seconds(f: Features, c: Constants, split: StageSplit, rank: int, M: int) -> float:
    """Gradient and parameter traffic of one rank in a step, exposed or not; layers are gathered twice."""
    t, held = f.traffic, _held(split, f, rank)
    once = t.step_reduce_s[:, 0] + t.step_gather_s[:, 0]
    once[-2:] += t.tied_s[0]
    layers = held.copy()
    layers[-2:] = 0
    each = held @ _microbatch_traffic(f, c) + _traffic_factor(f, c) * (layers @ t.microbatch_gather_s[:, 0])
    return _stretch(f, c) * float(_traffic_factor(f, c) * (held @ once) + M * each)


def _hidden(moving: dict[str, float], shown: dict[str, float], total: float) -> dict[str, float]:
    """Communication that runs under compute, by axis: what moves and does not show; traces are left out."""
    hidden = {axis: moving[axis] - shown[axis] for axis in moving}
    return {axis: seconds for axis, seconds in hidden.items() if seconds > NOTHING * total}
