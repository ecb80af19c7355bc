"""The bound of a plan derived once more, by a slower and simpler path than the search took.

The search proves with seven bounds, an incumbent and an order. Here every layout of the space is unfolded and
priced, one inequality (`planner.bounds.ranks.step_lower_bound`) dismisses those that cannot beat the claim,
and the dynamic program, then CP-SAT, decide each of the rest. No bound of pairs, placements, pipelines, ranks
or memory takes part, no incumbent and no coarse search, so a mistake in any of them shows as a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodel.layout import LayoutTable, ParallelLayout
from planner.bounds.objective import Goal
from planner.bounds.priced import priced_columns
from planner.bounds.ranks import plain_bounds
from planner.plan import PlanRequest, Problem
from planner.rules.check import parse_pins
from planner.search.candidates import candidate, choice, decide, estimate_of
from planner.search.search import PROVEN_GAP
from planner.space.degrees import combinations
from planner.space.unfold import eased, pipelines, placements, shardings, variants

Progress = Callable[[str], None]

COMBINATIONS_AT_ONCE = 2_000
"""Combinations unfolded at once, to bound memory: about forty thousand layouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rederived:
    """What the slow path found: seconds that no layout can beat on as many GPUs, and how it knows.

    Attributes:
        bound_s: least step that any layout could reach; the claim itself where none can beat it.
        layouts: layouts unfolded and priced.
        dismissed: those of them that one inequality dismissed.
        split: those that the dynamic program decided.
        solved: those that CP-SAT decided.
        better: the first layout found that beats the claim, if any does.
    """

    bound_s: float
    layouts: int
    dismissed: int
    split: int
    solved: int
    better: ParallelLayout | None


def rederive(
    problem: Problem,
    goal: Goal,
    request: PlanRequest,
    score: float,
    seconds: Callable[[float], float],
    progress: Progress = lambda _: None,
) -> Rederived:
    """Unfold the whole space and find the least step that any layout could reach, if it is below a score.

    Args:
        problem: what layouts are judged against.
        goal: what "best" means.
        request: its pins are read.
        score: the claim: only layouts that could beat it are decided.
        seconds: the step with which the plan would have a score, which the bound is expressed in.
        progress: told how far it is.
    """
    pins = parse_pins(request.pins)
    every, _ = combinations(problem, pins)
    cutoff, least, better = goal.shortened(score, PROVEN_GAP), score, None
    layouts = dismissed = split = solved = 0
    for start in range(0, len(every), COMBINATIONS_AT_ONCE):
        progress(f"{start:,} of {len(every):,} combinations of degrees, {layouts:,} layouts")
        table = _unfold(
            problem, pins, every.take(np.arange(start, min(start + COMBINATIONS_AT_ONCE, len(every))))
        )
        layouts += len(table)
        if len(table) == 0:
            continue
        priced = priced_columns(problem, table)
        scores = goal.score(table.num_gpus, plain_bounds(problem, priced))
        for row in np.flatnonzero(scores < cutoff):
            result = candidate(problem, priced, int(row))
            G, split = result.layout.num_gpus, split + 1
            if float(goal.score(G, result.known.bound_s)) >= cutoff:
                continue
            solution, solved = decide(result, float(goal.cutoff_s(G, cutoff))), solved + 1
            if solution.split is not None:
                chosen = choice(result.layout, result.costs, solution.split, solution.step_time_s)
                if not goal.keeps(chosen.layout, estimate_of(problem, chosen)):
                    continue
            least = min(least, float(goal.score(G, solution.bound_s)))
            if solution.split is not None and better is None:
                better = result.layout
        dismissed += int((scores >= cutoff).sum())
    return Rederived(
        bound_s=seconds(least),
        layouts=layouts,
        dismissed=dismissed,
        split=split,
        solved=solved,
        better=better,
    )


def _unfold(problem: Problem, pins: dict[str, object], table: LayoutTable) -> LayoutTable:
    """Every legal layout of some combinations."""
    placed, _ = placements(problem, pins, table)
    layouts, _, _ = pipelines(problem, pins, placed)
    usual, _ = variants(problem, pins, layouts)
    layouts, _ = shardings(problem, pins, LayoutTable.concat([usual, eased(problem, pins, usual)[0]]))
    return layouts
