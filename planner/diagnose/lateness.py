"""Which rank keeps the others waiting, in each step: what it does longer than they do before a collective.

A rank that arrives late because it waited elsewhere is not to blame: counted is the time of its
step outside of collectives, against the middle one of the other ranks, where the difference is largest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.diagnose.budget import RankTimeline, sets_of
from planner.diagnose.classes import phase
from planner.diagnose.collectives import Call, Meeting
from planner.diagnose.intervals import EMPTY, union, without
from planner.diagnose.layout import InferredLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Seconds that one rank kept the others waiting, in each step, and where it was longest."""

    rank: int
    seconds: tuple[float, ...]
    """By step."""
    stretch: tuple[float, float]
    """Of the rank's recorder: the longest stretch of work before it arrived."""

    @property
    def typical_s(self) -> float:
        """The middle one of all steps."""
        return float(np.median(self.seconds))


def lateness_of(
    timelines: Mapping[int, RankTimeline],
    calls: Mapping[int, Sequence[Call]],
    meetings: Sequence[Meeting],
    layout: InferredLayout,
) -> tuple[Lateness, ...]:
    """Every rank that was last somewhere, most late first.

    Stages of a pipeline do different work: their ranks are compared in the groups of other axes alone. What
    a rank does after a step's last collective keeps the others waiting in the next, which may be unrecorded:
    ranks whose last one is the same are compared from its end to the end of the step.
    """
    busy = {rank: _Work(line, calls[rank]) for rank, line in timelines.items()}
    steps = min((len(line.trace.windows) for line in timelines.values()), default=0)
    late: dict[int, list[float]] = defaultdict(lambda: [0.0] * steps)
    longest: dict[int, tuple[float, tuple[float, float]]] = {}
    last: dict[int, dict[int, Meeting]] = {rank: {} for rank in timelines}  # by rank and step
    for meeting in sorted(meetings, key=lambda each: each.last_s):
        for call in meeting.calls:
            last[call.rank][busy[call.rank].step(call.start_s)] = meeting
        group = tuple(sorted(meeting.calls[0].group))
        latest = meeting.latest
        if layout.degrees.get("pp", 1) > 1 and group not in layout.axis_of:
            continue
        begun = {call.rank: busy[call.rank].begun(call.start_s) for call in meeting.calls}
        work = {call.rank: busy[call.rank].seconds(begun[call.rank], call.start_s) for call in meeting.calls}
        excess = work[latest] - float(np.median([work[rank] for rank in work if rank != latest]))
        arrival = next(each.start_s for each in meeting.calls if each.rank == latest)
        step = busy[latest].step(arrival)
        if excess <= 0.0 or meeting.late_s <= 0.0 or not 0 <= step < steps:
            continue
        late[latest][step] = max(late[latest][step], excess)
        if excess > longest.get(latest, (0.0, (0.0, 0.0)))[0]:
            longest[latest] = excess, (begun[latest], arrival)
    for place in range(steps if layout.degrees.get("pp", 1) == 1 else 0):
        for meeting in {id(of[place]): of[place] for of in last.values() if place in of}.values():
            rests = {
                call.rank: (call.end_s, timelines[call.rank].trace.windows[place].end_s)
                for call in meeting.calls
                if last[call.rank].get(place) is meeting
            }
            work = {rank: busy[rank].seconds(*rest) for rank, rest in rests.items()}
            latest = max(work, key=lambda rank: work[rank])
            others = [work[rank] for rank in work if rank != latest]
            excess = work[latest] - float(np.median(others)) if others else 0.0
            late[latest][place] = max(late[latest][place], excess)
            if excess > longest.get(latest, (0.0, (0.0, 0.0)))[0]:
                longest[latest] = excess, rests[latest]
    result = [
        Lateness(rank=rank, seconds=tuple(seconds), stretch=longest[rank][1])
        for rank, seconds in late.items()
        if rank in longest
    ]
    return tuple(sorted(result, key=lambda each: -each.typical_s))


class _Work:
    """Time of one rank that is not spent in collectives which nothing hides, nor in a host's wait for them.

    A pause is the rank's own: no collective has it wait.
    """

    def __init__(self, line: RankTimeline, calls: Sequence[Call]) -> None:
        rows = np.array([(call.start_s, call.end_s) for call in calls]).reshape(-1, 2)
        events = line.trace.events
        waits = EMPTY if line.trace.gpu else sets_of(events, phase(events, "waiting"))
        self._in_calls = without(union(rows, waits), line.compute)
        self._until = np.concatenate(([0.0], np.cumsum(self._in_calls[:, 1] - self._in_calls[:, 0])))
        self._starts = np.array([window.start_s for window in line.trace.windows])

    def _called(self, time_s: float) -> float:
        """Seconds in collectives until a moment."""
        place = int(np.searchsorted(self._in_calls[:, 0], time_s, "right"))
        if not place:
            return 0.0
        return float(self._until[place]) - max(0.0, float(self._in_calls[place - 1, 1]) - time_s)

    def seconds(self, start_s: float, end_s: float) -> float:
        """Work from start to end."""
        return max(0.0, end_s - start_s - (self._called(end_s) - self._called(start_s)))

    def step(self, time_s: float) -> int:
        """Place of the step that a moment lies in; -1 before the first."""
        return int(np.searchsorted(self._starts, time_s, "right")) - 1

    def begun(self, time_s: float) -> float:
        """When the step of a moment started."""
        place = self.step(time_s)
        return float(self._starts[place]) if place >= 0 else time_s
