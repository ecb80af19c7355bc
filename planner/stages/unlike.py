"""The best split of a pipeline whose stages run on unlike GPUs, by the dynamic program alone.

A layer takes longer on one kind of GPU than on another, so the sum over ranks depends on the split and may
fall while the slowest rank rises. The least of (M − 1)·max t + Σ t + max u is found over every value of the
slowest rank that can still win, and under each over every longest tail that can: nothing is left to a solver.

Legend: ``A`` states (layers consumed), ``W`` choices of a rank, ``P`` ranks, as in `dynamic_program`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.pipeline.stage_costs import StageCosts, StageSplit, UnlikeStages, fits_capacity, step_time
from planner.plan import Recomputes
from planner.stages.dynamic_program import (
    SPARE_BYTES,
    Integers,
    RankTables,
    Recomputed,
    best_path,
    fewest_recomputed,
    least_of,
    rank_tables,
    split_of_path,
)
from planner.stages.one_count import expressible_counts, first_recomputed
from topology.base.arrays import Floats
from topology.base.columns import distinct

GRID = 12
"""Values of the slowest stage tried to bound an arrangement."""
NONE_FITS = -(10**6)
"""Layers of a stage that cannot hold one: no sum with it reaches the layers of a model."""
ROUNDING = 1e-9
"""Relative slack of a bound: far above float error."""
NEARLY = 1e-12
"""Relative slack between sums of the same numbers in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlikeSplit:
    """No split takes less than `bound_s`; `split` takes `step_s`, None where none beats the cutoff."""

    bound_s: float
    split: StageSplit | None
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTables:
    """What each choice of a rank costs on each kind of GPU.

    `free` recomputes the fewest layers that fit, whose seconds none undercuts; `by_count` has tables for each
    number of recomputed layers that an engine can be told, or the same ones where it can be told any.
    """

    free: tuple[RankTables, ...]
    by_count: tuple[tuple[RankTables, ...], ...]


def kind_tables(kinds: Sequence[StageCosts], recomputes: Recomputes, *, spare_bytes: float) -> KindTables:
    """Tables of every kind: with the fewest recomputed layers that fit, and with each number to be told."""
    most = sum(kinds[0].runs) - (kinds[0].num_ranks - 1)

    free = tuple(rank_tables(kind, most, _free(kind, spare_bytes)) for kind in kinds)
    frees = any(a > b for a, b in zip(kinds[0].saved_bytes, kinds[0].saved_bytes_recomputed, strict=True))
    if recomputes == "per-rank" or not frees:
        return KindTables(free=free, by_count=(free,))
    roomy = [replace(kind, capacity_bytes=kind.capacity_bytes + spare_bytes - SPARE_BYTES) for kind in kinds]
    result = (
        tuple(
            rank_tables(stage_costs, most, functools.partial(first_recomputed, stage_costs, timed=n, kept=n))
            for stage_costs in roomy
        )
        for n in expressible_counts(most, recomputes)
    )
    return KindTables(free=free, by_count=tuple(result))


def _free(costs: StageCosts, spare_bytes: float) -> Callable[[Integers], Recomputed]:
    """As few recomputed layers as fit."""
    return functools.partial(fewest_recomputed, costs, spare_bytes=spare_bytes)


def of_stages(tables: Sequence[RankTables], kind_of_stage: tuple[int, ...]) -> RankTables:
    """Rows of the tables of each kind: every rank's own."""
    stages = list(enumerate(kind_of_stage))
    return replace(
        tables[0],
        seconds=np.stack([tables[kind].seconds[rank] for rank, kind in stages]),
        tails=np.stack([tables[kind].tails[rank] for rank, kind in stages]),
        recomputed=np.stack([tables[kind].recomputed[rank] for rank, kind in stages]),
    )


@functools.lru_cache(maxsize=256)
def arrangements(pp: int, caps: tuple[int, ...]) -> tuple[Integers, Integers]:
    """Every order of kinds with every number of stages on each: kinds, and where their runs of stages end.

    >>> kinds, ends = arrangements(3, (2, 1))
    >>> kinds.tolist(), ends.tolist()
    ([[0, 1], [1, 0]], [[0, 2, 3], [0, 1, 3]])
    """
    kinds, ends = [], []
    for order in itertools.permutations(range(len(caps))):
        for cuts in itertools.combinations(range(1, pp), len(caps) - 1):
            marks = (0, *cuts, pp)
            if all(
                b - a <= caps[kind] for kind, (a, b) in zip(order, itertools.pairwise(marks), strict=True)
            ):
                kinds.append(order)
                ends.append(marks)
    shape = (-1, len(caps))
    return np.array(kinds, dtype=np.int64).reshape(shape), np.array(ends, dtype=np.int64).reshape(
        -1, len(caps) + 1
    )


