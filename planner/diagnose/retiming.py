"""A recorded step timed once more with a cause repaired: its activities with what each waited for.

A kernel waits for the kernel before it on its stream, for its launch, and for kernels of other streams that
were launched earlier and were done when it started. A launch waits for the host's work before it; a
synchronisation for the GPU; a collective for its last rank; a receive for its peer. Each keeps its lag behind
what it waited for, so that an unchanged step takes what it took. Waits that were not needed stay, so that the
gain is what the record supports, not the most that could be.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.diagnose.classes import computes, phase
from planner.diagnose.collectives import Call, Meeting
from planner.diagnose.intervals import EMPTY, Intervals
from planner.diagnose.record import RecordedJob
from planner.traces.events import GPU_CATEGORIES, Events, StepWindow
from topology.base.units import US

MOST_ACTIVITIES: Final = 100_000
"""Of one step on all ranks; timed once more in a second or two."""

RESOLUTION_S: Final = US
"""Recorders round starts and durations: what seems to overlap by less follows each other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Repair:
    """What is different without a cause."""

    factor: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    """By rank and event: its seconds are multiplied by this."""
    cut: Mapping[int, Intervals] = field(default_factory=dict)
    """By rank: time that does not pass while the host or the GPU waits."""
    synchronises: bool = True
    """Whether the host still waits for the GPU."""


@dataclass(slots=True)
class _Activity:
    """A kernel, copy or memset of a step, or a call of the host; times are those of the common clock."""

    rank: int
    start_s: float
    end_s: float
    event: int = -1
    """Place in the rank's events; -1 of the host's calls."""
    waits: tuple[int, ...] = ()
    """Activities that were over when it started."""
    bound: int = -1
    """That of `waits` which was over last; -1 where it is the start of the step."""
    lag: tuple[float, float] = (0.0, 0.0)
    """From when that was over until its start."""
    gpu: int = -1
    """Of a synchronisation: the activity of the GPU that it waited for."""
    meeting: int = -1
    peer: int = -1
    """Of a receive: what its peer had done when it was over."""
    moves_s: float = 0.0
    """Of a transfer: what it takes without waiting."""


