"""An exact dynamic program over pipeline ranks: bounds a layout, seeds the solver, and checks it in tests.

Given the layers a rank holds, the fewest recomputed layers that fit are known in closed form, so a rank's
time depends only on which layers it takes. Layers are consecutive, hence the state after ``s`` ranks is how
many layers are consumed, and the least possible slowest rank, the least possible sum of ranks and the least
possible longest tail are three programs over the same tables. Together they bound the step from below.

When ranks hold several chunks, chunks are equal but for the ends of the model, and the few splits are tried.

Legend: ``A`` states (layers consumed), ``W`` choices of a rank (layers it takes), ``P`` ranks, ``K`` runs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodel.pipeline.stage_costs import StageCosts, StageSplit, fits_capacity, recompute_order, step_time
from costmodel.pipeline.stages import counts_before, end_limit, layers_in_order, runs_of_ranks, shortage
from topology.base.arrays import Floats
from topology.base.columns import distinct

Integers = npt.NDArray[np.int64]

EVENNESS = 1e-6
"""Weight of unevenness when a seed is chosen among splits of equal time; it never enters a bound."""

SPARE_BYTES = 1.0
"""Bytes beyond the capacity that a bound allows: sums of bytes in another order differ by less."""

TABLES_KEPT = 32
"""Choices kept by widths of tables: they are the same for every layout of a model."""

THRESHOLDS = 4
"""Values of the slowest rank tried one by one before the bound falls back on the least sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBound:
    """Known without a solver: no split beats `bound_s`; `split` (if any fits) takes `seed_s`."""

    bound_s: float
    split: StageSplit | None
    seed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTables:
    """Per rank, what each choice costs; infinite where impossible.

    Attributes:
        taken: Layers of each choice, shape (W,).
        counts: Layers of each run when a choice ends at a state, shape (A, W, K), or (1, W, K) with one run.
        before: State before a choice that ends at a state, shape (A, W); negative where there is none.
        seconds: Microbatch seconds, shape (P, A or 1, W).
        tails: Seconds after the last microbatch, shape (P, A or 1, W).
        recomputed: Fewest layers to recompute, shape (P, A or 1, W).
    """

    taken: Integers
    counts: Integers
    before: Integers
    seconds: Floats
    tails: Floats
    recomputed: Integers


def bound_stages(costs: StageCosts, chunk_ranks: tuple[int, ...]) -> StageBound:
    """Bound the step time over all splits and propose one, in about a millisecond."""
    if len(chunk_ranks) > costs.num_ranks:
        return _best_of_few(costs, chunk_ranks)
    everything, width = rank_widths(costs)
    tables = rank_tables(costs, width)
    if width < everything and not np.isfinite(least_of(tables, tables.seconds, np.maximum)):
        if not _may_take(tables, width):
            return _known(costs, math.inf, [])
        width = everything
        tables = rank_tables(costs, width)
    bound_s, paths = bound_tables(costs, tables)
    if width < everything:
        bound_s = min(bound_s, wider_bound(costs, width))
    return _known(costs, bound_s, [split_of_path(tables, path) for path in paths])


def _may_take(tables: RankTables, width: int) -> bool:
    """Whether some rank can take the most layers that are tabulated: one that cannot takes no more either.

    The rest of what a rank holds needs no more memory than all of it, recomputed or not.
    """
    states = tables.seconds.shape[1]
    widest = tables.seconds[:, width if states > 1 else 0 :, -1]  # states before which so many layers are
    return bool(np.isfinite(widest).any())


def rank_widths(costs: StageCosts) -> tuple[int, int]:
    """Layers that a rank can take at most, and those that are tabulated first: twice its share and some."""
    total, ranks = sum(costs.runs), costs.num_ranks
    everything = total - (ranks - 1)
    return everything, min(everything, 2 * math.ceil(total / ranks) + 3)


