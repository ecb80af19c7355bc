"""Splits for engines that are told one number of recomputed layers: for every chunk, or all of them.

A chunk of h layers recomputes its first min(n, h). Any such split is one of those that the free dynamic
program ranges over, so its bound holds here too; where its own proposal recomputes something, n is tried from
the fewest up. More layers take longer and need less memory, so the search over n ends where n's seconds with
the memory of recomputing everything cannot beat what was found.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from costmodel.pipeline.stage_costs import StageCosts, StageSplit, fits_capacity, recompute_order, step_time
from costmodel.pipeline.stages import runs_of_ranks
from planner.plan import Recomputes
from planner.stages.dynamic_program import (
    SPARE_BYTES,
    Integers,
    LeastParts,
    RankTables,
    Recomputed,
    StageBound,
    bound_stages,
    bound_tables,
    chunk_splits,
    least_of,
    least_parts,
    rank_tables,
    rank_widths,
    split_of_path,
    wider_bound,
)

SPLITS_KEPT = 256
"""Bounds kept: layouts that differ in nothing a stage sees come in pairs, and again as alternatives."""

FEW_THRESHOLDS = 2
"""Slowest ranks tried under each number: there are several numbers, and the solver decides what is close."""


@functools.lru_cache(maxsize=SPLITS_KEPT)
def bound_any(costs: StageCosts, chunk_ranks: tuple[int, ...]) -> StageBound:
    """Bound the step time over all splits, whether an engine can be told them or not: far less work."""
    return bound_stages(costs, chunk_ranks)


@functools.lru_cache(maxsize=SPLITS_KEPT)
def bound_expressible(costs: StageCosts, chunk_ranks: tuple[int, ...], recomputes: Recomputes) -> StageBound:
    """Bound the step time over all splits that an engine can be told, and propose one."""
    free = bound_any(costs, chunk_ranks)
    if recomputes == "per-rank" or not _frees(costs) or not math.isfinite(free.bound_s):
        return free
    if free.split is not None and not any(free.split.recompute_of_stage):
        return free
    if len(chunk_ranks) > costs.num_ranks:
        return _of_chunks(costs, chunk_ranks, recomputes)
    return _of_ranks(costs, recomputes, free)


def _frees(costs: StageCosts) -> bool:
    """Whether recomputing any layer frees memory."""
    return any(a > b for a, b in zip(costs.saved_bytes, costs.saved_bytes_recomputed, strict=True))


def expressible_counts(most: int, recomputes: Recomputes) -> Iterator[int]:
    """Numbers of recomputed layers of a chunk that an engine can be told, where none has more than `most`."""
    yield from (0, most) if recomputes == "all" else range(most + 1)


def split_of_count(
    costs: StageCosts, chunk_ranks: tuple[int, ...], chunk_layers: tuple[int, ...], count: int
) -> StageSplit:
    """The split whose chunks have so many layers and recompute their first `count`."""
    result = [0] * costs.num_ranks
    for rank, held in zip(chunk_ranks, chunk_layers, strict=True):
        result[rank] += min(count, held)
    rows = runs_of_ranks(chunk_ranks, chunk_layers, costs.runs, costs.order)
    return StageSplit(layers_of_stage=rows, recompute_of_stage=tuple(result))


def _of_chunks(costs: StageCosts, chunk_ranks: tuple[int, ...], recomputes: Recomputes) -> StageBound:
    """Several chunks per rank leave one choice, how the ends share what is missing: the fewest that fit."""
    lenient = replace(costs, capacity_bytes=costs.capacity_bytes + SPARE_BYTES)
    bound_s = min(
        (step_time(costs, split) for split in _fewest(lenient, chunk_ranks, recomputes)), default=math.inf
    )
    fitting = [
        (step_time(costs, split), i, split) for i, split in enumerate(_fewest(costs, chunk_ranks, recomputes))
    ]
    if not fitting:
        return StageBound(bound_s=bound_s, split=None, seed_s=math.inf)
    seed_s, _, best = min(fitting)
    return StageBound(bound_s=min(bound_s, seed_s), split=best, seed_s=seed_s)


def _fewest(costs: StageCosts, chunk_ranks: tuple[int, ...], recomputes: Recomputes) -> Iterator[StageSplit]:
    """For every way to make chunks, the split that recomputes least and fits."""
    for chunks in chunk_splits(sum(costs.runs), len(chunk_ranks)):
        splits = (
            split_of_count(costs, chunk_ranks, chunks, count)
            for count in expressible_counts(max(chunks), recomputes)
        )
        result = next((split for split in splits if fits_capacity(costs, split)), None)
        if result is not None:
            yield result


def _of_ranks(costs: StageCosts, recomputes: Recomputes, free: StageBound) -> StageBound:
    """One chunk per rank: the dynamic program for every number that can still win, from the fewest that fits.

    A rank that takes more layers than are tabulated is slower than `wide_s` under any number.
    """
    everything, width = rank_widths(costs)
    counts = list(expressible_counts(everything, recomputes))
    wide_s = wider_bound(costs, width) if width < everything else math.inf
    first = _first_that_fits(costs, counts, width)
    if first == len(counts) and width < everything:
        width, wide_s = everything, math.inf
        first = _first_that_fits(costs, counts, width)
    best_s, least_s = math.inf, wide_s
    best: StageSplit | None = None
    for count in counts[first:]:
        if best is not None and _beyond(costs, width, count) >= best_s:
            break
        tables = _tables(costs, width, timed=count, kept=count)
        least = least_parts(tables)
        if best is not None and _floor(costs, least) >= best_s:
            continue
        bound_s, paths = bound_tables(costs, tables, thresholds=FEW_THRESHOLDS, least=least)
        least_s = min(least_s, bound_s)
        for path in paths:
            split = _strictly(split_of_path(tables, path), count)
            if fits_capacity(costs, split) and step_time(costs, split) < best_s:
                best_s, best = step_time(costs, split), split
    bound_s = max(free.bound_s, min(least_s, best_s))
    return StageBound(bound_s=min(bound_s, best_s), split=best, seed_s=best_s)


def _tables(costs: StageCosts, width: int, *, timed: int, kept: int) -> RankTables:
    """What each rank's choices cost where every chunk recomputes so many layers."""
    return rank_tables(costs, width, functools.partial(first_recomputed, costs, timed=timed, kept=kept))


