"""Recorded steps of a job, prepared once: timelines, matched collectives, layout, lateness, budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.diagnose.budget import RankTimeline, StepBudget, timeline
from planner.diagnose.collectives import Call, Meeting, calls_of, meetings_of, with_groups
from planner.diagnose.intervals import EMPTY, Intervals, union, united
from planner.diagnose.lateness import Lateness, lateness_of
from planner.diagnose.layout import InferredLayout, layout_of
from planner.traces.events import StepWindow, Trace
from topology.base.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedJob:
    """All ranks whose traces are there."""

    traces: tuple[Trace, ...]
    timelines: Mapping[int, RankTimeline]
    calls: Mapping[int, tuple[Call, ...]]
    meetings: tuple[Meeting, ...]
    layout: InferredLayout
    lateness: tuple[Lateness, ...]
    budgets: Mapping[int, tuple[StepBudget, ...]]
    """By rank: one for each step; of the whole where no step is told."""

    @property
    def step_s(self) -> float:
        """Mean seconds of a step, over steps and ranks."""
        return float(np.mean([each.seconds for of in self.budgets.values() for each in of]))

    @property
    def steps(self) -> int:
        """How many there are of each rank."""
        return min(len(of) for of in self.budgets.values())

    def mean_part(self, name: str, rank: int | None = None) -> float:
        """Mean seconds of a part a step: of one rank, or over all."""
        budgets = [each for of, rows in self.budgets.items() if rank in (None, of) for each in rows]
        return float(np.mean([budget.parts.get(name, 0.0) for budget in budgets]))

    def part_of(self, rank: int, name: str) -> Intervals:
        """When a part of the budget was under way on a rank."""
        return union(EMPTY, *(layer for part, layer in self.timelines[rank].layers if part == name))

    def part_by_rank(self, name: str) -> dict[int, float]:
        """Mean seconds of a part a step, by rank."""
        return {rank: self.mean_part(name, rank) for rank in self.budgets}


def recorded_job(traces: Sequence[Trace], step: int | None = None) -> RecordedJob:
    """Prepare traces: match collectives, tell the layout, cut budgets.

    Args:
        traces: One a rank.
        step: Number of the one step that is looked at.

    Raises:
        InputError: No trace has that step.
    """
    traces = [_with_step(trace, step) for trace in traces]
    calls = with_groups(traces, {trace.rank: calls_of(trace) for trace in traces})
    layout = layout_of(traces, calls)
    meetings = meetings_of(traces, calls)
    waits = _waits(meetings)
    timelines = {
        trace.rank: timeline(trace, exposed_sets(calls[trace.rank], layout, waits.get(trace.rank)))
        for trace in traces
    }
    budgets = {
        rank: tuple(line.budget(each.start_s, each.end_s) for each in stretches(line))
        for rank, line in timelines.items()
    }
    return RecordedJob(
        traces=tuple(traces),
        timelines=timelines,
        calls=calls,
        meetings=meetings,
        layout=layout,
        lateness=lateness_of(timelines, calls, meetings, layout),
        budgets=budgets,
    )


def stretches(line: RankTimeline) -> tuple[StepWindow, ...]:
    """Steps of a rank; the whole trace as one where none is told."""
    whole = StepWindow(number=0, start_s=line.start_s, end_s=line.end_s, source="whole trace")
    return line.trace.windows or (whole,)


def _with_step(trace: Trace, step: int | None) -> Trace:
    """A trace with one of its steps alone."""
    if step is None:
        return trace
    chosen = tuple(window for window in trace.windows if window.number == step)
    if not chosen:
        numbers = ", ".join(str(window.number) for window in trace.windows[:20]) or "none"
        raise InputError(
            f"step {step} is not in {trace.source}", f"its steps: {numbers}", "name one of these"
        )
    return replace(trace, windows=chosen)


def _waits(meetings: Sequence[Meeting]) -> dict[int, Intervals]:
    """By rank, on its own clock: from its arrivals until the last rank's."""
    rows: dict[int, list[tuple[float, float]]] = {}
    for meeting in meetings:
        for call in meeting.calls:
            moved = call.start_s - meeting.start_s[call.rank]
            rows.setdefault(call.rank, []).append((call.start_s, min(meeting.last_s + moved, call.end_s)))
    return {
        rank: united(np.array([a for a, _ in of]), np.array([b for _, b in of])) for rank, of in rows.items()
    }


def exposed_sets(
    calls: Sequence[Call], layout: InferredLayout, waits: Intervals | None
) -> list[tuple[str, Intervals]]:
    """Collectives by axis, sends apart; first of all what is waiting for the last rank, where that is known.

    What a send takes longer than the shortest of its size is the bubble: it waits for its partner. A kernel
    that sends is a send where its group is recorded: NCCL runs all-to-alls by the same kernel.
    """
    layers = list[tuple[str, Intervals]]()
    if waits is not None and len(waits):
        layers.append(("waiting for the last rank", waits))
    by_name: dict[str, list[tuple[float, float]]] = {}
    shortest: dict[float, float] = {}
    for call in calls:
        if call.sends:
            shortest[call.bytes] = min(call.seconds, shortest.get(call.bytes, call.seconds))
    for call in calls:
        axis = layout.axis_of.get(tuple(sorted(call.group)), "")
        if call.sends and (axis == "pp" or (call.group and not axis)):
            moves = min(call.seconds, shortest[call.bytes])
            by_name.setdefault("sends", []).append((call.end_s - moves, call.end_s))
            by_name.setdefault("bubble", []).append((call.start_s, call.end_s - moves))
        else:
            name = f"exposed communication {axis}".strip()
            by_name.setdefault(name, []).append((call.start_s, call.end_s))
    for name in sorted(by_name, key=lambda each: each == "bubble"):
        rows = np.array(by_name[name])
        layers.append((name, united(rows[:, 0], rows[:, 1])))
    return layers
