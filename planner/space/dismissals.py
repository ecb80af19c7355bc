"""What a search looked away from, and why it may: counts by rule, counts and least bounds by bound.

A layout that a rule forbids needs no bound. One that a bound dismisses could at best have reached that bound;
the least of them, kept for every stage of the funnel, is what the certificate of a plan rests on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.space.columns import Integers
from topology.base.arrays import Vector


@dataclass(slots=True)
class Dismissals:
    """Layouts left out, by reason: how many, and the least score that a bound left them to reach."""

    counts: Counter[str] = field(default_factory=Counter)
    floors: dict[str, float] = field(default_factory=dict)

    def by_rule(self, counts: Mapping[str, int]) -> None:
        """Count layouts that break a rule or cannot fit."""
        self.counts.update(counts)

    def by_bound(self, reason: str, scores: Vector) -> None:
        """Count layouts that could at best have reached these scores; infinite ones cannot fit at all."""
        if len(scores):
            self.counts[reason] += len(scores)
            self.floors[reason] = min(self.floors.get(reason, math.inf), float(scores.min()))

    def in_turn(
        self, reason: str, scores: Vector, cutoff: Callable[[], float], *, first: int, growth: int
    ) -> Iterator[Integers]:
        """Places of scores in batches, best first, while they are below the cutoff, which sinks meanwhile.

        Args:
            reason: why what is left in the end was not looked at.
            scores: what each could at best reach.
            cutoff: score below which one is of interest.
            first: size of the first batch.
            growth: how many times larger each next one is.
        """
        order = np.argsort(scores, kind="stable")
        start, size = 0, first
        while start < len(order):
            batch = order[start : start + size]
            batch = batch[scores[batch] < cutoff()]
            if len(batch) == 0:
                break
            yield batch
            start, size = start + len(batch), growth * size
        self.by_bound(reason, scores[order[start:]])

    def take_over(self, other: Dismissals) -> None:
        """Add what another part of the search left out."""
        self.counts.update(other.counts)
        for reason, least in other.floors.items():
            self.floors[reason] = min(self.floors.get(reason, math.inf), least)
