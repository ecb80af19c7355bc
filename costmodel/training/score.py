"""The training step: scores of many layouts.

They, the costs of one layout for the stage solver (`costmodel.training.stages`), and its full estimate
(`costmodel.training.estimate`) compose the same raw times with the same constants, so that the score of a
layout under the even split, the step of its `StageCosts` under that split, and the printed estimate are one
number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.level import PARTS
from costmodel.layout import RECOMPUTES, LayoutTable, num_microbatches
from costmodel.memory.stage import (
    held_microbatches,
    memory_form,
    stage_total_bytes,
)
from costmodel.models.spec import layer_order, layer_runs
from costmodel.pipeline.even_split import RankTypes, rank_types
from costmodel.training.constants import Constants, default_constants
from costmodel.training.priced import BLOCK_ROWS, Priced, price_layouts, row_slices
from costmodel.training.raw_times import features_of
from costmodel.training.step_time import CostColumns, compose
from topology.base.arrays import Vector
from topology.base.columns import Columns

TABLE_ROWS = 2**15  # layouts read from tables at a time: their columns stay in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingScores(Columns):
    """Scores of a table of layouts, one entry per layout.

    Attributes:
        step_time_s: Step under the even split, every layer recomputed where the layout says ``full``.
        peak_memory_bytes: Fullest rank under the even split.
        peak_allocated_bytes: The part of it that the framework's allocator hands out.
        host_share: Host time of a layer over the time of the layer, at most 1.
        extrapolated_share: Share of matrix-product time that was read outside the measured shapes.
    """

    step_time_s: Vector
    peak_memory_bytes: Vector
    peak_allocated_bytes: Vector
    host_share: Vector
    extrapolated_share: Vector


def evaluate(
    case: Case,
    layouts: LayoutTable,
    *,
    constants: Constants | None = None,
    recomputed_share: Vector | None = None,
    chunk_layers: tuple[int, ...] = (),
) -> TrainingScores:
    """Score layouts: step time and memory of the even split, or of a given one.

    Args:
        case: What they are judged against.
        layouts: The layouts; they are taken as legal (`planner.rules.check`).
        constants: Constants of the composition, the shipped ones by default.
        recomputed_share: Share of each rank's layers recomputed in full; by default all where the layout
            says ``full``.
        chunk_layers: Layers of every chunk in model order, where they are known not to be even.
    """
    recomputed = recomputed_share
    if recomputed is None:
        recomputed = (layouts.recompute == RECOMPUTES.index("full")).astype(np.float64)
    runs, order = [run.count for run in layer_runs(case.model)], layer_order(case.model)
    parts = []
    for rows in row_slices(len(layouts), TABLE_ROWS):
        priced = price_layouts(case, layouts.take(rows), constants=constants)
        types = rank_types(runs, priced.table, order, case.job.mtp_layers, chunk_layers)
        parts.append(_scores(priced, case.job, types, recomputed[rows]))
    return TrainingScores.concat(parts)


def part_shares(
    case: Case,
    layouts: LayoutTable,
    *,
    constants: Constants | None = None,
    recomputed_share: Vector | None = None,
    chunk_layers: tuple[int, ...] = (),
) -> Vector:
    """How far every step follows each part of it, d log(step) / d log(part), shape (`PARTS`, layouts).

    A part that hides under another has none, so shares of parts say what measured steps can tell of them.
    Arguments as `evaluate`.
    """
    recomputed = recomputed_share
    if recomputed is None:
        recomputed = (layouts.recompute == RECOMPUTES.index("full")).astype(np.float64)
    runs, order = [run.count for run in layer_runs(case.model)], layer_order(case.model)
    c, features = constants or default_constants(), features_of(case, layouts)
    types = rank_types(runs, layouts, order, case.job.mtp_layers, chunk_layers)

    def log_step(**scaled: float) -> Vector:
        environment = replace(features.environment, **scaled)
        costs = compose(replace(features, environment=environment), c)
        return np.log(even_step_seconds(costs, types, recomputed))

    return np.stack([_slope(log_step, name, getattr(features.environment, name)) for name in PARTS])


LONGER = 1.05
"""A part that is this much longer, and shorter, says how far a step follows it."""


def _slope(log_step: Callable[..., Vector], part: str, factor: float) -> Vector:
    """Slope of the logarithm of steps over that of the factor on one part."""
    above, below = log_step(**{part: factor * LONGER}), log_step(**{part: factor / LONGER})
    return np.asarray((above - below) / (2 * math.log(LONGER)))


def _scores(priced: Priced, job: TrainingJob, types: RankTypes, recomputed_share: Vector) -> TrainingScores:
    """Scores of one part of a table; arguments as `evaluate`."""
    features, pieces = priced.features, priced.pieces
    peak = _even_peak_bytes(priced, types, recomputed_share, job)
    step_s = [
        even_step_seconds(priced.costs.take(rows), types.take(rows), recomputed_share[rows])
        for rows in row_slices(len(priced.table), BLOCK_ROWS)
    ]
    return TrainingScores(
        step_time_s=np.concatenate(step_s),
        peak_memory_bytes=peak,
        peak_allocated_bytes=(peak - pieces.runtime_bytes) / pieces.fragmentation,
        host_share=priced.costs.host_share,
        extrapolated_share=features.runs[-1].kernels.extrapolated_share[features.placed_shard],
    )


def even_step_seconds(costs: CostColumns, types: RankTypes, recomputes: Vector) -> Vector:
    """Seconds of a step under the even split; the arithmetic of `stage_costs.step_time`, for many layouts.

    Args:
        costs: Composed costs.
        types: Kinds of rank of the even split.
        recomputes: 1 where all layers are recomputed.
    """
    per_layer = costs.layer_s + recomputes * costs.recompute_s
    slowest, total, tail = (np.zeros_like(recomputes) for _ in range(3))
    for i, ranks in enumerate(types.ranks):
        layers, first, last = types.layers[i], types.first[i], types.last[i]
        seconds = _dot(layers, per_layer) + costs.every_s + first * costs.first_s + last * costs.last_s
        np.maximum(slowest, seconds, out=slowest)
        total += ranks * seconds
        for form, of_first, of_last in zip(
            costs.tail_layer_s, costs.tail_first_s, costs.tail_last_s, strict=True
        ):
            np.maximum(tail, _dot(layers, form) + first * of_first + last * of_last, out=tail)
    M, beta = costs.num_microbatches, costs.bubble_weight
    return np.asarray(M * slowest + beta * (total - slowest) + tail + costs.constant_s)


def _dot(layers: Vector, per_layer: Vector) -> Vector:
    """Sum over runs of layers times their cost."""
    total = layers[0] * per_layer[0]
    for run in range(1, len(per_layer)):
        total += layers[run] * per_layer[run]
    return np.asarray(total)


def _even_peak_bytes(priced: Priced, types: RankTypes, recomputes: Vector, job: TrainingJob) -> Vector:
    """Bytes of the fullest rank under the even split."""
    pieces, layouts = priced.pieces, priced.table
    peak, form = np.zeros(len(layouts)), memory_form(pieces)
    code, pp, chunks = layouts.schedule, layouts.pp, layouts.virtual_stages
    M = num_microbatches(layouts, job)
    for i in range(len(types.ranks)):
        total = stage_total_bytes(
            form,
            layers=list(types.layers[i]),
            recomputed=list(types.layers[i] * recomputes),
            in_flight=held_microbatches(pieces.first_backward_relief, code, pp, chunks, M, types.stage[i]),
            first=types.first[i],
            last=types.last[i],
        )
        np.maximum(peak, total, out=peak)
    return peak
