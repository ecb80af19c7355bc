"""Where the seconds of one step go: parts of the pacing rank, bubble and tail, which sum to the step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.composition import LayerStep, layer_step
from costmodel.constants import Constants
from costmodel.estimate import TimeBreakdown
from costmodel.features import Features
from costmodel.layout import RECOMPUTES
from costmodel.stage_costs import (
    StageCosts,
    StageSplit,
    microbatch_seconds,
    recomputed_layers,
    step_time,
    tail_seconds,
)


@dataclass(frozen=True, slots=True)
class _PerMicrobatch:
    """Seconds of one microbatch on the pacing rank, by part."""

    recompute: float
    tp: float
    cp: float
    ep: float
    dp: float
    host: float
    hidden_tp: float


def time_breakdown(f: Features, c: Constants, costs: StageCosts, split: StageSplit) -> TimeBreakdown:
    """Parts of the step of the only layout of these features; `compute_s` is what the other parts leave.

    Args:
        f: Raw times of one layout.
        c: Constants.
        costs: What the stage solver saw of it.
        split: Layers and recomputed layers of every rank.
    """
    seconds = microbatch_seconds(costs, split)
    pacing = int(np.argmax(seconds))
    M, total = costs.num_microbatches, step_time(costs, split)
    part = _pacing_rank(f, c, costs, split, pacing)
    tail = tail_seconds(costs, split)
    update = _update_seconds(f, c, split, int(np.argmax(tail)))
    sends = costs.constant_s - c.step_fixed_s
    bubble = costs.bubble_weight * float(seconds.sum() - seconds.max())
    others = TimeBreakdown(
        compute_s=0.0,
        recompute_s=M * part.recompute,
        tp_s=M * part.tp,
        cp_s=M * part.cp,
        ep_s=M * part.ep,
        pp_s=sends,
        dp_s=M * part.dp + float(tail.max()) - update,
        bubble_s=bubble,
        optimizer_s=update,
        host_s=M * part.host + c.step_fixed_s,
        hidden_s=_hidden(f, M * part.hidden_tp, float(tail.max()) - update, costs, split),
    )
    values = {name: getattr(others, name) for name in others.__slots__}
    return TimeBreakdown(**{**values, "compute_s": total - others.total_s})


def _pacing_rank(
    f: Features, c: Constants, costs: StageCosts, split: StageSplit, rank: int
) -> _PerMicrobatch:
    """Add up the layers of one rank by part."""
    layers = split.layers_of_stage[rank]
    again = recomputed_layers(costs, split)[rank]
    stretch = float(1 + c.jitter * np.log2(f.layout_numbers.nodes[0]))
    policy = int(f.layout_numbers.recompute[0])
    policy = 0 if policy == RECOMPUTES.index("full") else policy
    sums = dict.fromkeys(_PerMicrobatch.__slots__, 0.0)
    for run, count in enumerate(layers):
        step = layer_step(f.runs[run], f, c)
        one = {name: float(getattr(step, f"{name}_s")[0]) for name in ("tp", "cp", "ep")}
        plain = float(step.forward_s[0] + step.backward_s[0, 0])
        repeated = float(step.forward_s[0] + step.backward_s[policy, 0]) - plain
        for name, value in one.items():
            sums[name] += stretch * count * value
        sums["host"] += stretch * count * max(0.0, plain - float(step.compute_s[0]) - sum(one.values()))
        sums["dp"] += count * (costs.layer_s[run] - stretch * (plain + repeated))
        sums["recompute"] += stretch * count * repeated + float(again[run]) * costs.recompute_s[run]
        sums["hidden_tp"] += count * _hidden_per_layer(step)
    sums["dp"] += stretch * _edges(f, c)
    return _PerMicrobatch(**sums)


def _hidden_per_layer(step: LayerStep) -> float:
    """Seconds of a layer's transfers that run under compute."""
    return float(step.hidden_s[0])


def _edges(f: Features, c: Constants) -> float:
    """First gather and last scatter of a microbatch, which nothing hides."""
    t = f.traffic
    factor = c.network_in_step if float(t.network[0]) else c.scaleup_in_step
    return factor * float((t.microbatch_gather_s + t.microbatch_reduce_s)[:-2, 0].max())


def _update_seconds(f: Features, c: Constants, split: StageSplit, rank: int) -> float:
    """Optimizer step of one rank."""
    updated = f.traffic.updated_parameters[:, 0]
    layers = split.layers_of_stage[rank]
    held = float(np.dot(layers, updated[: len(layers)]))
    held += float(updated[-2]) * (rank == 0) + float(updated[-1]) * (rank == len(split.layers_of_stage) - 1)
    return c.optimizer_bytes * held / float(np.asarray(f.environment.memory_bandwidth_bytes_per_s))


def _hidden(
    f: Features, layer_transfers_s: float, exposed_tail_s: float, costs: StageCosts, split: StageSplit
) -> dict[str, float]:
    """Communication that runs under compute, by where it belongs; zero entries are left out."""
    t = f.traffic
    layers = np.array(split.layers_of_stage, dtype=float).max(axis=0)
    once = float(layers @ (t.step_reduce_s + t.step_gather_s)[: len(layers), 0])
    each = float(layers @ (t.microbatch_reduce_s + 2 * t.microbatch_gather_s)[: len(layers), 0])
    hidden = {
        "layer": layer_transfers_s,
        "dp": max(0.0, once - exposed_tail_s) + each * costs.num_microbatches,
    }
    return {name: seconds for name, seconds in hidden.items() if seconds > 0}