def _known(costs: StageCosts, bound_s: float, splits: Sequence[StageSplit]) -> StageBound:
    """The bound, and the fastest of these splits that fits."""
    fitting = [(step_time(costs, split), i) for i, split in enumerate(splits) if fits_capacity(costs, split)]
    if not fitting:
        return StageBound(bound_s=bound_s, split=None, seed_s=math.inf)
    seed_s, best = min(fitting)
    return StageBound(bound_s=min(bound_s, seed_s), split=splits[best], seed_s=seed_s)


def _best_of_few(costs: StageCosts, chunk_ranks: tuple[int, ...]) -> StageBound:
    """Several chunks per rank leave one choice, how the ends share what is missing: try all."""
    every = chunk_splits(sum(costs.runs), len(chunk_ranks))
    lenient, strict = (
        [consecutive_split(costs, chunk_ranks, chunks, spare_bytes=spare) for chunks in every]
        for spare in (SPARE_BYTES, 0.0)
    )
    bound_s = min((step_time(costs, split) for split in lenient if split is not None), default=math.inf)
    return _known(costs, bound_s, [split for split in (*lenient, *strict) if split is not None])


def chunk_splits(num_layers: int, chunks: int) -> list[tuple[int, ...]]:
    """Every way to make chunks equal but for the first and the last, the evenest ends first.

    >>> chunk_splits(10, 4)
    [(2, 3, 3, 2), (1, 3, 3, 3), (3, 3, 3, 1)]
    >>> chunk_splits(6, 8)
    [(0, 1, 1, 1, 1, 1, 1, 0)]
    """
    each, missing = shortage(num_layers, chunks)
    most = end_limit(num_layers, chunks)
    firsts = range(max(0, missing - most), min(missing, most) + 1)
    ordered = sorted(firsts, key=lambda first: (abs(2 * first - missing), -first))
    return [(each - first, *(each,) * (chunks - 2), each - missing + first) for first in ordered]


LeastParts = tuple[float, float, float]
"""Seconds of the slowest rank, of all ranks together, and of the longest tail."""

Recomputed = tuple[Integers, Floats, npt.NDArray[np.bool_]]
"""Recomputed layers, their seconds, and whether they suffice, of every rank and choice."""


def rank_tables(
    costs: StageCosts, most: int, recompute: Callable[[Integers], Recomputed] | None = None
) -> RankTables:
    """Tabulate every rank's time, tail and recomputed layers when it takes 1 to `most` layers.

    Args:
        costs: what layers and ranks cost.
        most: layers that a rank takes at most.
        recompute: what each choice recomputes; the fewest layers that fit, if not given.
    """
    taken, before, counts = _choices(costs.runs, costs.order, most)
    chosen = recompute or (lambda held: fewest_recomputed(costs, held, SPARE_BYTES))
    recomputed, recompute_s, possible = chosen(counts)
    exact = counts.astype(np.float64)
    seconds = exact @ np.asarray(costs.layer_s) + recompute_s + np.asarray(costs.fixed_s)[:, None, None]
    forms = zip(costs.tail_layer_s, costs.tail_fixed_s, strict=True)
    ends_s = [exact @ np.asarray(form) + np.asarray(fixed)[:, None, None] for form, fixed in forms]
    tails = np.max(ends_s, axis=0)
    return RankTables(
        taken=taken,
        counts=counts,
        before=before,
        seconds=np.where(possible, seconds, np.inf),
        tails=np.where(possible, tails, np.inf),
        recomputed=recomputed,
    )


@functools.lru_cache(maxsize=TABLES_KEPT)
def _choices(
    runs: tuple[int, ...], order: tuple[tuple[int, int], ...], most: int
) -> tuple[Integers, Integers, Integers]:
    """Layers of each choice, the state before it, and its layers of each run; see `RankTables`."""
    taken = np.arange(1, most + 1)
    before = np.arange(sum(runs) + 1)[:, None] - taken
    if len(runs) == 1:
        return taken, before, taken[None, :, None]
    consumed = np.array(counts_before(layers_in_order(runs, order)))
    return taken, before, consumed[:, None, :] - consumed[np.maximum(before, 0)]


