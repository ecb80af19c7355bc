"""What every reader of recorded steps returns: events as columns, process groups, and windows of steps.

Seconds are counted from `Trace.origin_ns`, so that a clock of 1.7e18 ns loses nothing in a float.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

CATEGORIES = (
    "kernel",
    "memcpy",
    "memset",
    "runtime",
    "driver",
    "operation",
    "annotation",
    "gpu_annotation",
    "synchronisation",
    "python",
    "overhead",
    "other",
)
"""Kinds of event: three of a GPU's timeline, then those of the host."""
GPU_CATEGORIES = ("kernel", "memcpy", "memset")
"""What keeps a GPU busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """One row of `Events`, for small traces and for words."""

    name: str
    category: str
    start_s: float
    duration_s: float
    rank: int = 0
    stream: int = -1
    """Stream of a GPU; -1 on the host."""
    thread: int = -1
    """Thread of the host; -1 on a GPU."""
    correlation: int = -1
    """What a launch and its kernel share; -1 where nothing links them."""
    args: dict[str, Any] = field(default_factory=dict)
    """What the recorder says about it beside: shapes, sizes of messages, ranks of a group."""

    @property
    def end_s(self) -> float:
        """When it was over."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """Many events as columns: a million of them take some 50 MB. Row `i` of each column is one event."""

    names: tuple[str, ...]
    """Distinct names; `name` has places in it."""
    name: NDArray[np.int32]
    category: NDArray[np.uint8]
    """Places in `CATEGORIES`."""
    start_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    stream: NDArray[np.int64]
    thread: NDArray[np.int64]
    correlation: NDArray[np.int64]
    details: tuple[dict[str, Any], ...] = ()
    """Distinct arguments; `detail` has places in it."""
    detail: NDArray[np.int32]
    """-1 where an event has none."""
    forward: NDArray[np.bool_]
    """Operations that autograd notes for its backward: it numbers them."""
    rank: int = 0

    def __len__(self) -> int:
        """How many events there are."""
        return len(self.start_s)

    @property
    def end_s(self) -> NDArray[np.float64]:
        """When each was over."""
        return self.start_s + self.duration_s

    def of(self, *categories: str) -> NDArray[np.bool_]:
        """Which events are of these kinds."""
        return np.isin(self.category, [CATEGORIES.index(category) for category in categories])

    def named(self, accepts: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which events have a name that is accepted, of one answer for each of `names`."""
        return accepts[self.name] if len(self.names) else np.zeros(len(self), bool)

    def chosen(self, kept: NDArray[np.bool_]) -> Events:
        """Only these events; names and details stay."""
        columns = ("name", "category", "start_s", "duration_s", "stream", "thread", "correlation", "detail")
        return replace(self, **{column: getattr(self, column)[kept] for column in (*columns, "forward")})

    def rows(self, chosen: NDArray[np.bool_] | None = None) -> Iterator[TraceEvent]:
        """Chosen events one by one, in their order."""
        places = range(len(self)) if chosen is None else np.flatnonzero(chosen)
        return (self.row(int(place)) for place in places)

    def row(self, place: int) -> TraceEvent:
        """One event."""
        detail = int(self.detail[place])
        return TraceEvent(
            name=self.names[self.name[place]],
            category=CATEGORIES[self.category[place]],
            start_s=float(self.start_s[place]),
            duration_s=float(self.duration_s[place]),
            rank=self.rank,
            stream=int(self.stream[place]),
            thread=int(self.thread[place]),
            correlation=int(self.correlation[place]),
            args=self.details[detail] if detail >= 0 else {},
        )

    @classmethod
    def of_rows(cls, rows: Sequence[TraceEvent], *, rank: int = 0) -> Events:
        """Columns of some events."""
        names = {name: place for place, name in enumerate(dict.fromkeys(row.name for row in rows))}
        details = tuple(row.args for row in rows if row.args)
        has = np.array([bool(row.args) for row in rows], bool)
        return cls(
            names=tuple(names),
            name=np.array([names[row.name] for row in rows], np.int32),
            category=np.array([CATEGORIES.index(row.category) for row in rows], np.uint8),
            start_s=np.array([row.start_s for row in rows], np.float64),
            duration_s=np.array([row.duration_s for row in rows], np.float64),
            stream=np.array([row.stream for row in rows], np.int64),
            thread=np.array([row.thread for row in rows], np.int64),
            correlation=np.array([row.correlation for row in rows], np.int64),
            details=details,
            detail=np.where(has, np.cumsum(has) - 1, -1).astype(np.int32),
            forward=np.zeros(len(rows), bool),
            rank=rank,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """A process group: the ranks that call collectives together."""

    ranks: tuple[int, ...]
    """In their order; empty where the recorder does not say."""
    name: str = ""
    """The recorder's number of it, which may differ from rank to rank."""
    description: str = ""
    """What the program calls it, as `dp` or `mesh_tp`."""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """One step of a trace."""

    number: int
    """The step's number as the program counts, else its place in the trace."""
    start_s: float
    end_s: float
    source: str = "ProfilerStep"
    """What tells it: annotations of steps or a server, calls of an optimizer, the period of kernel names."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """What one rank recorded."""

    source: str
    """The file, as somebody named it."""
    format: str
    """kineto, nsys, rocprof, flight or memory."""
    rank: int
    world_size: int
    device: str = ""
    """The GPU's name, where it is recorded."""
    devices: int = 0
    """GPUs of its node, where they are recorded; 0 where they are not."""
    platform: str = "cpu"
    """cuda, rocm or cpu."""
    gpu: bool
    """Whether a GPU's timeline is in it; else busy and idle are the host's."""
    groups: tuple[ProcessGroup, ...] = ()
    events: Events
    windows: tuple[StepWindow, ...] = ()
    left_out: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))
    """Start and end of GPU events that are not in `events`, as their launch is not recorded."""
    origin_ns: int = 0
    """Nanoseconds of the recorder's clock at second 0; 0 where its clock is not that of other ranks."""
    notes: tuple[str, ...] = ()
    """What was left out, in words."""
