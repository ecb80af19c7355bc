"""One run as a random process: what strikes it, what it saves, what it holds in reserve.

The closed form (`closed_form`) and the event simulation (`simulate`) answer the same `Course`, which is all
they know. Times are seconds, rates per second of the whole job at full strength.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from costmodel.campaign.record import SURVIVED, Notice, Scope, Survival
from topology.base.errors import InputError
from topology.base.units import format_seconds

TEN_TO_NINETY = 2 * 1.2815515655446004
"""Standard deviations between the tenth and the ninetieth percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLevel:
    """A place a checkpoint goes to.

    Attributes:
        name: Of the place.
        stall_s: Seconds the steps wait for it.
        durable_s: Seconds after the stall until it can be restored from.
        load_s: Seconds to load it on a restart.
        survives: The largest loss after which it is still there.
    """

    name: str
    stall_s: float
    durable_s: float
    load_s: float
    survives: Survival = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """Interruptions of one kind.

    Attributes:
        name: What is told of it.
        per_s: Rate.
        notice_s: Until it is noticed; nothing done meanwhile counts.
        restart_s: From there to the next step, without loading; the mean.
        restart_sigma: Deviation of the logarithm of that.
        loses: What is lost, which decides the level to restore from.
        noticed: How it shows.
        warned: Said long enough before that a checkpoint is saved first, whose seconds are in the restart.
        together: Nodes that are lost at once, where nodes are.
        repair_s: Until they are back, all at once; None for that of the course.
        repair_sigma: Deviation of the logarithm of that.
    """

    name: str
    per_s: float
    notice_s: float
    restart_s: float
    restart_sigma: float = 0.0
    loses: Scope = "process"
    noticed: Notice = "crash"
    warned: bool = False
    together: int = 1
    repair_s: float | None = None
    repair_sigma: float = 0.0

    @property
    def nodes(self) -> int:
        """Nodes that go to repair."""
        return self.together if self.loses in ("node", "rack") else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A run and its world.

    Attributes:
        work_s: Seconds of steps at full strength that make the run.
        nodes: Nodes it runs on.
        spares: Nodes that wait beside it, ready to take over.
        idle_nodes: Nodes beside it that are held in any case: as many spares cost nothing more.
        hazards: What interrupts it.
        levels: Where checkpoints go, nearest first.
        every_s: Seconds of work between checkpoints, one for each level; each a multiple of the one before.
        repair_s: Mean seconds until a lost node is back.
        repair_sigma: Deviation of the logarithm of that.
        replica_nodes: Nodes of one replica: with a lost node and no spare, so many stop (elastic).
        floor_nodes: Fewest nodes it goes on with; `nodes` means that it waits.
        regrow_s: Seconds it takes a replica in again whose nodes are repaired.
        slow_per_s: Rate at which some node becomes slow.
        slow_spell_s: Seconds until that is found and over.
        slowdown: Factor on the step meanwhile.
    """

    work_s: float
    nodes: int
    spares: int = 0
    idle_nodes: int = 0
    hazards: tuple[Hazard, ...]
    levels: tuple[CheckpointLevel, ...]
    every_s: tuple[float, ...]
    repair_s: float
    repair_sigma: float = 0.0
    replica_nodes: int = 1
    floor_nodes: int | None = None
    regrow_s: float = 0.0
    slow_per_s: float = 0.0
    slow_spell_s: float = 1.0
    slowdown: float = 1.0

    @property
    def paid_spares(self) -> int:
        """Spares that are held for the run alone: those beyond the nodes that idle in any case."""
        return max(0, self.spares - self.idle_nodes)

    @property
    def per_s(self) -> float:
        """Rate of all interruptions."""
        return sum(hazard.per_s for hazard in self.hazards)

    @property
    def node_losses_per_s(self) -> float:
        """Rate of those that take one node."""
        return sum(hazard.per_s for hazard in self.hazards if hazard.nodes == 1)

    @property
    def offered(self) -> float:
        """Single nodes in repair, were there spares without end: the sum of rate · repair."""
        return sum(h.per_s * self.back_s(h) for h in self.hazards if h.nodes == 1)

    @property
    def groups(self) -> tuple[tuple[int, float], ...]:
        """Numbers of nodes that are lost together, and how many such groups are in repair at a time."""
        result: dict[int, float] = {}
        for hazard in self.hazards:
            if hazard.nodes > 1:
                away = hazard.per_s * self.back_s(hazard)
                result[hazard.nodes] = result.get(hazard.nodes, 0.0) + away
        return tuple(sorted(result.items()))

    def back_s(self, hazard: Hazard) -> float:
        """Mean seconds until what a hazard took is back."""
        return self.repair_s if hazard.repair_s is None else hazard.repair_s

    @property
    def slow_share(self) -> float:
        """Share of time in which some node is slow: 1 − e^(−rate · spell), infinitely many servers."""
        return -math.expm1(-self.slow_per_s * self.slow_spell_s)

    @property
    def slow_gap_s(self) -> float:
        """Mean seconds from the end of a spell to the next, so that `slow_share` of the time is slow."""
        return self.slow_spell_s * (1 - self.slow_share) / self.slow_share

    @property
    def mean_pace(self) -> float:
        """Speed of steps beside that without slow nodes, in the mean over time."""
        return 1 - self.slow_share * (1 - 1 / self.slowdown)

    def load_s(self, hazard: Hazard) -> float:
        """Seconds to load what a hazard makes it load."""
        return self.levels[self.level_for(hazard.loses)].load_s

    @property
    def replicas(self) -> int:
        """Replicas at full strength."""
        return max(1, self.nodes // self.replica_nodes)

    def speed_without(self, lost: int) -> float:
        """Speed with so many nodes fewer than it runs on, 0 where it waits."""
        if lost <= 0:
            return 1.0
        left = self.replicas - math.ceil(lost / self.replica_nodes)
        floor = self.nodes if self.floor_nodes is None else self.floor_nodes
        return left / self.replicas if left > 0 and left * self.replica_nodes >= floor else 0.0

    def level_for(self, loses: Scope) -> int:
        """Index of the nearest level that survives a loss."""
        for index, level in enumerate(self.levels):
            if loses in SURVIVED[level.survives]:
                return index
        raise InputError(
            what="nothing that is kept survives all that fails",
            cause=f"a cause loses {loses}, checkpoints are on "
            + ", ".join(f"{level.name} (survives {level.survives})" for level in self.levels),
            fix='keep them on storage with survives = "memory" as well',
        )


def require_possible(course: Course) -> Course:
    """The course, unless a run of it makes no headway.

    Raises:
        InputError: no failures at all, or a restart that takes longer than the next failure.
    """
    if not course.hazards or course.per_s <= 0:
        raise InputError(
            what="a campaign needs a rate of failures",
            cause=f"{len(course.hazards)} causes, {course.per_s:g} a second",
            fix="give at least one cause with events above 0",
        )
    between_s = 1 / course.per_s
    back_s = mean_of(course.hazards, lambda h: h.notice_s + h.restart_s + course.load_s(h))
    if back_s >= between_s:
        nodes = math.ceil(course.nodes * between_s / back_s) - 1
        fewer = f"use {nodes:,} nodes or fewer" if nodes else "let one node fail less often"
        raise InputError(
            what="the run is interrupted faster than it comes back",
            cause=f"a failure every {format_seconds(between_s)}, {format_seconds(back_s)} to notice and "
            "restart",
            fix=f"{fewer}, or notice and restart within {format_seconds(between_s)}: failures "
            f"{back_s / between_s:.4g} times as seldom would do",
        )
    return course


def mean_of(hazards: Iterable[Hazard], value: Callable[[Hazard], float]) -> float:
    """Mean of a value over hazards, each as often as it strikes."""
    known = tuple(hazards)
    total = sum(hazard.per_s for hazard in known)
    return float(sum(hazard.per_s * value(hazard) for hazard in known) / total)