def fewest_recomputed(costs: StageCosts, counts: Integers, spare_bytes: float) -> Recomputed:
    """Fewest layers each rank must recompute to fit, their seconds, and whether they suffice: (P, A, W)."""
    held = np.asarray(costs.in_flight)[:, None, None]
    fixed = np.asarray(costs.fixed_bytes)[:, None, None]
    exact = counts.astype(np.float64)
    need = exact @ np.asarray(costs.static_bytes) + held * (exact @ np.asarray(costs.saved_bytes)) + fixed
    need = need - costs.capacity_bytes - spare_bytes
    must = need > 0
    recomputed, seconds = np.zeros(must.shape, dtype=np.int64), np.zeros(must.shape)
    if not must.any():
        return recomputed, seconds, ~must
    need = need + np.where(must, np.asarray(costs.recompute_working_bytes)[:, None, None], 0.0)
    for k in recompute_order(costs):
        freed = held * (costs.saved_bytes[k] - costs.saved_bytes_recomputed[k])
        if costs.saved_bytes[k] <= costs.saved_bytes_recomputed[k]:
            continue
        useful = must & (freed > 0)
        enough = np.ceil(need / np.where(freed > 0, freed, 1.0))
        take = np.where(useful, np.minimum(np.maximum(enough, 0.0), exact[..., k]), 0.0)
        need = need - take * freed
        seconds = seconds + take * costs.recompute_s[k]
        recomputed = recomputed + take.astype(np.int64)
    return recomputed, seconds, ~must | (need <= 0)


def bound_tables(
    costs: StageCosts, tables: RankTables, *, thresholds: int = THRESHOLDS, least: LeastParts | None = None
) -> tuple[float, list[list[int]]]:
    """Bound over all tabulated splits, and those of least sum for each slowest rank that was tried.

    (M − β)·max + β·Σ is least either at one of the first few possible values of the slowest rank, each
    tried with its own least sum, or beyond them, where the next value and the unrestricted least sum bound
    it. `least` are the tables' `least_parts`, where they are known.
    """
    M, beta = costs.num_microbatches, costs.bubble_weight
    slowest, total, tail = least or least_parts(tables)
    if not np.isfinite(slowest):
        return math.inf, []
    later = distinct(tables.seconds[tables.seconds > slowest])
    values = [slowest, *later[np.isfinite(later)][: thresholds - 1]]
    beyond = later[len(values) - 1] if len(later) >= len(values) else math.inf
    bounds, paths = [(M - beta) * beyond + beta * total] if np.isfinite(beyond) else [], []
    for value in values:
        path = best_path(tables, _evened(tables, value))
        paths.append(path)
        bounds.append((M - beta) * value + beta * least_of(tables, _capped(tables, value), np.add))
    return min(bounds) + tail + costs.constant_s, paths


def least_parts(tables: RankTables) -> LeastParts:
    """The slowest rank, the sum over ranks and the longest tail, each the least there is over all splits."""
    slowest = least_of(tables, tables.seconds, np.maximum)
    if not np.isfinite(slowest):
        return math.inf, math.inf, math.inf
    total = least_of(tables, tables.seconds, np.add)
    return slowest, total, least_of(tables, tables.tails, np.maximum)


def wider_bound(costs: StageCosts, width: int) -> float:
    """Step time that no split beats in which some rank takes more layers than `width`: that many in a row."""
    M, beta = costs.num_microbatches, costs.bubble_weight
    work = sum(n * t for n, t in zip(costs.runs, costs.layer_s, strict=True)) + sum(costs.fixed_s)
    before_s = np.asarray(counts_before(layers_in_order(costs.runs, costs.order))) @ np.asarray(costs.layer_s)
    slowest = float((before_s[width + 1 :] - before_s[: -width - 1]).min())
    return (M - beta) * slowest + beta * work + _mean_tail(costs) + costs.constant_s


