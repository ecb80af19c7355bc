"""The training step: scores of many layouts.

They, the costs of one layout for the stage solver (`costmodel.training.stages`), and its full estimate
(`costmodel.training.estimate`) compose the same raw times with the same constants, so that the score of a
layout under the even split, the step of its `StageCosts` under that split, and the printed estimate are one
number.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.job import TrainingJob
from costmodel.kernels.tables import Calibration
from costmodel.layout import RECOMPUTES, LayoutTable, num_microbatches
from costmodel.memory.stage import (
    MemoryPieces,
    held_microbatches,
    holds_ends,
    memory_form,
    memory_pieces,
    stage_total_bytes,
)
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.ops.shards import unique_shards
from costmodel.pipeline.even_split import RankTypes, rank_types
from costmodel.pipeline.stages import ends_may_be_empty
from costmodel.stack import SoftwareStack
from costmodel.training.constants import Constants, default_constants
from costmodel.training.raw_times import Features, features_of, ops_of_parts
from costmodel.training.step_time import CostColumns, compose
from topology.cluster import Cluster

Vector = NDArray[np.float64]
Columns = TypeVar("Columns")
TABLE_ROWS = 2**15  # layouts read from tables at a time: their columns stay in the cache
BLOCK_ROWS = 2**13  # layouts composed at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingScores:
    """Scores of a table of layouts, one entry per layout.

    Attributes:
        step_time_s: Step under the even split, every layer recomputed where the layout says ``full``.
        lower_bound_s: No split and no recompute counts make the layout faster than this.
        peak_memory_bytes: Fullest rank under the even split.
        peak_allocated_bytes: The part of it that the framework's allocator hands out.
        host_share: Host time of a layer over the time of the layer, at most 1.
        extrapolated_share: Share of matrix-product time that was read outside the measured shapes.
    """

    step_time_s: Vector
    lower_bound_s: Vector
    peak_memory_bytes: Vector
    peak_allocated_bytes: Vector
    host_share: Vector
    extrapolated_share: Vector


def evaluate(
    model: ModelSpec,
    cluster: Cluster,
    job: TrainingJob,
    stack: SoftwareStack,
    layouts: LayoutTable,
    cal: Calibration,
    *,
    constants: Constants | None = None,
    recomputed_share: Vector | None = None,
) -> TrainingScores:
    """Score layouts: step time and memory of the even split, and a bound over all splits.

    Args:
        model: The model.
        cluster: Where it runs.
        job: What is asked.
        stack: The training engine.
        layouts: The layouts; they are taken as legal (`planner.rules`).
        cal: Kernel and collective tables.
        constants: Constants of the composition, the shipped ones by default.
        recomputed_share: Share of each rank's layers recomputed in full; by default all where the layout
            says ``full``.
    """
    c, again = constants or default_constants(), recomputed_share
    if again is None:
        again = (layouts.recompute == RECOMPUTES.index("full")).astype(np.float64)
    parts = [
        _scores(model, cluster, job, stack, layouts.take(slice(start, start + TABLE_ROWS)), cal,
                constants=c, recomputed_share=again[start : start + TABLE_ROWS])
        for start in range(0, max(1, len(layouts)), TABLE_ROWS)
    ]  # fmt: skip
    names = [field.name for field in fields(TrainingScores)]
    return TrainingScores(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _scores(
    model: ModelSpec,
    cluster: Cluster,
    job: TrainingJob,
    stack: SoftwareStack,
    layouts: LayoutTable,
    cal: Calibration,
    *,
    constants: Constants,
    recomputed_share: Vector,
) -> TrainingScores:
    """Scores of one part of a table; arguments as `evaluate`."""
    runs = [run.count for run in layer_runs(model)]
    ops = ops_of_parts(model, job, stack, unique_shards(layouts, job)[0])
    features = features_of(model, cluster, job, stack, layouts, cal, ops=ops)
    types, again = rank_types(runs, layouts), recomputed_share
    pieces = memory_pieces(model, job, stack, layouts, ops=ops)
    peak = _even_peak_bytes(pieces, types, again, layouts, job)
    counts = np.array(runs, dtype=np.float64)
    blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, max(1, len(layouts)), BLOCK_ROWS)]
    parts = [_time_scores(features, types, again, layouts, counts, constants, rows) for rows in blocks]
    step_s, bound_s, host_share = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return TrainingScores(
        step_time_s=step_s,
        lower_bound_s=bound_s,
        peak_memory_bytes=peak,
        peak_allocated_bytes=(peak - pieces.runtime_bytes) / pieces.fragmentation,
        host_share=host_share,
        extrapolated_share=features.runs[-1].kernels.extrapolated_share[features.cut],
    )


def _time_scores(
    features: Features,
    types: RankTypes,
    recomputes: Vector,
    layouts: LayoutTable,
    runs: Vector,
    c: Constants,
    rows: slice,
) -> tuple[Vector, Vector, Vector]:
    """Step time, lower bound and host share of some rows, few enough to stay in the cache."""
    some = replace(
        features,
        cut=features.cut[rows],
        replication=features.replication[rows],
        layout_numbers=_rows(features.layout_numbers, rows),
    )
    costs = compose(some, c)
    step_s = even_step_seconds(costs, _rows(types, rows), recomputes[rows])
    return step_s, step_lower_bound(costs, runs, _rows(layouts, rows)), costs.host_share


def _rows(columns: Columns, rows: slice) -> Columns:
    """Some layouts of a dataclass whose arrays all end in the layout axis."""
    kind: Any = type(columns)
    values = {field.name: getattr(columns, field.name)[..., rows] for field in fields(kind)}
    chosen: Columns = kind(**values)
    return chosen


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


def step_lower_bound(costs: CostColumns, runs: Vector, layouts: LayoutTable) -> Vector:
    """Seconds that no split into stages and no recompute counts can beat.

    T = (M − β)·max t + β·Σ t + max u + constant, and without recomputation Σ t is the same for every split.
    The slowest rank takes at least the mean, at least its share in whole layers of the cheapest run, and, on
    the rank of an end, that end and one layer per chunk, the end's own chunk perhaps without. The tail takes
    at least the mean of every linear form.
    """
    P = layouts.pp.astype(np.float64)
    total = (runs[:, None] * costs.layer_s).sum(axis=0) + P * costs.every_s + costs.first_s + costs.last_s
    cheapest = costs.layer_s.min(axis=0)
    whole = _least_slowest_rank(costs, cheapest, float(runs.sum()), layouts)
    first, last = _end_seconds(costs, layouts)
    V = layouts.virtual_stages
    held = V - np.logical_and(V > 1, ends_may_be_empty(runs.sum(), P * V))
    ends = np.maximum(first, last * (_v_shaped(layouts) == 0)) + held * cheapest
    slowest = np.maximum(np.maximum(total / P, whole), np.where(runs.sum() >= P * V, ends, 0.0))
    forms = (runs[:, None] * costs.tail_layer_s).sum(axis=1) + costs.tail_first_s + costs.tail_last_s
    tail = (forms / P).max(axis=0)
    M, beta = costs.num_microbatches, costs.bubble_weight
    return np.asarray((M - beta) * slowest + beta * total + tail + costs.constant_s) * (1 - 1e-12)


def _least_slowest_rank(costs: CostColumns, layer: Vector, num_layers: float, layouts: LayoutTable) -> Vector:
    """Smallest possible time of the slowest rank if every layer cost as much as the cheapest one.

    The smallest τ that lets all ranks together take all layers: Σ_s ⌊(τ − fixed_s)/layer⌋ ≥ L. It is a whole
    number of layers on some rank, so only such values near the mean are tried.
    """
    P, v_shaped = layouts.pp.astype(np.float64), _v_shaped(layouts)
    first, last = _end_seconds(costs, layouts)
    two_ends = (P > 1) & (v_shaped == 0)
    middle = np.maximum(0.0, P - 1 - two_ends)
    mean = (num_layers * layer + P * costs.every_s + costs.first_s + costs.last_s) / P
    best = np.full(len(mean), np.inf)
    inverse = 1 / layer
    for fixed, present in ((costs.every_s, middle > 0), (first, P > 0), (last, two_ends)):
        fewest = np.maximum(0.0, np.ceil((mean - fixed) * inverse - 1e-9))
        for more in range(2):
            tau = fixed + (fewest + more) * layer
            taken = middle * _whole_layers(tau - costs.every_s, inverse)
            taken += _whole_layers(tau - first, inverse) + two_ends * _whole_layers(tau - last, inverse)
            best = np.where(present & (taken >= num_layers), np.minimum(best, tau), best)
    return np.where(np.isfinite(best), best, mean)


def _whole_layers(seconds: Vector, layers_per_s: Vector) -> Vector:
    """How many layers fit into these seconds."""
    return np.asarray(np.maximum(0.0, np.floor(seconds * layers_per_s + 1e-9)))


def _v_shaped(layouts: LayoutTable) -> Vector:
    """1 where the first rank holds both ends."""
    first, last = holds_ends(layouts.schedule, layouts.pp, np.zeros_like(layouts.pp))
    return np.asarray(np.logical_and(first, last) * (layouts.pp > 1), dtype=np.float64)


def _end_seconds(costs: CostColumns, layouts: LayoutTable) -> tuple[Vector, Vector]:
    """Seconds per microbatch that are no layer, on the first rank and on the last one."""
    together = (layouts.pp == 1) | (_v_shaped(layouts) > 0)
    first = costs.every_s + costs.first_s + np.where(together, costs.last_s, 0.0)
    return first, costs.every_s + costs.last_s


def _even_peak_bytes(
    pieces: MemoryPieces, types: RankTypes, recomputes: Vector, layouts: LayoutTable, job: TrainingJob
) -> Vector:
    """Bytes of the fullest rank under the even split."""
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
