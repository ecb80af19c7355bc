"""Where the time of a step went on one rank: published totals, and parts that exclude each other.

The totals follow TraceLens and HTA: compute is every kernel that is no collective, with memsets on CUDA and
without them on ROCm; communication is exposed where no compute runs; total is first start to last end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.diagnose.classes import COMMUNICATION, PHASES_IDLE, classes_of, computes, kernel_classes, phase
from planner.diagnose.intervals import (
    EMPTY,
    Intervals,
    clipped,
    common,
    inside,
    seconds,
    union,
    united,
    without,
)
from planner.traces.events import GPU_CATEGORIES, Events, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """A timeline in the terms of the published tools; of a GPU, or of the host where there is none."""

    total_s: float
    busy_s: float
    idle_s: float
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    memcpy_s: float
    exposed_memcpy_s: float
    recompute_s: float
    """Of compute: forwards that backward runs once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBudget:
    """Parts of a stretch of time, in seconds; they exclude each other and sum to it."""

    start_s: float
    end_s: float
    parts: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankTimeline:
    """One rank's time as disjoint sets, from which every budget is cut."""

    trace: Trace
    compute: Intervals
    recompute: Intervals
    communication: Intervals
    memcpy: Intervals
    layers: tuple[tuple[str, Intervals], ...] = field(repr=False)
    """Sets by name, each without those above it; what is in none is unexplained."""
    start_s: float
    end_s: float

    def totals(self, start_s: float | None = None, end_s: float | None = None) -> Totals:
        """The published totals: of the whole, or from start to end."""
        start = self.start_s if start_s is None else start_s
        end = self.end_s if end_s is None else end_s
        compute, communication, memcpy = (
            clipped(each, start, end) for each in (self.compute, self.communication, self.memcpy)
        )
        covered = union(compute, communication)
        busy = seconds(union(covered, memcpy))
        return Totals(
            total_s=end - start,
            busy_s=busy,
            idle_s=max(0.0, end - start - busy),
            compute_s=seconds(compute),
            communication_s=seconds(communication),
            exposed_communication_s=seconds(covered) - seconds(compute),
            memcpy_s=seconds(memcpy),
            exposed_memcpy_s=busy - seconds(covered),
            recompute_s=seconds(clipped(self.recompute, start, end)),
        )

    def budget(self, start_s: float, end_s: float) -> StepBudget:
        """Exclusive parts from start to end."""
        parts = dict[str, float]()
        for name, layer in self.layers:
            parts[name] = parts.get(name, 0.0) + seconds(clipped(layer, start_s, end_s))
        rest = end_s - start_s - sum(parts.values())
        parts = {name: value for name, value in parts.items() if value > 0.0}
        parts["unexplained"] = max(0.0, rest)
        return StepBudget(start_s=start_s, end_s=end_s, parts=parts)


def launched_once_more(events: Events) -> NDArray[np.bool_]:
    """Kernels of forwards that backward runs once more; no collectives."""
    return launched_within(events, computes(events), once_more(events))


NODE = "autograd::engine::evaluate_function"
"""How the recorder's name of what autograd's engine runs begins."""


def once_more(events: Events) -> NDArray[np.bool_]:
    """Host events that run a forward once more: frames of it where stacks are recorded, else operations."""
    frames = phase(events, "recompute")
    if frames.any():
        return frames
    on_host, repeated = events.of("operation"), np.zeros(len(events), bool)
    for thread, stretches in _forwards_in_backward(events).items():
        here = on_host & (events.thread == thread)
        repeated[here] = inside(events.start_s[here], stretches)
    return repeated & ~_nodes(events)


def time_once_more(events: Events) -> Intervals:
    """When a host runs forwards once more, with what it takes to ask for each of their operations."""
    frames = phase(events, "recompute")
    return sets_of(events, frames) if frames.any() else union(*_forwards_in_backward(events).values())


def _nodes(events: Events) -> NDArray[np.bool_]:
    """What autograd's engine runs, by the recorder's name of it."""
    return events.of("operation") & events.named(np.array([n.startswith(NODE) for n in events.names], bool))


def _forwards_in_backward(events: Events) -> dict[int, Intervals]:
    """By thread: from the first to the last operation of each forward that a node of autograd runs.

    A backward makes no graph, so that autograd numbers an operation within it only where a forward is run
    once more there.
    """
    nodes = _nodes(events)
    plain = np.array([not n.startswith(NODE) and "Backward" not in n for n in events.names], bool)
    numbered = events.forward & events.named(plain)
    return {
        int(thread): _within_nodes(
            events, numbered & (events.thread == thread), nodes & (events.thread == thread)
        )
        for thread in np.unique(events.thread[nodes])
    }


def _within_nodes(events: Events, chosen: NDArray[np.bool_], nodes: NDArray[np.bool_]) -> Intervals:
    """From the first to the last of the chosen events in each innermost node that holds some."""
    begun, over = events.start_s[nodes], events.end_s[nodes]
    within = chosen.copy()
    within[chosen] = inside(events.start_s[chosen], sets_of(events, nodes))
    starts, ends = events.start_s[within], events.end_s[within]
    place = np.searchsorted(begun, starts, "right") - 1
    while len(outside := np.flatnonzero(over[place] < starts)):
        place[outside] -= 1  # that node is over: the one before, or around it
    first, last = np.full(len(begun), np.inf), np.full(len(begun), -np.inf)
    np.minimum.at(first, place, starts)
    np.maximum.at(last, place, ends)
    return united(first, last)


Layers = Sequence[tuple[str, Intervals]]
"""Named sets, those that count first standing first."""