def _mean_tail(costs: StageCosts) -> float:
    """Seconds that the longest tail of no split can go below: the mean over ranks of each linear form."""
    forms = zip(costs.tail_layer_s, costs.tail_fixed_s, strict=True)
    return max(
        (sum(n * t for n, t in zip(costs.runs, form, strict=True)) + sum(fixed)) / costs.num_ranks
        for form, fixed in forms
    )


def _capped(tables: RankTables, slowest: float) -> Floats:
    return np.where(tables.seconds <= slowest, tables.seconds, np.inf)


def _evened(tables: RankTables, slowest: float) -> Floats:
    """Times that prefer even splits among those of equal sum."""
    capped = _capped(tables, slowest)
    return capped + EVENNESS * capped**2 / slowest


def least_of(tables: RankTables, values: Floats, combine: np.ufunc) -> float:
    """Least combined value of consuming all layers rank by rank."""
    reached, before = _start(tables)
    *ranks, last = _choices_first(values)
    ending_here = np.empty(before.shape)
    for rank in ranks:
        combine(before, rank, out=ending_here)
        np.minimum.reduce(ending_here, axis=0, out=reached)
    return float(combine(before[:, -1], last[:, -1]).min())


def _start(tables: RankTables) -> tuple[Floats, Floats]:
    """Value of every state while nothing is consumed, and a view of it: before every choice, of every state.

    A choice takes one layer more than the one beside it, so the states before choices are a window that
    slides over the values; states before the first are infinite. Choices come first, so that the least of
    them is found for all states at once.
    """
    states, choices = tables.before.shape
    padded = np.full(choices + states, np.inf)
    padded[choices] = 0.0
    each = padded.itemsize
    before = np.ndarray((choices, states), buffer=padded, offset=(choices - 1) * each, strides=(-each, each))
    return padded[choices:], before


def _choices_first(values: Floats) -> Floats:
    """Values of (ranks, states, choices) as (ranks, choices, states)."""
    return np.ascontiguousarray(values.transpose(0, 2, 1))


def best_path(tables: RankTables, values: Floats) -> list[int]:
    """Choices of every rank that consume all layers with the least sum of values; empty when impossible."""
    (reached, before), choices = _start(tables), []
    for rank in _choices_first(values):
        ending_here = before + rank
        choices.append(ending_here.argmin(axis=0))
        np.minimum.reduce(ending_here, axis=0, out=reached)
    at = len(tables.before) - 1
    if not np.isfinite(reached[at]):
        return []
    path = [at]
    for choice in reversed(choices):
        path.append(int(tables.before[path[-1], choice[path[-1]]]))
    return path[::-1]


def split_of_path(tables: RankTables, path: list[int]) -> StageSplit:
    """Split whose ranks end at the states of a path."""
    rows, recomputed = [], []
    for s, (start, end) in enumerate(itertools.pairwise(path)):
        choice = end - start - int(tables.taken[0])
        at = end if len(tables.counts) > 1 else 0
        rows.append(tuple(int(n) for n in tables.counts[at, choice]))
        recomputed.append(int(tables.recomputed[s, at, choice]))
    return StageSplit(layers_of_stage=tuple(rows), recompute_of_stage=tuple(recomputed))


def consecutive_split(
    costs: StageCosts,
    chunk_ranks: tuple[int, ...],
    chunk_layers: tuple[int, ...],
    *,
    spare_bytes: float = 0.0,
) -> StageSplit | None:
    """Split that follows from the layers of every chunk: runs by position, the fewest recomputed layers.

    None if no recomputation makes it fit into the capacity and `spare_bytes` more.
    """
    rows = runs_of_ranks(chunk_ranks, chunk_layers, costs.runs, costs.order)
    recomputed, _, possible = fewest_recomputed(costs, np.array(rows)[:, None, :], spare_bytes)
    ranks = range(costs.num_ranks)
    if not all(possible[s, s, 0] for s in ranks):
        return None
    return StageSplit(layers_of_stage=rows, recompute_of_stage=tuple(int(recomputed[s, s, 0]) for s in ranks))