class RecordedStepGraph:
    """One step of all ranks as activities that wait for each other."""

    def __init__(self, job: RecordedJob, place: int) -> None:
        self._activities: list[_Activity] = []
        self._windows: dict[int, tuple[float, float]] = {}
        self._meetings: list[list[int]] = []
        self._shift = _shifts(job.meetings)
        of_event: dict[tuple[int, float, float], int] = {}
        for trace in job.traces:
            self._add_rank(job, trace.rank, trace.windows[place], of_event)
        self._join(job, of_event)
        marks = [
            (when, kind, number)
            for number, each in enumerate(self._activities)
            for when, kind in ((each.start_s, 1), (each.end_s, 0))
        ]
        self._order = [(kind, number) for _, kind, number in sorted(marks)]

    def seconds(self, repair: Repair | None = None) -> float:
        """Mean seconds of the step over ranks, with something repaired or as it was."""
        repair = repair or Repair()
        cuts = {
            rank: _Passing(repair.cut.get(rank, EMPTY), self._shift.get(rank, 0.0)) for rank in self._windows
        }
        starts, done = [float("nan")] * len(self._activities), [float("nan")] * len(self._activities)
        for kind, number in self._order:
            each = self._activities[number]
            if kind:
                starts[number] = self._started(each, done, cuts[each.rank])
                if each.meeting < 0 and each.peer < 0:
                    done[number] = self._over(each, starts[number], done, repair, cuts[each.rank])
            elif np.isnan(done[number]):  # a collective, a receive, or what takes no time
                if np.isnan(starts[number]):
                    starts[number] = self._started(each, done, cuts[each.rank])
                done[number] = self._over(each, starts[number], done, repair, cuts[each.rank], starts)
        lasts = []
        for rank, (begin, end) in self._windows.items():
            mine = [place for place, each in enumerate(self._activities) if each.rank == rank]
            inside = [place for place in mine if self._activities[place].end_s <= end]
            latest = max((self._activities[place].end_s for place in inside), default=begin)
            over = max((done[place] for place in inside), default=begin)
            lasts.append(over - begin + cuts[rank].seconds(latest, end))
        return float(np.mean(lasts))

    # ── one activity ──────────────────────────────────────────────────────────────────────────────────────

    def _started(self, each: _Activity, done: Sequence[float], cut: _Passing) -> float:
        """When it starts: behind what it waited for, by what passes of its lag."""
        begin = self._windows[each.rank][0]
        latest = begin if each.bound < 0 else done[each.bound]
        over = (done[place] - max(0.0, self._activities[place].end_s - each.start_s) for place in each.waits)
        return max(latest + cut.seconds(*each.lag), *over, begin)

    def _over(
        self,
        each: _Activity,
        start: float,
        done: Sequence[float],
        repair: Repair,
        cut: _Passing,
        starts: Sequence[float] = (),
    ) -> float:
        """When it is over."""
        if each.event < 0:
            if each.gpu < 0:
                return start + cut.seconds(each.start_s, each.end_s)
            if not repair.synchronises:
                return start
            return max(start, done[each.gpu] + cut.seconds(self._activities[each.gpu].end_s, each.end_s))
        given = repair.factor.get(each.rank)
        factor = 1.0 if given is None else float(given[each.event])
        if each.meeting >= 0:
            members = self._meetings[each.meeting]
            last = max(starts[place] for place in members if not np.isnan(starts[place]))
            earliest = min(self._activities[place].end_s for place in members)
            return max(start, last + each.moves_s * factor + each.end_s - earliest)
        if each.peer >= 0:
            return max(
                start + each.moves_s * factor,
                done[each.peer] + each.end_s - self._activities[each.peer].end_s,
            )
        return start + (each.end_s - each.start_s) * factor

    # ── building ──────────────────────────────────────────────────────────────────────────────────────────

    def _add_rank(
        self, job: RecordedJob, rank: int, window: StepWindow, of_event: dict[tuple[int, float, float], int]
    ) -> None:
        """Activities of one rank in its step, in the order of their starts."""
        events, shift = job.timelines[rank].trace.events, self._shift.get(rank, 0.0)
        begin, end = window.start_s + shift, window.end_s + shift
        self._windows[rank] = begin, end
        within = (events.start_s >= window.start_s) & (events.start_s < window.end_s)
        on_gpu = np.flatnonzero(events.of(*GPU_CATEGORIES) & within)
        numbers = set(events.correlation[on_gpu].tolist()) - {-1}
        called = events.of("runtime", "driver")
        waiting = phase(events, "synchronisation") & within
        launching = called & within & ~waiting & np.isin(events.correlation, list(numbers))
        known = dict(
            zip(events.correlation[called].tolist(), (events.start_s[called] + shift).tolist(), strict=True)
        )
        launches = self._add_host(rank, np.flatnonzero(launching | waiting), waiting, job)
        streams = defaultdict[int, _Queue](_Queue)
        for event in on_gpu.tolist():
            start, over = float(events.start_s[event]) + shift, float(events.end_s[event]) + shift
            call = launches.get(int(events.correlation[event]), -1)
            launched = known.get(int(events.correlation[event]), start)
            waits = [] if call < 0 or self._activities[call].end_s > start else [call]
            for stream, queue in streams.items():
                before = queue.done_before(start, np.inf if stream == events.stream[event] else launched)
                waits += [before] if before >= 0 else []
            number = self._add(_Activity(rank, start, over, event), waits)
            streams[int(events.stream[event])].add(launched, over, number)
            of_event[rank, float(events.start_s[event]), float(events.end_s[event])] = number
        self._wait_for_gpu(rank)

    def _add_host(
        self, rank: int, chosen: NDArray[np.int64], waiting: NDArray[np.bool_], job: RecordedJob
    ) -> dict[int, int]:
        """The host's launches and synchronisations, each behind the one before; launches by their number."""
        events, shift = job.timelines[rank].trace.events, self._shift.get(rank, 0.0)
        launches, before = dict[int, int](), -1
        for event in chosen.tolist():
            start, over = float(events.start_s[event]) + shift, float(events.end_s[event]) + shift
            if before >= 0 and start < self._activities[before].end_s:
                continue  # within the call before, or beside it on another thread
            if not waiting[event]:
                over = start  # the kernel may start while the call still runs
            number = self._add(_Activity(rank, start, over), [before] if before >= 0 else [])
            launches.setdefault(int(events.correlation[event]), number)
            self._activities[number].gpu = 0 if waiting[event] else -1
            before = number
        return launches

    def _wait_for_gpu(self, rank: int) -> None:
        """Find what of the GPU each synchronisation waited for: the last that was done when it was over."""
        done = sorted((e.end_s, n) for n, e in enumerate(self._activities) if e.rank == rank and e.event >= 0)
        for each in self._activities:
            if each.rank == rank and each.gpu == 0 and each.event < 0:
                place = bisect.bisect_right(done, (each.end_s, len(self._activities)))
                each.gpu = done[place - 1][1] if place and done[place - 1][0] > each.start_s else -1

    def _add(self, activity: _Activity, waits: list[int]) -> int:
        """Add an activity, bound by what was over last."""
        begin = self._windows[activity.rank][0]
        bound = max(waits, key=lambda place: self._activities[place].end_s, default=-1)
        latest = begin if bound < 0 else self._activities[bound].end_s
        activity.bound, activity.waits = bound, tuple(waits)
        activity.lag = (latest, activity.start_s)
        self._activities.append(activity)
        return len(self._activities) - 1

    def _join(self, job: RecordedJob, of_event: Mapping[tuple[int, float, float], int]) -> None:
        """Collectives of several ranks wait for the last, receives for their peer."""

        def place_of(call: Call) -> int:
            return of_event.get((call.rank, call.start_s, call.end_s), -1)

        for meeting in job.meetings:
            members = [place_of(call) for call in meeting.calls]
            if min(members) < 0:
                continue
            for place in members:
                self._activities[place].meeting = len(self._meetings)
                self._activities[place].moves_s = meeting.transfer_s
            self._meetings.append(members)
        self._join_sends(job, place_of)

    def _join_sends(self, job: RecordedJob, place_of: Callable[[Call], int]) -> None:
        """A send and its receive wait for the later; a receive alone for what its peer had done.

        The shortest of a size is what a transfer takes.
        """
        done = {rank: self._computed(rank, line.trace.events) for rank, line in job.timelines.items()}
        by_pair: dict[tuple[int, ...], dict[int, list[Call]]] = defaultdict(lambda: defaultdict(list))
        shortest = dict[float, float]()
        for call in (call for of in job.calls.values() for call in of if call.sends and len(call.group) == 2):
            shortest[call.bytes] = min(call.seconds, shortest.get(call.bytes, call.seconds))
            if place_of(call) >= 0:
                by_pair[tuple(sorted(call.group))][call.rank].append(call)
        for pair, calls in by_pair.items():
            first, second = (calls.get(rank, []) for rank in pair)
            if self._meet(
                [*map(place_of, first)], [*map(place_of, second)], shortest[(first or second)[0].bytes]
            ):
                continue
            for rank, of in calls.items():
                peer = pair[0] if rank == pair[1] else pair[1]
                for call in of:
                    each = self._activities[place_of(call)]
                    before = (
                        bisect.bisect_right(done[peer], (each.end_s + RESOLUTION_S, -1))
                        if peer in done
                        else 0
                    )
                    if before:
                        each.peer, each.moves_s = done[peer][before - 1][1], shortest[call.bytes]

    def _computed(self, rank: int, events: Events) -> list[tuple[float, int]]:
        """When kernels of a rank that are no collectives were done, and their places."""
        kernels = computes(events)
        return sorted(
            (each.end_s, number)
            for number, each in enumerate(self._activities)
            if each.rank == rank and each.event >= 0 and kernels[each.event]
        )

    def _meet(self, first: Sequence[int], second: Sequence[int], moves_s: float) -> bool:
        """Join sends with their receives where both are recorded: each pair is over together."""
        pairs = [*zip(first, second, strict=False)]
        gaps = [abs(self._activities[a].end_s - self._activities[b].end_s) for a, b in pairs]
        if len(first) != len(second) or max(gaps) > max(moves_s, RESOLUTION_S):
            return False
        for members in pairs:
            for place in members:
                self._activities[place].meeting = len(self._meetings)
                self._activities[place].moves_s = moves_s
            self._meetings.append([*members])
        return True


