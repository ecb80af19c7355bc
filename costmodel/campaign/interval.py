"""How often to save, and how many nodes to keep in reserve: what makes the most of a course.

Legend: ``C`` seconds one checkpoint costs, ``M`` mean seconds between failures of the whole job.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np

from costmodel.campaign.closed_form import MOST_PER_SEGMENT, at_full_strength, expected
from costmodel.campaign.course import Course

_TRIES = 10
_ROUNDS = 4
_MOST_MULTIPLE = 64
_NEARLY = 0.98
MOST_SPARES = 2048
HARDLY = 1e-4
"""Of a run: nine minutes in two months."""


def young_daly_s(checkpoint_s: float, between_failures_s: float) -> float:
    """Seconds of work between checkpoints that lose the least time: √(2·C·M) (Young 1974; Daly 2006, eq. 5).

    >>> young_daly_s(checkpoint_s=50.0, between_failures_s=10_000.0)
    1000.0
    """
    return math.sqrt(2 * checkpoint_s * between_failures_s)


def with_best_interval(course: Course, least_s: float) -> Course:
    """The course with the intervals that make most of it, by a search of the closed form over a grid refined.

    Args:
        course: The run; its own intervals are not read.
        least_s: Shortest work between checkpoints: a step, at least.
    """
    if len(course.levels) == 1:
        return _best_on_last(course, (1,), max(least_s, course.levels[0].durable_s))
    result = []
    for each in _likely_divisors(course):
        longest_s = max(level.durable_s * d for level, d in zip(course.levels, each, strict=True))
        result.append(_best_on_last(course, each, max(least_s * each[0], longest_s)))
    return max(result, key=lambda course: at_full_strength(course).useful)


def _likely_divisors(course: Course) -> list[tuple[int, ...]]:
    """How often nearer places are saved to: powers of two around Young and Daly's interval of each level.

    Losses of levels add up to first order, so each level's best is near its own: √(2·c/Λ) of the failures
    it is for; with none of its own a level is saved to as seldom as the next.
    """
    ratios = []
    alone = [_level_optimum_s(course, index) for index in range(len(course.levels))]
    for near_s, far_s in pairwise(alone):
        exponent = math.log2(max(1.0, far_s / near_s))
        low = min(math.floor(exponent), int(math.log2(_MOST_MULTIPLE)))
        ratios.append((2**low, 2 ** (low + 1)))
    likely_divisors = []
    for steps in itertools.product(*ratios):
        divisors = [1]
        for step in reversed(steps):
            divisors.append(divisors[-1] * step)
        likely_divisors.append(tuple(reversed(divisors)))
    return likely_divisors


def _level_optimum_s(course: Course, index: int) -> float:
    """Young and Daly's interval of one level for the failures that need it."""
    level = course.levels[index]
    rate = sum(h.per_s for h in course.hazards if not h.warned and course.level_for(h.loses) == index)
    seldom_s = _NEARLY * MOST_PER_SEGMENT / course.per_s
    return max(min(young_daly_s(level.stall_s, 1 / rate), seldom_s) if rate else seldom_s, level.durable_s)


def with_best_spares(course: Course) -> Course:
    """The course with the spares that make the fewest paid node-hours: (nodes + spares) / useful share.

    Nodes that idle in any case cost no more as spares: of them the fewest after which more hardly bring the
    finish forward.
    """
    best, lowest = course, math.inf
    blocked = 1.0
    offered, held = course.offered, course.nodes + course.idle_nodes
    together = sum(nodes for nodes, _ in course.groups)
    full = at_full_strength(course).useful
    most = math.ceil(offered + 6 * math.sqrt(offered)) + 2 + 2 * together
    for spares in range(min(MOST_SPARES, most)):
        paid = max(held, course.nodes + spares)
        if paid / full > lowest:  # not even without any wait
            break
        item = replace(course, spares=spares)
        if course.floor_nodes is None and not together:  # Erlang's recursion, the next spare from the last
            blocked = offered * blocked / (spares + 1 + offered * blocked)
            useful = full * (1 - blocked)
        else:
            useful = expected(item).useful
        if useful > 0 and paid / useful < lowest:
            best, lowest = item, paid / useful
        if spares < course.idle_nodes and useful >= full * (1 - HARDLY):
            break
    return best


def with_enough_spares(course: Course) -> Course:
    """The course with the fewest spares after which more hardly bring the finish forward, at any price."""
    full = at_full_strength(course).useful
    for spares in range(MOST_SPARES):
        result = replace(course, spares=spares)
        if expected(result).useful >= full * (1 - HARDLY):
            return result
    return replace(course, spares=MOST_SPARES)


def _best_on_last(course: Course, divisors: tuple[int, ...], least_s: float) -> Course:
    """Best interval of the last level, the nearer ones at a divisor of it."""
    seldom_s = 2 / course.per_s
    if len(divisors) > 1:  # the last level has few failures of its own: no rarer than levels stay independent
        last = course.levels[-1]
        seldom_s = _NEARLY * MOST_PER_SEGMENT / course.per_s - last.stall_s - last.durable_s
    low, high = math.log(least_s), math.log(max(least_s * 1.001, seldom_s))
    best = course
    for _ in range(_ROUNDS):
        tried = np.linspace(low, high, _TRIES)
        courses = [replace(course, every_s=tuple(math.exp(x) / d for d in divisors)) for x in tried]
        scores = [at_full_strength(course).useful for course in courses]
        at = int(np.argmax(scores))
        best = courses[at]
        low, high = float(tried[max(at - 1, 0)]), float(tried[min(at + 1, _TRIES - 1)])
    return best
