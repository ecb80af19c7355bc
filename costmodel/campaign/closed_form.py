"""The expected useful share of a run in closed form: Young and Daly, generalised, with its parts.

A renewal argument gives each factor; their product is the share of wall-clock time that makes progress.

- *Work between failures* (Daly 2006, for any latency b until a checkpoint is durable): a failure that
  strikes at rate Λ finds 1/Λ − s·e^(−Λb)/(e^(Λs) − 1) seconds since the last checkpoint that can be
  restored, s being work and stall between two. A level is struck by the failures that need it; those of
  nearer levels stretch s.
- *Recovery*: failures strike it as well, and begin it anew: with q = 1 − E[e^(−ΛD)] of its length D, a
  chain of them takes Σp·q/Λ / (1 − Σp·q).
- *Spares*: nodes in repair are those of a loss system, whose occupancy does not depend on how repair times
  are distributed (Erlang; Sevastyanov 1957), also where arrivals fall with fewer nodes running.

Legend: ``Λ`` rate of interruptions, ``c`` stall, ``τ`` work between checkpoints, ``s = τ + c``, ``b``
latency. Valid where `why_invalid` says nothing; there it is within 1.5 % of the simulation (a test on 200
random runs).
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np

from costmodel.campaign.course import Course, Hazard
from costmodel.campaign.record import LostShare
from topology.base.arrays import Floats

_NODES_OF_QUADRATURE = 16
MOST_PER_SEGMENT = 0.5
"""Failures per checkpoint interval, and per recovery, up to which levels are as good as independent."""
_NEVER = 1e-12
"""A share of time that is none."""
FEWEST_FAILURES = 20.0
"""Of a whole run; with fewer, how it begins and ends matters."""
MOST_GROUPS = 0.2
"""Racks and switches in repair at a time up to which each is as good as alone."""
MOST_AWAY_TOGETHER = 3
"""Of one size; four at a time are below one in ten thousand there."""
MOST_EARLY = 0.0075
"""Of a run that is overstated because it begins with no node in repair."""
MOST_SLOW = 0.5
"""Share of slow time up to which spells and failures are as good as independent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The useful share of a run and where the rest goes; together 1."""

    useful: float
    lost: LostShare


def why_invalid(course: Course) -> str:
    """Why the closed form does not answer this run, empty where it does."""
    rate, every = course.per_s, max(course.every_s)
    segments = zip(course.every_s, course.levels, strict=True)
    segment = max(each + level.stall_s + level.durable_s for each, level in segments)
    recovery = max(
        h.notice_s + h.restart_s + course.levels[course.level_for(h.loses)].load_s for h in course.hazards
    )
    if rate * segment > MOST_PER_SEGMENT:
        return f"{rate * segment:.2f} failures between checkpoints, valid to {MOST_PER_SEGMENT:g}"
    if rate * recovery > MOST_PER_SEGMENT:
        return f"{rate * recovery:.2f} failures in a recovery, valid to {MOST_PER_SEGMENT:g}"
    if rate * course.work_s < FEWEST_FAILURES or every * FEWEST_FAILURES > course.work_s:
        count = f"about {rate * course.work_s:.0f}" if rate * course.work_s >= 1 else "fewer than 1"
        return f"too few failures ({count}) for the interval formula, which needs {FEWEST_FAILURES:g}"
    if course.slow_share > MOST_SLOW:
        return f"slow for {course.slow_share:.0%} of the time, valid to {MOST_SLOW:.0%}"
    away = sum(offered for _, offered in course.groups)
    if away > MOST_GROUPS:
        return f"{away:.2f} racks or switches in repair at a time, valid to {MOST_GROUPS:g}"
    repairs = [course.back_s(h) for h in course.hazards if h.nodes]
    if repairs and course.work_s < 5 * max(repairs):
        return "the run is shorter than five repairs: nodes in repair have no steady number yet"
    if repairs and (early := _early_share(course, max(repairs))) > MOST_EARLY:
        return (
            f"{early:.1%} of the run is what nodes in repair do not cost before they have a steady number, "
            f"valid to {MOST_EARLY:.2%}"
        )
    if (
        sum(h.per_s for h in course.hazards if h.nodes > 1) * course.work_s < FEWEST_FAILURES
        and course.groups
    ):
        return f"fewer than {FEWEST_FAILURES:g} racks or switches are lost in the whole run"
    return ""


def _early_share(course: Course, repair_s: float) -> float:
    """Share of the run that a steady number of nodes in repair overstates: all are there when it begins.

    What is lost for want of nodes, in the three repairs (with heavy tails) that it takes to be so many.
    """
    states = all_states(course)
    lacking = 1 - sum(p * course.speed_without(k + away - course.spares) for k, away, p in states)
    return lacking * 3 * repair_s / course.work_s


def expected(course: Course) -> Shares:
    """Expected useful share of a run, and its losses by cause."""
    states = all_states(course)
    speeds = [course.speed_without(k + away - course.spares) for k, away, _ in states]
    moving = sum(p for (_, _, p), speed in zip(states, speeds, strict=True) if speed > 0)
    waiting = 1 - moving
    shares = at_full_strength(course)
    repair_s = course.offered / course.node_losses_per_s if course.offered else 1.0
    regrown = (
        shares.useful
        * course.regrow_s
        * sum(
            p * k / repair_s
            for (k, away, p), speed in zip(states, speeds, strict=True)
            if 0 < speed < course.speed_without(k - 1 + away - course.spares)
        )
    )
    useful = shares.useful * sum(p * speed for (*_, p), speed in zip(states, speeds, strict=True)) - regrown
    fewer = shares.useful * moving - useful
    lost = shares.lost
    return Shares(
        useful=useful,
        lost=LostShare(
            checkpoints=moving * lost.checkpoints,
            lost_work=moving * lost.lost_work,
            detection=moving * lost.detection,
            restart=moving * lost.restart,
            stragglers=moving * lost.stragglers,
            maintenance=moving * lost.maintenance,
            waiting_for_nodes=waiting,
            fewer_replicas=fewer,
        ),
    )


def all_states(course: Course) -> tuple[tuple[int, int, float], ...]:
    """Single nodes in repair, nodes of groups in repair, and the share of time of both.

    Groups are few: the nodes beside so many of them are as if they stayed away, and groups come in proportion
    to the strength that is left. Exact without groups; with them held to the simulation.
    """
    groups = course.groups
    if not groups:
        return tuple((k, 0, p) for k, p in node_states(course))
    states: list[tuple[int, int, float]] = []
    for counts in itertools.product(range(MOST_AWAY_TOGETHER + 1), repeat=len(groups)):
        weight, away = 1.0, 0
        for (nodes, offered), count in zip(groups, counts, strict=True):
            for number in range(count):
                weight *= offered / (number + 1) * _strength(course, away)
                away += nodes
        if weight > _NEVER:
            states += [(k, away, weight * p) for k, p in node_states(course, away)]
    total = sum(p for *_, p in states)
    return tuple((k, away, p / total) for k, away, p in states)


def _strength(course: Course, away: int) -> float:
    """Mean speed while so many nodes of groups are away."""
    states = node_states(course, away)
    return sum(p * course.speed_without(k + away - course.spares) for k, p in states)


def node_states(course: Course, away: int = 0) -> tuple[tuple[int, float], ...]:
    """Single nodes in repair, and the share of time: stationary weights Π a·(strength)/k, a = rate · repair.

    States beyond the one in which the run first waits are never reached: a run that waits loses no nodes.
    `away` are nodes of groups that are in repair as well.
    """
    offered = course.offered
    weights = [1.0]
    while (speed := course.speed_without(len(weights) - 1 + away - course.spares)) > 0:
        weights.append(weights[-1] * offered * speed / len(weights))
        if len(weights) > offered and weights[-1] < _NEVER * max(weights):
            break
    total = sum(weights)
    return tuple((k, weight / total) for k, weight in enumerate(weights))


def erlang_b(servers: int, offered: float) -> float:
    """Share of time in which all servers are busy, by the recursion B(n) = a·B(n−1) / (n + a·B(n−1)).

    >>> round(erlang_b(2, 1.0), 3)
    0.2
    """
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return blocked


def at_full_strength(course: Course) -> Shares:
    """Shares of a run that never lacks a node: no layout, number of spares or repair does better."""
    rate = course.per_s
    rework = _rework_share(course)  # of time that steps are made in
    pauses = sum(level.stall_s / every for level, every in zip(course.levels, course.every_s, strict=True))
    pace = course.mean_pace
    chain_s, notice_share = _recovery(course)
    up = 1 / (1 + rate * chain_s)
    kept = up * (1 - rework)
    # with stalls of c seconds after every τ of work at speed v: v·τ/(τ + v·c) of work a second
    useful = kept * pace / (1 + pauses * pace)
    stragglers = kept * (1 / (1 + pauses * pace)) * (1 - pace)
    planned = [hazard for hazard in course.hazards if hazard.name == MAINTENANCE]
    share = sum(h.per_s * (h.notice_s + h.restart_s) for h in planned) / max(
        sum(h.per_s * (h.notice_s + h.restart_s) for h in course.hazards), 1e-300
    )
    down = 1 - up
    return Shares(
        useful=useful,
        lost=LostShare(
            checkpoints=kept - useful - stragglers,
            lost_work=up * rework,
            detection=down * notice_share,
            restart=down * (1 - notice_share) * (1 - share),
            stragglers=stragglers,
            maintenance=down * (1 - notice_share) * share,
        ),
    )


MAINTENANCE = "planned maintenance"
"""The hazard that is announced: nothing is noticed late."""


def _rework_share(course: Course) -> float:
    """Share of the time steps are made in that failures undo."""
    undone = 0.0
    for index, (level, every) in enumerate(zip(course.levels, course.every_s, strict=True)):
        rate = sum(h.per_s for h in course.hazards if not h.warned and course.level_for(h.loses) == index)
        if rate:
            segment = (every + _stalls_within(course, every)) / max(1e-9, 1 - undone)
            undone += rate * lost_per_failure_s(rate, segment, level.durable_s)
    return min(undone, 1.0)


def _stalls_within(course: Course, every: float) -> float:
    """Stalls of all levels in so much work."""
    return sum(
        level.stall_s * every / each for level, each in zip(course.levels, course.every_s, strict=True)
    )


def lost_per_failure_s(rate: float, segment: float, durable_s: float) -> float:
    """Mean seconds that a failure undoes: 1/Λ − s·e^(−Λb)/(e^(Λs) − 1), about s/2 + b for rare ones.

    >>> round(lost_per_failure_s(1e-6, 100.0, 10.0), 1)
    60.0
    """
    return 1 / rate - segment * math.exp(-rate * durable_s) / math.expm1(rate * segment)


def _recovery(course: Course) -> tuple[float, float]:
    """Mean seconds of a chain of recoveries, and the share of notice in them."""
    rate = course.per_s
    struck = spent = notice = 0.0
    for hazard in course.hazards:
        weight = hazard.per_s / rate
        load = course.levels[course.level_for(hazard.loses)].load_s
        lengths, weights = _restart_lengths(hazard)
        q = float(np.sum(weights * -np.expm1(-rate * (hazard.notice_s + lengths + load))))
        struck += weight * q
        notice += weight * -math.expm1(-rate * hazard.notice_s)
        spent += weight * q
    return spent / rate / (1 - struck), notice / spent


def _restart_lengths(hazard: Hazard) -> tuple[Floats, Floats]:
    """Lengths of a restart and their weights: a lognormal in the nodes of Gauss and Hermite."""
    x, weights = _normal_nodes()
    sigma = hazard.restart_sigma
    return hazard.restart_s * np.exp(sigma * x - sigma**2 / 2), weights


@functools.cache
def _normal_nodes() -> tuple[Floats, Floats]:
    """Nodes and weights of a normal distribution."""
    x, w = np.polynomial.hermite_e.hermegauss(_NODES_OF_QUADRATURE)
    return np.asarray(x), np.asarray(w / math.sqrt(2 * math.pi))
