"""What is different in recorded steps without a cause, and the step that this leaves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.diagnose.budget import host_at_work, sets_of
from planner.diagnose.classes import PHASES_IDLE, computes, kernel_classes, phase
from planner.diagnose.collectives import Call
from planner.diagnose.finding import StepFinding
from planner.diagnose.intervals import EMPTY, Intervals, inverted, union, without
from planner.diagnose.record import RecordedJob, stretches
from planner.diagnose.retiming import Repair, step_graph
from planner.traces.events import Events

Seen = tuple[StepFinding, Repair | None]
"""A cause with its repair; None where it is not known what would be different."""
SAME: Final = 1e-3
"""Share of a step that recorders' rounding makes."""
Chosen = Callable[[Events], NDArray[np.bool_]]


def with_gains(job: RecordedJob, seen: Iterable[Seen]) -> tuple[StepFinding, ...]:
    """Findings with the step that their repair leaves, where the record tells it.

    Waits of the record that the repair makes needless may stay: a step that comes out longer tells nothing.
    """
    seen = list(seen)
    graph = step_graph(job) if any(repair is not None for _, repair in seen) else None
    recorded_s = graph.seconds() if graph is not None else 0.0

    def left_s(repair: Repair | None) -> float | None:
        if graph is None or repair is None or not recorded_s:
            return None
        ratio = graph.seconds(repair) / recorded_s
        return job.step_s * min(1.0, ratio) if ratio <= 1.0 + SAME else None

    return tuple(replace(finding, step_without_s=left_s(repair)) for finding, repair in seen)


def scaled(job: RecordedJob, chosen: Chosen, factor: float, ranks: Collection[int] | None = None) -> Repair:
    """Some events of some ranks, or of all, take a part of their time."""
    factors = dict.fromkeys(job.timelines if ranks is None else ranks, factor)
    return scaled_by_rank(job, chosen, factors)


def scaled_by_rank(job: RecordedJob, chosen: Chosen, factors: Mapping[int, float]) -> Repair:
    """Some events take a part of their time, by rank."""
    return Repair(
        factor={
            rank: np.where(chosen(job.timelines[rank].trace.events), factor, 1.0)
            for rank, factor in factors.items()
        }
    )


def of_calls(calls: Sequence[Call]) -> Chosen:
    """Kernels of some collectives."""
    starts = np.array([call.start_s for call in calls])
    return lambda events: ~computes(events) & events.of("kernel") & np.isin(events.start_s, starts)


def transfers_scaled(job: RecordedJob, calls: Mapping[int, Sequence[Call]], factor: float) -> Repair:
    """Collectives, by rank, move their data in a part of the time."""
    of = {rank: scaled(job, of_calls(some), factor, [rank]).factor[rank] for rank, some in calls.items()}
    return Repair(factor=of)


def without_part(job: RecordedJob, part: str, ranks: Collection[int]) -> Repair:
    """A part of the budget in which nothing useful runs is gone."""
    if part == "copies":
        return scaled(job, lambda events: events.of("memcpy"), 0.0, ranks)
    cut = dict[int, Intervals]()
    for rank in ranks:
        events = job.timelines[rank].trace.events
        if part in PHASES_IDLE:
            of_host = sets_of(events, phase(events, part))
        else:
            of_host = without(
                host_at_work(events), union(*(sets_of(events, phase(events, each)) for each in PHASES_IDLE))
            )
        cut[rank] = union(job.part_of(rank, part), of_host)
    return Repair(cut=cut, synchronises=part != "synchronisation")


def caught_up(job: RecordedJob, rank: int, part: str, cost_s: float) -> Repair:
    """A rank that is late is so no more: what it does longer than others takes that much less."""
    spent = job.mean_part(part, rank)
    share = min(1.0, cost_s / spent) if spent else 1.0
    if part in (*kernel_classes(), "recompute", "optimizer", "memset"):
        return scaled(job, computes, 1.0 - share, [rank])
    line = job.timelines[rank]
    idle = job.part_of(rank, part)
    if part == "unexplained":
        steps = stretches(line)
        idle = inverted(
            union(EMPTY, *(each for _, each in line.layers)),
            min(line.start_s, steps[0].start_s),
            max(line.end_s, steps[-1].end_s),
        )
    shorter = np.column_stack((idle[:, 0], idle[:, 0] + share * (idle[:, 1] - idle[:, 0])))
    return Repair(cut={rank: shorter}, synchronises=part != "synchronisation")
