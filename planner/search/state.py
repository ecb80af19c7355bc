"""What a search is asked, and what it knows so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from costmodel.layout import LayoutTable, ParallelLayout
from planner.bounds.funnel import ROUNDING
from planner.bounds.objective import Goal
from planner.law import Violation
from planner.plan import Problem
from planner.search.candidates import Candidate, Choice, estimate_of, safety, shape_of
from planner.space.dismissals import Dismissals
from topology.base.arrays import Vector

Progress = Callable[[str], None]


@dataclass(slots=True)
class Search:
    """What is asked, and what is known so far.

    `pool`, `unsplit` and `seen` are for alternatives, `hopeful` layouts that could win but for memory: `pool`
    has the best split of each combination of degrees with its score, `unsplit` the layouts that no split
    makes an answer with the scores that bound them, both with their turn. While `coarse`,
    only usual choices are tried, with state sharded over all replicas. `kept` says of layouts and
    steps whether a run of them keeps the deadline that is asked for. `by_clock` says that the clock stopped
    the solver somewhere. `contradictions` are rules that pinned fields break alone: nothing is searched.
    """

    problem: Problem
    goal: Goal
    pins: Mapping[str, Any]
    progress: Progress
    score: float = math.inf
    best: Choice | None = None
    bound: float = math.inf
    dismissed: Dismissals = field(default_factory=Dismissals)
    survivors: dict[ParallelLayout, tuple[float, Candidate]] = field(default_factory=dict)
    pool: dict[tuple[int, ...], tuple[float, int, Choice]] = field(default_factory=dict)
    unsplit: list[tuple[float, int, Candidate]] = field(default_factory=list)
    splits: Callable[[], int] = field(default_factory=lambda: count().__next__)
    seen: list[tuple[LayoutTable, Vector]] = field(default_factory=list)
    hopeful: list[tuple[LayoutTable, Vector]] = field(default_factory=list)
    coarse: bool = False
    solved: int = 0
    proven: bool = True
    by_clock: bool = False
    kept: dict[tuple[ParallelLayout, float], bool] = field(default_factory=dict)
    contradictions: tuple[Violation, ...] = ()

    @property
    def cutoff(self) -> float:
        """Score below which a layout would improve on the incumbent."""
        return self.goal.shortened(self.score, ROUNDING)

    def offer(self, choice: Choice) -> None:
        """Make a choice the incumbent if it is better, or as good and safer."""
        score = float(self.goal.score(choice.layout.num_gpus, choice.step_time_s))
        as_good = self.best is not None and score <= self.score and safety(choice) < safety(self.best)
        if (score < self.cutoff or as_good) and self.keeps(choice):
            self.score, self.best = score, choice

    def remember(self, seed: Choice, turn: int) -> None:
        """Keep the best split of each combination of degrees, of equal ones that whose turn came first."""
        key, score = shape_of(seed.layout), float(self.goal.score(seed.layout.num_gpus, seed.step_time_s))
        if key not in self.pool or (score, turn) < self.pool[key][:2]:
            self.pool[key] = (score, turn, seed)

    def keeps(self, choice: Choice) -> bool:
        """Whether a run of a choice keeps the deadline that is asked for, where one is."""
        if not self.goal.has_deadline:
            return True
        known = choice.layout, choice.step_time_s
        if known not in self.kept:
            full = estimate_of(self.problem, choice)
            self.kept[known] = self.goal.keeps(choice.layout, full)
        return self.kept[known]