def timeline(trace: Trace, exposed: Layers | None = None) -> RankTimeline:
    """The sets of one rank.

    Args:
        trace: What it recorded.
        exposed: Sets of its collectives, by what they are called where nothing computes; one set without.
    """
    return _gpu_timeline(trace, exposed) if trace.gpu else _host_timeline(trace, exposed)


def sets_of(events: Events, chosen: NDArray[np.bool_]) -> Intervals:
    """The time of some events."""
    return united(events.start_s[chosen], events.end_s[chosen])


def launched_within(
    events: Events, kernels: NDArray[np.bool_], outer: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which kernels were launched while one of the outer events was under way on the launching thread."""
    within = np.zeros(len(events), bool)
    if not outer.any() or not kernels.any():
        return within
    launches = np.flatnonzero(events.of("runtime", "driver") & (events.correlation >= 0))
    launched = np.zeros(len(launches), bool)
    for thread in np.unique(events.thread[outer]):
        here = events.thread[launches] == thread
        under_way = sets_of(events, outer & (events.thread == thread))
        launched[here] = inside(events.start_s[launches[here]], under_way)
    within[kernels] = np.isin(events.correlation[kernels], events.correlation[launches[launched]])
    return within


def _gpu_timeline(trace: Trace, exposed: Layers | None) -> RankTimeline:
    """Of a trace with a GPU's events: kernels first, then copies, then what the host did meanwhile."""
    events, names = trace.events, kernel_classes()
    kernels, class_of, computing = events.of("kernel"), classes_of(events), computes(events)
    collective = kernels & ~computing
    memset = events.of("memset")
    compute = sets_of(events, computing | memset if trace.platform != "rocm" else computing)
    communication, memcpy = sets_of(events, collective), sets_of(events, events.of("memcpy"))
    repeated = launched_once_more(events)
    stepping = launched_within(events, computing, phase(events, "optimizer"))
    rest = computing & ~repeated & ~stepping
    by_class = {name: sets_of(events, rest & (class_of == place)) for place, name in enumerate(names)}
    layers = [
        *((name, by_class[name]) for name in names if name != "elementwise"),
        ("recompute", sets_of(events, repeated)),
        ("optimizer", sets_of(events, stepping)),
        ("elementwise", by_class["elementwise"]),
        ("memset", sets_of(events, memset) if trace.platform != "rocm" else EMPTY),
    ]
    layers += [*(exposed or ()), ("exposed communication", communication), ("copies", memcpy)]
    layers.append(("kernels without a launch", united(trace.left_out[:, 0], trace.left_out[:, 1])))
    layers += [(name, sets_of(events, phase(events, name))) for name in PHASES_IDLE[:-1]]
    layers.append(("synchronisation", _until_next_kernel(events, phase(events, "synchronisation"))))
    layers.append(("launch gaps", host_at_work(events)))
    on_gpu = events.of(*GPU_CATEGORIES) & (
        kernels | events.of("memcpy") | (memset & (trace.platform != "rocm"))
    )
    return RankTimeline(
        trace=trace,
        compute=compute,
        recompute=sets_of(events, repeated),
        communication=communication,
        memcpy=memcpy,
        layers=_disjoint(layers),
        start_s=float(events.start_s[on_gpu].min()) if on_gpu.any() else 0.0,
        end_s=float(events.end_s[on_gpu].max()) if on_gpu.any() else 0.0,
    )


def _host_timeline(trace: Trace, exposed: Layers | None) -> RankTimeline:
    """Of a trace without a GPU: what the host computes, what its collectives take, and its phases."""
    events = trace.events
    collective = phase(events, COMMUNICATION)
    waits = phase(events, "waiting")
    computing = (
        events.of("operation")
        & ~waits
        & ~events.named(np.array([name.startswith(NODE) for name in events.names], bool))
    )
    compute, communication = sets_of(events, computing), sets_of(events, collective)
    repeated = time_once_more(events)
    stepping = common(compute, sets_of(events, phase(events, "optimizer")))
    phases = [(name, sets_of(events, phase(events, name))) for name in PHASES_IDLE[:3]]
    layers = [
        *phases,
        ("recompute", without(repeated, without(communication, compute))),
        ("optimizer", stepping),
        ("compute", compute),
        *(exposed or ()),
        ("exposed communication", communication),
    ]
    return RankTimeline(
        trace=trace,
        compute=compute,
        recompute=common(compute, repeated),
        communication=communication,
        memcpy=EMPTY,
        layers=_disjoint(layers),
        start_s=float(events.start_s.min()) if len(events) else 0.0,
        end_s=float(events.end_s.max()) if len(events) else 0.0,
    )


def _until_next_kernel(events: Events, waits: NDArray[np.bool_]) -> Intervals:
    """From when the host waits for the GPU until the next kernel runs: the queue is empty meanwhile."""
    starts = np.sort(events.start_s[events.of(*GPU_CATEGORIES)])
    ends = events.end_s[waits]
    place = np.minimum(np.searchsorted(starts, ends), max(0, len(starts) - 1))
    until = np.maximum(ends, starts[place]) if len(starts) else ends
    return united(events.start_s[waits], until)


def host_at_work(events: Events) -> Intervals:
    """When the host ran operations or called the runtime."""
    return sets_of(events, events.of("runtime", "driver", "operation", "python", "overhead"))


def _disjoint(layers: list[tuple[str, Intervals]]) -> tuple[tuple[str, Intervals], ...]:
    """Each without those above it."""
    covered, result = EMPTY, list[tuple[str, Intervals]]()
    for name, layer in layers:
        rest = without(layer, covered)
        if len(rest):
            result.append((name, rest))
            covered = union(covered, rest)
    return tuple(result)