def _fits(costs: StageCosts, count: int, width: int) -> bool:
    """Whether some split fits with this number."""
    tables = _tables(costs, width, timed=0, kept=count)
    return bool(np.isfinite(least_of(tables, tables.seconds, np.maximum)))


def _first_that_fits(costs: StageCosts, counts: Sequence[int], width: int) -> int:
    """Position of the first number with which something fits, by halving: more layers need less memory.

    Recomputing nothing is apart, it needs no room to recompute in.
    """
    if _fits(costs, counts[0], width):
        return 0
    low, high = 1, len(counts)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(costs, counts[middle], width) else (middle + 1, high)
    return low


def _strictly(split: StageSplit, count: int) -> StageSplit:
    """The same layers, each rank recomputing its first `count`."""
    strictly = tuple(min(count, sum(row)) for row in split.layers_of_stage)
    return StageSplit(layers_of_stage=split.layers_of_stage, recompute_of_stage=strictly)


def _beyond(costs: StageCosts, width: int, count: int) -> float:
    """Step time that no number from `count` up beats: its seconds, the memory of recomputing all layers."""
    return _floor(costs, least_parts(_tables(costs, width, timed=count, kept=sum(costs.runs))))


def _floor(costs: StageCosts, least: LeastParts) -> float:
    """Step time of the slowest rank, the sum and the longest tail, each the least there is."""
    M, beta = costs.num_microbatches, costs.bubble_weight
    slowest, total, tail = least
    return (M - beta) * slowest + beta * total + tail + costs.constant_s


def first_recomputed(costs: StageCosts, counts: Integers, *, timed: int, kept: int) -> Recomputed:
    """Every choice with its first layers recomputed, so many for its seconds and so many for its memory."""
    seconds = _by_run(costs, counts, timed) @ np.asarray(costs.recompute_s)
    values = _by_run(costs, counts, kept)
    held = np.asarray(costs.in_flight)[:, None, None]
    fixed = (
        np.add(costs.fixed_static_bytes, costs.fixed_activation_bytes)[:, None, None] + costs.working_bytes
    )
    freed = np.subtract(costs.saved_bytes, costs.saved_bytes_recomputed)
    freed = freed if timed == kept else np.maximum(freed, 0.0)  # a bound on memory for every larger number
    kept_bytes = counts @ np.asarray(costs.saved_bytes) - values @ freed
    working = np.asarray(costs.recompute_working_bytes)[:, None, None]
    any_again = values.sum(axis=-1) > 0
    need = counts @ np.asarray(costs.static_bytes) + held * kept_bytes + fixed + any_again * working
    recomputed = np.broadcast_to(values.sum(axis=-1), need.shape)
    return recomputed, seconds, need <= costs.capacity_bytes + SPARE_BYTES


def _by_run(costs: StageCosts, counts: Integers, count: int) -> Integers:
    """Recomputed layers of each run, of choices that recompute their first `count` layers."""
    left = np.minimum(counts.sum(axis=-1), count)
    values = np.zeros_like(counts)
    for run in recompute_order(costs):
        values[..., run] = np.minimum(counts[..., run], left)
        left = left - values[..., run]
    return values
