"""The best split of a pipeline whose stages run on unlike GPUs, by the dynamic program alone.

A layer takes longer on one kind of GPU than on another, so the sum over ranks depends on the split and may
fall while the slowest rank rises. The least of (M − 1)·max t + Σ t + max u is found over every value of the
slowest rank that can still win, and under each over every longest tail that can: nothing is left to a solver.

Legend: ``A`` states (layers consumed), ``W`` choices of a rank, ``P`` ranks, as in `dynamic_program`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.pipeline.stage_costs import StageCosts, StageSplit, UnlikeStages, fits_capacity, step_time
from planner.plan import Recomputes
from planner.stages.dynamic_program import (
    SPARE_BYTES,
    Floats,
    RankTables,
    Recomputed,
    fewest_recomputed,
    least_of,
    path_of,
    rank_tables,
    split_of_path,
)
from planner.stages.one_count import first_recomputed, told_counts
from topology.base.columns import distinct

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

    `free` recomputes the fewest layers that fit, whose seconds none undercuts; `told` has tables for every
    number of recomputed layers that an engine can be told, or the same ones where it can be told any.
    """

    free: tuple[RankTables, ...]
    told: tuple[tuple[RankTables, ...], ...]


def kind_tables(kinds: Sequence[StageCosts], recomputes: Recomputes, *, spare_bytes: float) -> KindTables:
    """Tables of every kind: with the fewest recomputed layers that fit, and with each number to be told."""
    most = sum(kinds[0].runs) - (kinds[0].num_ranks - 1)

    def tables(of: Callable[[StageCosts], Callable[[np.ndarray], Recomputed]]) -> tuple[RankTables, ...]:
        return tuple(rank_tables(one, most, of(one)) for one in kinds)

    free = tables(lambda one: lambda held: fewest_recomputed(one, held, spare_bytes))
    frees = any(
        a > b for one in kinds for a, b in zip(one.saved_bytes, one.saved_bytes_recomputed, strict=True)
    )
    if recomputes == "per-rank" or not frees:
        return KindTables(free=free, told=(free,))
    roomy = [replace(one, capacity_bytes=one.capacity_bytes + spare_bytes - SPARE_BYTES) for one in kinds]

    def of_count(count: int) -> tuple[RankTables, ...]:
        return tuple(
            rank_tables(one, most, lambda held, one=one: first_recomputed(one, held, timed=count, kept=count))
            for one in roomy
        )

    return KindTables(free=free, told=tuple(of_count(count) for count in told_counts(most, recomputes)))


def of_stages(tables: Sequence[RankTables], kind_of_stage: tuple[int, ...]) -> RankTables:
    """Rows of the tables of each kind: every rank's own."""
    own = list(enumerate(kind_of_stage))
    return replace(
        tables[0],
        seconds=np.stack([tables[kind].seconds[rank] for rank, kind in own]),
        tails=np.stack([tables[kind].tails[rank] for rank, kind in own]),
        recomputed=np.stack([tables[kind].recomputed[rank] for rank, kind in own]),
    )


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
    found = UnlikeSplit(bound_s=math.inf, split=None, step_s=cutoff_s)
    for each in tables.told:
        found = _best_of(costs, of_stages(each, costs.kind_of_stage), found)
    return replace(found, bound_s=found.step_s if found.split is not None else cutoff_s)


def _best_of(costs: UnlikeStages, tables: RankTables, found: UnlikeSplit) -> UnlikeSplit:
    """Try values of the slowest rank upwards, and tails downwards, while they can beat what was found."""
    M, beta = costs.num_microbatches, costs.bubble_weight
    slowest = least_of(tables, tables.seconds, np.maximum)
    if not math.isfinite(slowest):
        return found
    total = least_of(tables, tables.seconds, np.add)
    tail = least_of(tables, tables.tails, np.maximum)
    later = distinct(tables.seconds[tables.seconds > slowest])
    for value in (slowest, *later[np.isfinite(later)]):
        base = (M - beta) * float(value) + tail + costs.constant_s
        if base + beta * total >= found.step_s * (1 - NEARLY):
            break
        allowed: Floats = np.where(tables.seconds <= value, tables.seconds, np.inf)
        while base + beta * least_of(tables, allowed, np.add) < found.step_s * (1 - NEARLY):
            path = path_of(tables, allowed)
            split = split_of_path(tables, path)
            step_s = step_time(costs, split)
            if step_s < found.step_s:
                found = UnlikeSplit(bound_s=step_s, split=split, step_s=step_s)
            longest = _tail_of(tables, path)
            allowed = np.where(tables.tails < longest, allowed, np.inf)
    return found


def _tail_of(tables: RankTables, path: Sequence[int]) -> float:
    """The longest tail of a path."""
    tails = []
    for rank, (start, end) in enumerate(itertools.pairwise(path)):
        at = end if tables.tails.shape[1] > 1 else 0
        tails.append(float(tables.tails[rank, at, end - start - int(tables.taken[0])]))
    return max(tails)