def arrangement_bounds(
    costs: UnlikeStages,
    tables: KindTables,
    kinds: Integers,
    ends: Integers,
    *,
    rest: float,
    least: float,
    cutoff_s: float,
) -> Floats:
    """Seconds that no split of each arrangement beats: whole layers that stages take within a time.

    The slowest stage is tried on a grid between its least and what the cutoff allows.

    Args:
        costs: of the stages; whichever kinds they name.
        tables: what each choice costs on each kind.
        kinds: of each arrangement, as `arrangements` gives them.
        ends: likewise.
        rest: what a step takes beside the slowest stage, at least.
        least: seconds of the slowest stage, at least.
        cutoff_s: only shorter steps are of interest.
    """
    M = costs.num_microbatches
    layers = sum(costs.runs)
    seconds = np.stack([item.seconds.min(axis=1) for item in tables.free])
    finite = seconds[np.isfinite(seconds)]
    highest = float(finite.max(initial=least))
    if M > 1:
        highest = min(highest, (cutoff_s - rest) / (M - 1))
    bounds = np.full(len(kinds), np.inf)
    open_ = np.flatnonzero(_taken(seconds, tables, kinds, ends, highest) >= layers)
    below = least
    for value in np.linspace(least, highest, GRID):
        if len(open_) == 0:
            break
        enough = _taken(seconds, tables, kinds[open_], ends[open_], float(value)) >= layers
        bounds[open_[enough]] = ((M - 1) * below + rest) * (1 - ROUNDING)
        open_, below = open_[~enough], float(value)
    bounds[open_] = ((M - 1) * below + rest) * (1 - ROUNDING)
    return bounds


def _taken(
    seconds: Floats, tables: KindTables, kinds: Integers, ends: Integers, slowest_s: float
) -> Integers:
    """Layers that the stages of each arrangement can take when none takes longer than this."""
    taken = np.where(seconds <= slowest_s * (1 + ROUNDING), tables.free[0].taken, 0).max(axis=-1)
    most = np.where(taken > 0, taken, NONE_FITS)
    before = np.concatenate([np.zeros((len(most), 1), dtype=np.int64), np.cumsum(most, axis=1)], axis=1)
    return np.asarray((before[kinds, ends[:, 1:]] - before[kinds, ends[:, :-1]]).sum(axis=1))


def split_unlike(
    costs: UnlikeStages, lenient: KindTables, strict: Callable[[], KindTables], cutoff_s: float
) -> UnlikeSplit:
    """The best split, if any takes less than the cutoff.

    Args:
        costs: of the stages, each on its kind.
        lenient: tables that allow a byte more than there is room for.
        strict: tables that do not; asked for only where the best split does not fit.
        cutoff_s: only shorter steps are of interest.
    """
    best = _best(costs, lenient, cutoff_s)
    if best.split is None or fits_capacity(costs, best.split):
        return best
    safe = _best(costs, strict(), cutoff_s)
    return replace(safe, bound_s=min(best.bound_s, safe.bound_s))


def _best(costs: UnlikeStages, tables: KindTables, cutoff_s: float) -> UnlikeSplit:
    """The best over every number of recomputed layers that an engine can be told."""
    unlike_split = UnlikeSplit(bound_s=math.inf, split=None, step_s=cutoff_s)
    for each in tables.by_count:
        unlike_split = _best_of(costs, of_stages(each, costs.kind_of_stage), unlike_split)
    return replace(unlike_split, bound_s=unlike_split.step_s if unlike_split.split is not None else cutoff_s)


def _best_of(costs: UnlikeStages, tables: RankTables, unlike_split: UnlikeSplit) -> UnlikeSplit:
    """Try values of the slowest rank upwards, and tails downwards, while they can beat what was found."""
    M, beta = costs.num_microbatches, costs.bubble_weight
    slowest = least_of(tables, tables.seconds, np.maximum)
    if not math.isfinite(slowest):
        return unlike_split
    total = least_of(tables, tables.seconds, np.add)
    tail = least_of(tables, tables.tails, np.maximum)
    later = distinct(tables.seconds[tables.seconds > slowest])
    for value in (slowest, *later[np.isfinite(later)]):
        base = (M - beta) * float(value) + tail + costs.constant_s
        if base + beta * total >= unlike_split.step_s * (1 - NEARLY):
            break
        allowed: Floats = np.where(tables.seconds <= value, tables.seconds, np.inf)
        while base + beta * least_of(tables, allowed, np.add) < unlike_split.step_s * (1 - NEARLY):
            path = best_path(tables, allowed)
            split = split_of_path(tables, path)
            step_s = step_time(costs, split)
            if step_s < unlike_split.step_s:
                unlike_split = UnlikeSplit(bound_s=step_s, split=split, step_s=step_s)
            longest = _tail_of(tables, path)
            allowed = np.where(tables.tails < longest, allowed, np.inf)
    return unlike_split


def _tail_of(tables: RankTables, path: Sequence[int]) -> float:
    """The longest tail of a path."""
    tails = []
    for rank, (start, end) in enumerate(itertools.pairwise(path)):
        at = end if tables.tails.shape[1] > 1 else 0
        tails.append(float(tables.tails[rank, at, end - start - int(tables.taken[0])]))
    return max(tails)
