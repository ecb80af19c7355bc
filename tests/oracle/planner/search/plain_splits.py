"""Every split of the layers of a layout, every recomputation, and the best of them: a part of the enumeration.

What an engine can be told of recomputation is read in its contract alone; chunks are counted here anew.

Legend: ``P`` pipeline ranks, ``V`` chunks of a rank, ``L`` layers, ``n`` recomputed layers of a chunk.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodel.layout import ParallelLayout
from costmodel.models.spec import layer_runs
from costmodel.pipeline.stage_costs import (
    StageCosts,
    StageSplit,
    memory_of_stages,
    microbatch_seconds,
    step_time,
    tail_seconds,
)
from planner.engines.contracts import CONTRACTS
from planner.plan import FREE, Problem

Row = tuple[int, ...]
Rows = tuple[Row, ...]


def _owners(pp: int, chunks_per_rank: int, *, v_shaped: bool) -> Row:
    """The rank of every chunk in model order."""
    forward = tuple(range(pp))
    return forward + forward[::-1] if v_shaped else forward * chunks_per_rank


def _chunkings(L: int, pp: int, chunks_per_rank: int) -> list[Row]:
    """Layers of every chunk, in every way there is."""
    C = pp * chunks_per_rank
    if chunks_per_rank == 1:
        cuts = itertools.combinations(range(1, L), pp - 1)
        return [tuple(b - a for a, b in itertools.pairwise((0, *cut, L))) for cut in cuts]
    whole, sizes = -(-L // C), list[Row]()
    for least in (1, 0):
        ends = itertools.product(range(least, whole + 1), repeat=2)
        sizes = sizes or [c for a, b in ends if sum(c := (a, *(whole,) * (C - 2), b)) == L]
    return sizes


@functools.cache
def every_split(runs: Row, pp: int, chunks_per_rank: int, *, v_shaped: bool = False) -> tuple[Rows, ...]:
    """Every way to give layers to pipeline ranks: layers of each run on each rank.

    One chunk a rank: any with a layer on each. Several: equal chunks but for the first and the last of the
    model, which may be shorter, without any layer only where nothing else divides.

    >>> every_split((3,), 2, 1)
    (((1,), (2,)), ((2,), (1,)))
    >>> every_split((3,), 2, 2)
    (((1,), (2,)), ((2,), (1,)))
    """
    chunked = chunked_splits(runs, pp, chunks_per_rank, v_shaped=v_shaped)
    return tuple(dict.fromkeys(rows for _, _, rows in chunked))


@functools.cache
def chunked_splits(
    runs: Row, pp: int, chunks_per_rank: int, *, v_shaped: bool = False
) -> tuple[tuple[Row, Row, Rows], ...]:
    """Every split as the rank of every chunk in model order, its layers, and those of each run on each rank."""
    owners = _owners(pp, chunks_per_rank, v_shaped=v_shaped)
    kinds = [k for k, count in enumerate(runs) for _ in range(count)]
    found = []
    for layers in _chunkings(sum(runs), pp, chunks_per_rank):
        counts, start = [[0] * len(runs) for _ in range(pp)], 0
        for owner, held in zip(owners, layers, strict=True):
            for kind in kinds[start : start + held]:
                counts[owner][kind] += 1
            start += held
        found.append((owners, layers, tuple(tuple(row) for row in counts)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _RankChoices:
    """What one rank can do: its layers, and for each number of recomputed ones seconds, tail and bytes."""

    seconds: Sequence[float]
    tail: float
    memory: Sequence[float]


def rank_choices(
    costs: StageCosts, splits: Sequence[Rows], *, recomputes: bool
) -> dict[tuple[int, Row], _RankChoices]:
    """Costs of every load that some split gives to some rank, for every number of recomputed layers.

    `costmodel.pipeline.stage_costs` takes one rank per row, so all loads are asked for at once as so many ranks.
    """
    loads = list(dict.fromkeys((rank, row) for rows in splits for rank, row in enumerate(rows)))
    asked = [
        (rank, row, counts) for rank, row in loads for counts in range(sum(row) + 1 if recomputes else 1)
    ]
    ranks = [rank for rank, _, _ in asked]

    def spread(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(values[rank] for rank in ranks)

    many = replace(
        costs,
        fixed_s=spread(costs.fixed_s),
        fixed_static_bytes=spread(costs.fixed_static_bytes),
        fixed_activation_bytes=spread(costs.fixed_activation_bytes),
        in_flight=spread(costs.in_flight),
        recompute_working_bytes=spread(costs.recompute_working_bytes),
        tail_fixed_s=tuple(spread(form) for form in costs.tail_fixed_s),
    )
    split = StageSplit(
        layers_of_stage=tuple(row for _, row, _ in asked), recompute_of_stage=tuple(r for _, _, r in asked)
    )
    seconds, tails = microbatch_seconds(many, split).tolist(), tail_seconds(many, split).tolist()
    memory, at = memory_of_stages(many, split).tolist(), 0
    found = {}
    for load in loads:
        end = at + (sum(load[1]) + 1 if recomputes else 1)
        found[load] = _RankChoices(seconds[at:end], tails[at], memory[at:end])
        at = end
    return found


def splits_of(s: Problem, layout: ParallelLayout) -> tuple[Rows, ...]:
    """Every split of the layers of a layout."""
    runs = tuple(run.count for run in layer_runs(s.model))
    return every_split(runs, layout.pp, layout.virtual_stages, v_shaped=_v_shaped(layout))


def _v_shaped(layout: ParallelLayout) -> bool:
    """Whether chunks go down the ranks and up again."""
    return layout.pp > 1 and layout.schedule in ("zbv", "dualpipev", "v-half")


def told_splits(s: Problem, layout: ParallelLayout) -> tuple[StageSplit, ...]:
    """Every split with every recomputation that the engine can be told: one number for all chunks, or all.

    A chunk of h layers recomputes its first min(n, h).
    """
    told, found = CONTRACTS[s.engine].recomputes, dict[StageSplit, None]()
    runs = tuple(run.count for run in layer_runs(s.model))
    chunked = chunked_splits(runs, layout.pp, layout.virtual_stages, v_shaped=_v_shaped(layout))
    for owners, layers, rows in chunked:
        for n in (0, max(layers)) if told == "all" else range(max(layers) + 1):
            again = [0] * layout.pp
            for owner, held in zip(owners, layers, strict=True):
                again[owner] += min(n, held)
            found[StageSplit(layers_of_stage=rows, recompute_of_stage=tuple(again))] = None
    return tuple(found)


def fastest(
    s: Problem, layout: ParallelLayout, costs: StageCosts, budget_bytes: float
) -> tuple[float, StageSplit] | None:
    """Least step over all splits that fit, and over all recomputation that the engine can be told."""
    again = layout.recompute == "full"
    if not again or s.engine == FREE or CONTRACTS[s.engine].recomputes == "per-rank":
        return fastest_split(costs, splits_of(s, layout), budget_bytes, recomputes=again)
    splits, best = told_splits(s, layout), None
    choices = rank_choices(costs, [split.layers_of_stage for split in splits], recomputes=True)
    for split in splits:
        ranks = [
            (choices[load], r)
            for load, r in zip(enumerate(split.layers_of_stage), split.recompute_of_stage, strict=True)
        ]
        if max(one.memory[r] for one, r in ranks) > budget_bytes:
            continue
        step = _step(costs, [one.seconds[r] for one, r in ranks], max(one.tail for one, _ in ranks))
        if best is None or step < best[0]:
            best = (step, split)
    return None if best is None else (step_time(costs, best[1]), best[1])


def _step(costs: StageCosts, t: Sequence[float], tail: float) -> float:
    """Seconds of a step whose ranks take so long for a microbatch."""
    slowest = max(t)
    return (
        costs.num_microbatches * slowest + costs.bubble_weight * (sum(t) - slowest) + tail + costs.constant_s
    )


def fastest_split(
    costs: StageCosts, splits: Sequence[Rows], budget_bytes: float, *, recomputes: bool
) -> tuple[float, StageSplit] | None:
    """Least step over all splits that fit, each rank recomputing as many layers as it is fastest with.

    The step never falls when the time of a rank grows, so the fastest of what fits is best for every rank:
    the fewest recomputed layers, unless a layer takes less time recomputed.
    """
    choices = rank_choices(costs, splits, recomputes=recomputes)
    least: dict[tuple[int, Row], int | None] = {}
    for load, c in choices.items():
        fitting = [r for r, needed in enumerate(c.memory) if needed <= budget_bytes]
        least[load] = min(fitting, key=c.seconds.__getitem__, default=None)
    best = None
    for rows in splits:
        loads = list(enumerate(rows))
        counts = [least[load] for load in loads]
        if None in counts:
            continue
        t = [choices[load].seconds[r] for load, r in zip(loads, counts, strict=True) if r is not None]
        tail = max(choices[load].tail for load in loads)
        step = _step(costs, t, tail)
        if best is None or step < best[0]:
            best = (step, StageSplit(layers_of_stage=rows, recompute_of_stage=tuple(r or 0 for r in counts)))
    return None if best is None else (step_time(costs, best[1]), best[1])


def emptiest_split(
    s: Problem, layout: ParallelLayout, costs: StageCosts, longest_s: float
) -> tuple[float, StageSplit] | None:
    """Least peak memory over all splits and recompute counts whose step is at most so long."""
    choices = rank_choices(costs, splits_of(s, layout), recomputes=layout.recompute == "full")
    budgets = sorted({needed for c in choices.values() for needed in c.memory})
    for budget in budgets:
        found = fastest(s, layout, costs, budget)
        if found is not None and found[0] <= longest_s:
            return budget, found[1]
    return None
