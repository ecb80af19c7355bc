"""Which rank keeps the others waiting, in each step: what it does longer than they do before a collective.

A rank that arrives late because it waited elsewhere is not to blame: counted is the time since its last
collective, against the middle one of the other ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.diagnose.collectives import Call, Meeting
from planner.traces.events import Trace


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
    traces: Sequence[Trace], calls: Mapping[int, Sequence[Call]], meetings: Sequence[Meeting]
) -> tuple[Lateness, ...]:
    """Every rank that was last somewhere, most late first."""
    windows = {trace.rank: trace.windows for trace in traces}
    before = {rank: _before(of, windows[rank]) for rank, of in calls.items()}
    steps = min((len(each) for each in windows.values()), default=0)
    late: dict[int, list[float]] = defaultdict(lambda: [0.0] * steps)
    longest: dict[int, tuple[float, tuple[float, float]]] = {}
    for meeting in meetings:
        work = {call.rank: call.start_s - before[call.rank][id(call)] for call in meeting.calls}
        latest = meeting.latest
        excess = work[latest] - float(np.median([work[rank] for rank in work if rank != latest]))
        call = next(each for each in meeting.calls if each.rank == latest)
        step = _step_of(call.start_s, windows[latest])
        if excess <= 0.0 or step is None or step >= steps:
            continue
        late[latest][step] += excess
        if excess > longest.get(latest, (0.0, (0.0, 0.0)))[0]:
            longest[latest] = excess, (before[latest][id(call)], call.start_s)
    result = [
        Lateness(rank=rank, seconds=tuple(seconds), stretch=longest[rank][1])
        for rank, seconds in late.items()
    ]
    return tuple(sorted(result, key=lambda each: -each.typical_s))


def _before(calls: Sequence[Call], windows: Sequence[object]) -> dict[int, float]:
    """When the work before each call began: its rank's last call was over, or its step began."""
    starts = np.array([window.start_s for window in windows])  # type: ignore[attr-defined]
    result, latest = dict[int, float](), -np.inf
    for call in calls:
        place = int(np.searchsorted(starts, call.start_s, "right")) - 1
        begun = float(starts[place]) if place >= 0 else call.start_s
        result[id(call)] = min(max(latest, begun), call.start_s)
        latest = max(latest, call.end_s)
    return result


def _step_of(time_s: float, windows: Sequence[object]) -> int | None:
    """Place of the step that a moment lies in."""
    return next(
        (place for place, each in enumerate(windows) if each.start_s <= time_s < each.end_s),  # type: ignore[attr-defined]
        None,
    )
