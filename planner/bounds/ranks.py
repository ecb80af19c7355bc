"""Bounds of variants, rank by rank: what no split of a layout over its pipeline ranks can beat.

For a given time of the slowest rank, each rank can take only so many layers, recomputing as few as its memory
forces it to, and together the ranks must take all. The least such time is found by halving. The bound from
means and whole layers alone, `step_lower_bound`, knows no memory.

Legend: ``P`` pipeline ranks, ``V`` chunks of a rank, ``M`` microbatches, ``L`` layers, ``t`` seconds of a
    microbatch on a rank, ``β`` bubble.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodel.layout import RECOMPUTES, LayoutTable, num_microbatches
from costmodel.memory.stage import (
    held_microbatches,
    holds_ends,
    memory_form,
)
from costmodel.models.spec import layer_order, layer_runs
from costmodel.pipeline.schedules import column
from costmodel.pipeline.stages import Order, ends_may_be_empty
from costmodel.training.step_time import CostColumns
from planner.bounds.chunks import interleaved_bounds
from planner.bounds.funnel import ROUNDING
from planner.bounds.positions import slowest_by_position
from planner.bounds.priced import Priced
from planner.plan import Problem
from topology.base.arrays import Index, Vector
from topology.base.columns import Columns, distinct

_V_SHAPED = column(lambda schedule: schedule.v_shaped)


HALVINGS = 14
"""Steps in which the slowest rank is narrowed down; each bound is within 2⁻¹⁴ of the range it starts from."""

FIRST_MULTIPLE = 2.0
"""The slowest rank is first looked for up to this multiple of the mean rank."""

_FULL = RECOMPUTES.index("full")


def plain_bounds(problem: Problem, priced: Priced) -> Vector:
    """Seconds that no split of each layout can beat, memory left aside."""
    counts = np.array([run.count for run in layer_runs(problem.model)], dtype=np.float64)
    return step_lower_bound(priced.costs, counts, priced.table, layer_order(problem.model))


def variant_bounds(problem: Problem, priced: Priced, plain_s: Vector, cutoff_s: Vector) -> Vector:
    """Seconds that no split of each layout can beat; infinite where no split fits or none beats the cutoff.

    Args:
        problem: what is asked.
        priced: layouts with their costs.
        plain_s: per layout, its bound with memory left aside.
        cutoff_s: per layout, the step time it has to beat to matter.
    """
    counts = np.array([run.count for run in layer_runs(problem.model)], dtype=np.float64)
    hopeful = np.flatnonzero(plain_s <= cutoff_s * (1 + ROUNDING))
    result = np.full(len(plain_s), np.inf)
    for part in _equal_pipelines(priced.table.pp, hopeful):
        result[part] = plain_s[part]
        chosen = priced.take(part)
        for kinds in _bounding(problem, counts):
            bounds = _rank_bounds(problem, chosen, counts, kinds, cutoff_s[part])
            result[part] = np.maximum(result[part], bounds)
    if _alternate(problem, counts):
        left = np.flatnonzero(result <= cutoff_s * (1 + ROUNDING))
        result[left] = np.maximum(result[left], interleaved_bounds(problem, priced.take(left)))
    return result


def _bounding(problem: Problem, counts: Vector) -> list[list[int]]:
    """Kinds whose layers are bounded together: the largest run; of kinds that alternate also all of them."""
    largest = [int(counts.argmax())]
    return [largest, list(range(len(counts)))] if _alternate(problem, counts) else [largest]


def _alternate(problem: Problem, counts: Vector) -> bool:
    """Whether kinds of layers alternate, instead of being one run each."""
    return len(layer_order(problem.model)) > len(counts)


def _equal_pipelines(pp: npt.NDArray[np.int64], index: Index) -> Iterator[Index]:
    """Rows of the index with the same number of pipeline ranks, together."""
    for ranks in distinct(pp[index]):
        yield index[pp[index] == ranks]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLimits(Columns):
    """What limits the layers of some kinds on each rank, all at the least cost of any of these kinds.

    Arrays have the shape (P, layouts) or (layouts,). In t seconds a rank takes n layers and recomputes r ≤ n,
    with n·`layer_s` + r·recompute + `fixed_s` ≤ t and n·bytes − r·freed ≤ room: none recomputed, n is at most
    (t − `fixed_s`)/`layer_s` and `most_kept`; as few as must be where it `frees` memory, at most
    (t − `fixed_s` + `owed_s`)/`paced_layer_s`, and `most_partly`. Also `least` ≤ n ≤ `most`.
    """

    layer_s: Vector
    fixed_s: Vector
    most_kept: Vector
    frees: npt.NDArray[np.bool_]
    owed_s: Vector
    paced_layer_s: Vector
    most_partly: Vector
    least: Vector
    most: Vector


def _rank_bounds(
    problem: Problem, priced: Priced, counts: Vector, kinds: list[int], cutoff_s: Vector
) -> Vector:
    """Bound by the slowest rank, narrowed by halving between the mean and what the cutoff allows."""
    costs, P = priced.costs, float(priced.table.pp[0])
    M, beta = costs.num_microbatches, costs.bubble_weight
    total = counts @ costs.layer_s + P * costs.every_s + costs.first_s + costs.last_s
    forms = np.einsum("k,jkn->jn", counts, costs.tail_layer_s) + costs.tail_first_s + costs.tail_last_s
    rest = beta * total + (forms / P).max(axis=0) + costs.constant_s
    weight = np.maximum(M - beta, 1e-12)
    ranks, need = rank_limits(problem, priced, counts, kinds), float(counts[kinds].sum())
    low, high = total / P, np.maximum((cutoff_s * (1 + ROUNDING) - rest) / weight, total / P)
    bounds = np.full(len(low), np.inf)
    possible = np.flatnonzero(_enough(ranks, high, need))
    if len(possible) == 0:
        return bounds
    limits, kept = ranks.take(possible), possible
    low, high = low[kept], high[kept]
    first = low * FIRST_MULTIPLE
    high = np.where((high > first) & _enough(limits, first, need), first, np.minimum(high, low / ROUNDING))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        works = _enough(limits, middle, need)
        low, high = np.where(works, low, middle), np.where(works, middle, high)
    bounds[kept] = (weight[kept] * low + rest[kept]) * (1 - ROUNDING)
    return bounds


def _layers_allowed(table: LayoutTable, counts: Vector) -> tuple[Vector, Vector]:
    """Least and most layers of the largest run each rank may take; other runs are let go.

    A rank with one chunk takes at least a layer. With several, chunks are equal but for the first and the
    last of the model, which lack at most all but one layer, or all of them where nothing else divides.
    """
    layers, P = counts.sum(), int(table.pp[0])
    V = table.virtual_stages.astype(np.float64)
    each = np.where(V > 1, np.ceil(layers / (P * V)), layers)
    v_shaped = _V_SHAPED[table.schedule]
    rank = np.arange(P)[:, None]
    outer = (rank == 0) * np.where(v_shaped, 2, 1) + ((rank == P - 1) & ~v_shaped)
    most = np.minimum(V * each, layers) + 0.0 * rank
    lacking = np.where(each * P * V - layers > 2 * (each - 1), each, each - 1)
    least = np.where(V > 1, V * each - outer * lacking, 1.0) if len(counts) == 1 else 0.0 * most
    return least, most


def _enough(ranks: RankLimits, seconds: Vector, need: float) -> npt.NDArray[np.bool_]:
    """Whether ranks of at most this many seconds can take all layers, each within its least and most."""
    taken = layers_taken(ranks, seconds)
    return np.asarray(
        (taken >= ranks.least).all(axis=0) & (np.minimum(taken, ranks.most).sum(axis=0) >= need)
    )


def layers_taken(ranks: RankLimits, seconds: Vector) -> Vector:
    """Layers that every rank can take at most in this many seconds and within its memory; (P, layouts)."""
    t = np.maximum(seconds * (1 + ROUNDING) - ranks.fixed_s, -1.0)
    timed = t / ranks.layer_s
    paced = (t + ranks.owed_s) / ranks.paced_layer_s
    partly = np.where(ranks.frees, np.minimum(np.minimum(paced, ranks.most_partly), timed), -1.0)
    return np.asarray(
        np.floor(np.maximum(np.minimum(timed, ranks.most_kept), partly) * (1 + ROUNDING) + ROUNDING)
    )


def rank_limits(problem: Problem, priced: Priced, counts: Vector, kinds: list[int]) -> RankLimits:
    """Limits of the layers of these kinds on every rank."""
    table, costs, pieces = priced.table, priced.costs, priced.pieces
    stage = np.arange(int(table.pp[0]))[:, None]
    M, relief = num_microbatches(table, problem.job), pieces.first_backward_relief
    held = held_microbatches(relief, table.schedule, table.pp, table.virtual_stages, M, stage)
    first, last = holds_ends(table.schedule, table.pp, stage)
    form = memory_form(pieces)
    kept = [np.asarray(form.static_bytes[k] + held * form.saved_bytes[k]) for k in kinds]
    freed = [np.asarray(form.saved_bytes[k] - form.saved_bytes_recomputed[k]) for k in kinds]
    room = np.asarray(problem.memory_budget_bytes * (1 + ROUNDING) - form.fixed_at(first, last))
    recompute_room = np.asarray(room - form.recompute_working_at(last))
    layer_s, recompute_s = costs.layer_s[kinds].min(axis=0), costs.recompute_s[kinds].min(axis=0)
    layer_bytes = np.minimum.reduce(kept)
    freed_bytes = held * np.maximum(np.maximum.reduce(freed), 0.0) * (table.recompute == _FULL)
    frees = freed_bytes > 0
    owed = np.maximum(recompute_s, 0.0) / np.where(frees, freed_bytes, math.inf)
    with np.errstate(divide="ignore", invalid="ignore"):  # what is offloaded may leave nothing of a layer
        most_kept = room / layer_bytes
        most_partly = recompute_room / (layer_bytes - freed_bytes)
    least, most = _layers_allowed(table, counts)
    return RankLimits(
        layer_s=layer_s,
        fixed_s=costs.every_s + first * costs.first_s + last * costs.last_s,
        most_kept=most_kept,
        frees=frees,
        owed_s=recompute_room * owed,
        paced_layer_s=layer_s + layer_bytes * owed,
        most_partly=most_partly,
        least=least,
        most=most,
    )


def step_lower_bound(costs: CostColumns, runs: Vector, layouts: LayoutTable, order: Order = ()) -> Vector:
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
    folded = _v_shaped(layouts)
    held = V - (1 + folded) * np.logical_and(V > 1, ends_may_be_empty(runs.sum(), P * V))
    outer = np.maximum(first, last * (folded == 0)) + held * cheapest
    slowest = np.maximum(np.maximum(total / P, whole), np.where(runs.sum() >= P * V, outer, 0.0))
    if len(order) > len(runs):
        slowest = np.maximum(slowest, slowest_by_position(costs, runs, order, layouts))
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
