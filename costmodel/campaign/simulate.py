"""Many runs of one course, event by event: the oracle of the closed form, and the answer where that has none.

All campaigns advance together, one event each at a time, as vectors. A run is at every moment in one of three
phases: it waits for nodes, it recovers, or it makes steps. Failures strike in the last two; between two
events steps and stalls of checkpoints follow each other exactly, by nested cycles.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from costmodel.campaign.closed_form import MAINTENANCE
from costmodel.campaign.course import Course
from costmodel.campaign.cycles import Cycles
from costmodel.campaign.record import SURVIVED
from topology.base.arrays import Floats
from topology.base.errors import InputError

Flags: TypeAlias = npt.NDArray[np.bool_]
Counts: TypeAlias = npt.NDArray[np.intp]
_MOST_EVENTS = 30_000
_TINY = 1e-9
_MOST_SPELLS = 1_000
"""Slow spells of a campaign beyond which their sum is known to √(1/1000), 3 % of itself: steps are then all
slow by what spells cost on average, as in the closed form, and no spell is an event."""
_LOOKED_AT_EVERY = 8
"""Events between two looks at which campaigns are late already: a look costs about as much as an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Simulated campaigns, one entry each; seconds, and interruptions that were not planned."""

    work_s: Floats
    wall_s: Floats
    interruptions: Floats
    lost_work_s: Floats
    detection_s: Floats
    restart_s: Floats
    maintenance_s: Floats
    waiting_for_nodes_s: Floats
    fewer_replicas_s: Floats
    stragglers_s: Floats

    @property
    def useful_share(self) -> Floats:
        """Seconds of work over seconds of the clock."""
        return np.asarray(self.work_s / self.wall_s, dtype=np.float64)

    @property
    def checkpoints_s(self) -> Floats:
        """What is left: stalls of checkpoints that were kept."""
        parts = [getattr(self, field.name) for field in fields(self) if field.name not in _NO_PARTS]
        left: Floats = self.wall_s - self.work_s - np.sum(parts, axis=0)
        return np.maximum(0.0, left)


_NO_PARTS = ("work_s", "wall_s", "interruptions")


def simulate(
    course: Course,
    runs: int,
    seed: int = 0,
    *,
    rate_factor: Floats | None = None,
    work_factor: Floats | None = None,
) -> Runs:
    """Simulate campaigns of a course to their end.

    Args:
        course: The run.
        runs: How many.
        seed: Of the random numbers; the same seed gives the same campaigns.
        rate_factor: On the rates of every hazard, one for each campaign.
        work_factor: On the work, one for each campaign.

    Raises:
        InputError: a run is interrupted so often that it does not end.
    """
    result = simulate_unless_late(
        course, runs, seed, limit_s=np.full(runs, np.inf), rate_factor=rate_factor, work_factor=work_factor
    )
    if result is None:
        raise ValueError("no run is later than never")
    return result


def simulate_unless_late(
    course: Course,
    runs: int,
    seed: int = 0,
    *,
    limit_s: Floats,
    most_late: int = 0,
    rate_factor: Floats | None = None,
    work_factor: Floats | None = None,
) -> Runs | None:
    """The same campaigns, or None as soon as more than `most_late` cannot be done by their limit any more.

    Args:
        course: The run.
        runs: How many.
        seed: Of the random numbers.
        limit_s: Seconds in which each campaign has to be done.
        most_late: Campaigns that may need longer.
        rate_factor: On the rates of every hazard, one for each campaign.
        work_factor: On the work, one for each campaign.

    Raises:
        InputError: a run is interrupted so often that it does not end.
    """
    state = _State(course, runs, np.random.default_rng(seed), rate_factor, work_factor)
    for event in range(_MOST_EVENTS):
        is_done = not state.advance()
        if (is_done or event % _LOOKED_AT_EVERY == 0) and (state.earliest_s() > limit_s).sum() > most_late:
            return None
        if is_done:
            return state.result()
    raise InputError(
        what="the simulated runs do not end",
        cause=f"{_MOST_EVENTS:,} interruptions and repairs, and some run is not finished",
        fix="use fewer nodes, faster restarts, or a site with fewer failures",
    )


class _State:
    """All campaigns in the middle of their run."""

    def __init__(
        self,
        course: Course,
        runs: int,
        rng: np.random.Generator,
        rate_factor: Floats | None,
        work_factor: Floats | None,
    ) -> None:
        self.course, self.rng, self.n = course, rng, runs
        ones = np.ones(runs)
        self.rates = course.per_s * (ones if rate_factor is None else rate_factor)
        self.work = course.work_s * (ones if work_factor is None else work_factor)
        self.cycles = Cycles.of(course)
        hazards = course.hazards
        self.odds = np.cumsum([hazard.per_s for hazard in hazards]) / course.per_s
        self.level_of = np.array([course.level_for(hazard.loses) for hazard in hazards])
        self.survives = np.array(
            [[hazard.loses in SURVIVED[level.survives] for hazard in hazards] for level in course.levels]
        )
        self.warned = np.array([hazard.warned for hazard in hazards])
        self.notice = np.array([hazard.notice_s for hazard in hazards])
        self.restart = np.array([hazard.restart_s for hazard in hazards])
        self.sigma = np.array([hazard.restart_sigma for hazard in hazards])
        self.takes = np.array([hazard.nodes for hazard in hazards])
        without_repair = [hazard.repair_s is None for hazard in hazards]
        self.repair_s = np.array([course.back_s(hazard) for hazard in hazards])
        self.repair_sigma = np.array(
            [
                course.repair_sigma if mine else h.repair_sigma
                for mine, h in zip(without_repair, hazards, strict=True)
            ]
        )
        self.announced = np.array([hazard.name == MAINTENANCE for hazard in hazards])
        self.loads = np.array([level.load_s for level in course.levels])
        self.speeds = _speed_table(course)
        self.blends = course.slow_per_s * course.work_s / course.mean_pace > _MOST_SPELLS
        self.t, self.x, self.restored = np.zeros(runs), np.zeros(runs), np.zeros(runs)
        self.notice_left, self.back_left = np.zeros(runs), np.zeros(runs)
        self.is_planned = np.zeros(runs, dtype=bool)
        self.durable = np.zeros((len(course.levels), runs))
        self.repairs, self.taken = np.full((4, runs), np.inf), np.zeros((4, runs), dtype=np.intp)
        self.slow_until = np.zeros(runs)
        self.spent = {field.name: np.zeros(runs) for field in fields(Runs) if field.name not in _NO_PARTS}
        self.count = np.zeros(runs)
        self.alive = np.ones(runs, dtype=bool)

    def earliest_s(self) -> Floats:
        """Seconds before which no campaign is done: from here on at full strength, and nothing strikes."""
        ones = np.ones(self.n)
        left: Floats = self.cycles.wall(self.work, ones) - self.cycles.wall(self.x, ones)
        return self.t + np.maximum(0.0, left)

    def advance(self) -> bool:
        """Let every campaign have its next event; False once all are done."""
        self.repairs[self.repairs <= self.t] = np.inf
        away = (np.isfinite(self.repairs) * self.taken).sum(axis=0)
        speed = self.speeds[np.minimum(away, len(self.speeds) - 1)]
        back = self.repairs.min(axis=0)
        waits = self.alive & (speed <= 0)
        recovers = self.alive & ~waits & (self.notice_left + self.back_left > 0)
        steps = self.alive & ~waits & ~recovers
        strike = self.rng.exponential(1.0, self.n) / (self.rates * np.maximum(speed, _TINY))
        self._wait(waits, back)
        struck = self._recover(recovers, strike) | self._step(steps, strike, speed, away, back)
        if struck.any():
            self._strike(np.flatnonzero(struck))
        return bool(self.alive.any())

    def _wait(self, at: Flags, back: Floats) -> None:
        """Wait until the next node is repaired; what is not noticed yet is noticed meanwhile."""
        waited = np.where(at, back - self.t, 0.0)
        self.spent["waiting_for_nodes_s"] += waited
        self.notice_left = np.maximum(0.0, self.notice_left - waited)
        self.t = np.where(at, back, self.t)

    def _recover(self, at: Flags, strike: Floats) -> Flags:
        """Come back, unless a failure strikes before; returns whom it strikes."""
        whole = self.notice_left + self.back_left
        hit = at & (strike < whole)
        passed = np.where(at, np.minimum(strike, whole), 0.0)
        noticed = np.minimum(passed, self.notice_left)
        self.spent["detection_s"] += noticed
        self.spent["maintenance_s"] += np.where(self.is_planned, passed - noticed, 0.0)
        self.spent["restart_s"] += np.where(self.is_planned, 0.0, passed - noticed)
        self.t += passed
        self.notice_left = np.where(at, 0.0, self.notice_left)
        self.back_left = np.where(at, 0.0, self.back_left)
        return hit

    def _step(self, at: Flags, strike: Floats, speed: Floats, away: Counts, back: Floats) -> Flags:
        """Make steps until the next event; returns whom a failure strikes."""
        course = self.course
        slow = self.slow_until > self.t
        slower = 1 / course.mean_pace if self.blends else np.where(slow, course.slowdown, 1.0)
        v = np.where(at, speed / slower, 1.0)
        start = self.cycles.wall(self.x, v)
        finish = self.cycles.wall(self.work, v) - start
        regrow = np.where(speed < 1, back - self.t, np.inf)
        turn = np.where(slow, self.slow_until - self.t, np.inf)
        if course.slow_per_s and not self.blends:
            turn = np.where(slow, turn, self.rng.exponential(course.slow_gap_s, self.n))
        span = np.minimum.reduce([strike, finish, regrow, turn])
        reached = np.where(finish <= span, self.work, self.cycles.work(start + span, v))
        reached = np.maximum(np.minimum(reached, self.work), self.x)
        self._keep(at, start + span, v)
        done = np.where(at, reached - self.x, 0.0)
        self.spent["fewer_replicas_s"] += done * (1 / np.maximum(speed, _TINY) - 1) * (speed < 1)
        lost = done * (1 / v - 1 / np.maximum(speed, _TINY))
        self.spent["stragglers_s"] += np.where(slow | self.blends, lost, 0.0)
        self.x = np.where(at, reached, self.x)
        self.t += np.where(at, span, 0.0)
        turns = at & (turn <= span)
        until = np.where(slow, self.t, self.t + course.slow_spell_s)
        self.slow_until = np.where(turns, until, self.slow_until)
        self._regrow(at & (regrow <= span), away)
        finished = at & (finish <= span)
        self.alive &= ~finished
        return np.asarray(at & ~finished & (strike <= span))

    def _regrow(self, at: Flags, away: Counts) -> None:
        """A node is back: where that makes another replica, it is taken in."""
        last = len(self.speeds) - 1
        next_back = self.repairs.argmin(axis=0)
        some = self.taken[next_back, np.arange(self.n)]
        gains = self.speeds[np.clip(away - some, 0, last)] > self.speeds[np.minimum(away, last)]
        self.back_left = np.where(at & gains, self.course.regrow_s, self.back_left)
        self.is_planned &= ~at

    def _keep(self, at: Flags, wall: Floats, v: Floats) -> None:
        """Note the checkpoints that can be restored from by now."""
        for index in range(len(self.cycles.every)):
            values = self.cycles.durable(index, wall, v)
            newer = at & (values > self.restored) & (values > self.durable[index])
            self.durable[index] = np.where(newer, np.minimum(values, self.work), self.durable[index])

    def _strike(self, who: npt.NDArray[np.intp]) -> None:
        """A failure of some cause: back to the newest checkpoint that survives it, a node lost or not."""
        drawn = self.rng.random(len(who)) * self.odds[-1]
        kind = np.searchsorted(self.odds, drawn).clip(0, len(self.odds) - 1)
        level = self.level_of[kind]
        reach, warned = self.survives[:, kind], self.warned[kind]
        newest = np.where(warned, self.x[who], np.where(reach, self.durable[:, who], -1.0).max(axis=0))
        self.spent["lost_work_s"][who] += self.x[who] - newest
        self.x[who] = self.restored[who] = newest
        lost_too = ~reach | (self.durable[:, who] > newest) | warned
        self.durable[:, who] = np.where(lost_too, newest, self.durable[:, who])
        spread = np.exp(self.sigma[kind] * self.rng.standard_normal(len(who)) - self.sigma[kind] ** 2 / 2)
        self.notice_left[who] = self.notice[kind]
        self.back_left[who] = self.restart[kind] * spread + self.loads[level]
        self.is_planned[who] = self.announced[kind]
        self.count[who] += ~self.announced[kind]
        takes = self.takes[kind] > 0
        self._send_to_repair(who[takes], kind[takes])

    def _send_to_repair(self, who: npt.NDArray[np.intp], kind: npt.NDArray[np.intp]) -> None:
        """The nodes that each of these lost go to repair together, in the first place that is free."""
        if not len(who):
            return
        free = np.isinf(self.repairs[:, who])
        if not free.any(axis=0).all():
            self.repairs = np.vstack([self.repairs, np.full_like(self.repairs, np.inf)])
            self.taken = np.vstack([self.taken, np.zeros_like(self.taken)])
            free = np.isinf(self.repairs[:, who])
        sigma = self.repair_sigma[kind]
        takes = np.exp(sigma * self.rng.standard_normal(len(who)) - sigma**2 / 2) * self.repair_s[kind]
        place = free.argmax(axis=0)
        self.repairs[place, who] = self.t[who] + takes
        self.taken[place, who] = self.takes[kind]

    def result(self) -> Runs:
        """The finished campaigns."""
        return Runs(work_s=self.work, wall_s=self.t, interruptions=self.count, **self.spent)


def _speed_table(course: Course) -> Floats:
    """Speed by nodes in repair, up to the first number with which the run waits."""
    speeds = [1.0]
    while speeds[-1] > 0:
        speeds.append(course.speed_without(len(speeds) - course.spares))
    return np.array(speeds)
