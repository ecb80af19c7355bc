"""The emptiest plan, of all or of those as fast as the fastest: searches under ever smaller memory.

Whether some plan fits into a budget of memory is itself a search, which either finds one or proves that there
is none. Halving the budget between what a plan needs and what is proven too little gives the emptiest plan to
within `CLOSE_ENOUGH` of its memory, and the proof.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.bounds.objective import Goal
from planner.plan import Problem
from planner.search.best_first import finds_a_layout, run_search
from planner.search.candidates import Choice
from planner.search.state import Search

CLOSE_ENOUGH = 0.02
"""Share of its memory to within which the emptiest plan is found."""


def emptiest(fastest: Search, longest_s: float) -> tuple[Choice | None, float]:
    """The plan of least memory whose step is at most so long, and bytes that no such plan can do with.

    Args:
        fastest: a finished search for the fastest plan.
        longest_s: the longest step that counts as equally fast.
    """
    best, capacity = fastest.best, fastest.problem.cluster.gpu.memory_bytes
    if best is None:
        return None, capacity
    too_little = 0.0
    while best.peak_memory_bytes - too_little > CLOSE_ENOUGH * best.peak_memory_bytes:
        budget = (best.peak_memory_bytes + too_little) / 2
        within = _search_within(fastest, budget / capacity, longest_s)
        if within.best is not None:
            best = within.best
        elif within.proven:
            too_little = budget
        else:
            break
    return best, too_little


def least_memory_layout(
    problem: Problem, pins: Mapping[str, Any], known_bytes: float, least_bytes: float
) -> Choice | None:
    """The layout of least memory whatever its step; None where none needs less than a known one.

    What a GPU has is tried first, so that a layout that it holds is found wherever there is one.

    Args:
        problem: What is asked.
        pins: Pinned fields.
        known_bytes: Peak of a layout that is known.
        least_bytes: What every layout needs at least.
    """
    best, most, too_little = None, known_bytes, least_bytes
    budget = problem.cluster.gpu.memory_bytes
    while most - too_little > CLOSE_ENOUGH * most:
        budget = budget if too_little < budget < most else (most + too_little) / 2
        within = Search(
            problem=replace(problem, memory_headroom=1 - budget / problem.cluster.gpu.memory_bytes),
            goal=Goal(objective="step-time", limit_s=math.inf), pins=pins, progress=lambda _: None,
        )  # fmt: skip
        if finds_a_layout(within) and within.best is not None:
            best, most = within.best, min(budget, within.best.peak_memory_bytes)
        else:
            too_little = budget
    return best


def _search_within(fastest: Search, share: float, longest_s: float) -> Search:
    """Search again in this share of a GPU's memory for plans whose step is at most so long."""
    problem = replace(fastest.problem, memory_headroom=1 - share)
    within = Search(
        problem=problem,
        goal=fastest.goal,
        pins=fastest.pins,
        progress=fastest.progress,
        score=longest_s,
    )
    run_search(within)
    return within