class _Queue:
    """What ran on a stream: in the order of its launches, each after the one before."""

    def __init__(self) -> None:
        self._launched, self._done, self._places = list[float](), list[float](), list[int]()

    def add(self, launched_s: float, done_s: float, place: int) -> None:
        """Add the next activity."""
        self._launched.append(max(launched_s, self._launched[-1] if self._launched else launched_s))
        self._done.append(max(done_s, self._done[-1] if self._done else done_s))
        self._places.append(place)

    def done_before(self, start_s: float, launched_s: float) -> int:
        """The last that was launched before a moment and done at another; -1 for none."""
        over = bisect.bisect_right(self._done, start_s + RESOLUTION_S)
        count = min(over, bisect.bisect_left(self._launched, launched_s))
        return self._places[count - 1] if count else -1


class _Passing:
    """Time that passes where some of it is cut out."""

    def __init__(self, cut: Intervals, shift_s: float) -> None:
        self._start, self._end = cut[:, 0] + shift_s, cut[:, 1] + shift_s
        self._until = np.concatenate(([0.0], np.cumsum(self._end - self._start)))

    def seconds(self, start_s: float, end_s: float) -> float:
        """What passes from start to end."""
        lasts = end_s - start_s
        if not len(self._start) or lasts <= 0.0:
            return lasts
        return max(0.0, lasts - (self._gone(end_s) - self._gone(start_s)))

    def _gone(self, time_s: float) -> float:
        """What is cut out before a moment."""
        place = int(np.searchsorted(self._start, time_s, "right"))
        if not place:
            return 0.0
        return float(self._until[place]) - max(0.0, float(self._end[place - 1]) - time_s)


def _shifts(meetings: Sequence[Meeting]) -> dict[int, float]:
    """By rank: what brings its recorder's seconds to the common clock."""
    return {
        call.rank: meeting.start_s[call.rank] - call.start_s for meeting in meetings for call in meeting.calls
    }


def step_graph(job: RecordedJob) -> RecordedStepGraph | None:
    """The middle step as a graph; None where no step is marked, no GPU is recorded, or it is too large."""
    if any(not trace.windows or not trace.gpu for trace in job.traces):
        return None
    lasts = [float(np.mean([of[place].seconds for of in job.budgets.values()])) for place in range(job.steps)]
    place = sorted(range(job.steps), key=lambda each: lasts[each])[job.steps // 2]
    activities = 0
    for trace in job.traces:
        window, events = trace.windows[place], trace.events
        within = (events.start_s >= window.start_s) & (events.start_s < window.end_s)
        activities += int((within & events.of(*GPU_CATEGORIES)).sum())
    if not 0 < activities <= MOST_ACTIVITIES:
        return None
    return RecordedStepGraph(job, place)
