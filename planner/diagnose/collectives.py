"""Collectives of several ranks matched call by call: who arrives last, who waits, what the transfer takes.

Ranks call the collectives of a group in one order, so the n-th call of a group is the same call on each of
its ranks. A call's transfer starts when its last rank has arrived; until then the others wait.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from planner.diagnose.classes import COMMUNICATION, classes_of, kernel_classes, phase
from planner.traces.events import Trace
from topology.base.units import NS

SEND = re.compile(r"send|recv|p2p", re.IGNORECASE)
ELEMENT_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("double", "long", "int64", "float64", "long int"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32"), 4),
    **dict.fromkeys(("half", "bfloat16", "c10::half", "c10::bfloat16", "float16", "short"), 2),
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
}
"""Bytes of an element, by torch's names of types."""


LARGEST_COUNT = 1e15
"""Elements of a message: no memory holds more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective on one rank, in seconds of that rank's recorder."""

    rank: int
    kind: str
    """all_reduce, all_gather, sendrecv …"""
    group: tuple[int, ...]
    """Ranks that call together; empty where nothing says."""
    description: str
    start_s: float
    end_s: float
    bytes: float
    thread: int

    @property
    def seconds(self) -> float:
        """How long it took on this rank, waiting in it."""
        return self.end_s - self.start_s

    @property
    def sends(self) -> bool:
        """Whether it goes from one rank to another, and not among all of a group."""
        return SEND.search(self.kind) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The same call on all ranks whose traces are there, on one clock."""

    calls: tuple[Call, ...]
    start_s: Mapping[int, float]
    """By rank, on the clock of the first."""
    end_s: Mapping[int, float]

    @property
    def last_s(self) -> float:
        """When the last rank arrived."""
        return max(self.start_s.values())

    @property
    def latest(self) -> int:
        """The rank that arrived last."""
        return max(self.start_s, key=lambda rank: self.start_s[rank])

    @property
    def late_s(self) -> float:
        """How much later the last rank came than the middle one of the others."""
        others = [start for rank, start in self.start_s.items() if rank != self.latest]
        return self.last_s - float(np.median(others)) if others else 0.0

    @property
    def transfer_s(self) -> float:
        """From the last arrival until the first rank is done."""
        return max(0.0, min(self.end_s.values()) - self.last_s)


def calls_of(trace: Trace) -> tuple[Call, ...]:
    """Collectives of one rank, in the order of their starts."""
    events = trace.events
    if trace.gpu:
        chosen = events.of("kernel") & (classes_of(events) == kernel_classes().index(COMMUNICATION))
    else:
        chosen = phase(events, COMMUNICATION)
    named = {group.name: group for group in trace.groups}
    alone = {group.ranks for group in trace.groups if group.size > 1}
    only = next(iter(alone)) if len(alone) == 1 else ()
    calls = []
    for row in events.rows(chosen):
        group = named.get(str(row.args.get("group", "")))
        ranks = row.args.get("ranks") or (group.ranks if group else ())
        calls.append(
            Call(
                rank=trace.rank,
                kind=_kind(str(row.args.get("collective") or row.name)),
                group=ranks if isinstance(ranks, tuple) and ranks else only,
                description=str(row.args.get("description") or (group.description if group else "")),
                start_s=row.start_s,
                end_s=row.end_s,
                bytes=_bytes(row.args),
                thread=row.thread if row.thread >= 0 else row.stream,
            )
        )
    return tuple(calls)


def _kind(name: str) -> str:
    """A collective's name in one spelling.

    >>> _kind("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"), _kind("_allgather_base")
    ('allreduce', 'allgather')
    """
    plain = name.lower().replace("_", "")
    kinds = (
        "allreduce",
        "allgather",
        "reducescatter",
        "alltoall",
        "broadcast",
        "sendrecv",
        "barrier",
        "reduce",
    )
    return next((kind for kind in kinds if kind in plain), "sendrecv" if SEND.search(name) else "other")


def _bytes(args: Mapping[str, object]) -> float:
    """Size of a message: elements times the bytes of one; 0 where it is not recorded."""
    counts = [_count(args.get(key)) for key in ("elements_in", "elements_out")]
    elements = max(counts)
    if elements:
        return elements * ELEMENT_BYTES.get(str(args.get("dtype", "")).lower(), 1)
    shapes, types = args.get("shapes"), args.get("types")
    if isinstance(shapes, tuple) and isinstance(types, tuple):
        sizes = [
            float(np.prod(shape)) * ELEMENT_BYTES.get(str(kind).lower(), 0)
            for shape, kind in zip(shapes, types, strict=False)
            if isinstance(shape, tuple) and all(isinstance(each, int) for each in shape)
        ]
        return max(sizes, default=0.0)
    return 0.0


def _count(value: object) -> float:
    """A positive number; 0 for anything else."""
    return float(value) if isinstance(value, int | float) and 0 < value < LARGEST_COUNT else 0.0


def meetings_of(traces: Sequence[Trace], calls: Mapping[int, Sequence[Call]]) -> tuple[Meeting, ...]:
    """Calls of all ranks matched, on one clock; those of fewer than two recorded ranks are left out."""
    by_group: dict[tuple[tuple[int, ...], str], dict[int, list[Call]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for rank, of in calls.items():
        for call in of:
            if call.group and not call.sends:
                by_group[call.group, call.kind][rank].append(call)
    matched = [
        rows
        for ranks in by_group.values()
        if len(ranks) > 1 and len({len(of) for of in ranks.values()}) == 1
        for rows in zip(*(ranks[rank] for rank in sorted(ranks)), strict=True)
    ]
    offsets = _offsets(traces, matched)
    return tuple(
        Meeting(
            calls=rows,
            start_s={call.rank: call.start_s + offsets[call.rank] for call in rows},
            end_s={call.rank: call.end_s + offsets[call.rank] for call in rows},
        )
        for rows in matched
    )


def with_groups(traces: Sequence[Trace], calls: Mapping[int, Sequence[Call]]) -> dict[int, tuple[Call, ...]]:
    """Calls with the groups of their threads where none is recorded: those whose ranks are done together.

    A recorder of a CPU says no group. Ranks of one program make the same calls in the same order, and each
    thread or stream serves one group.
    """
    origin = min((trace.origin_ns for trace in traces), default=0)
    ends = {
        trace.rank: np.array([call.end_s for call in calls[trace.rank]]) + (trace.origin_ns - origin) * NS
        for trace in traces
    }
    same = len({len(each) for each in ends.values()}) == 1
    result = {}
    for trace in traces:
        of = calls[trace.rank]
        candidates = {group.ranks for group in trace.groups if group.size > 1 and trace.rank in group.ranks}
        recorded = {
            ranks: [rank for rank in ranks if rank in ends and rank != trace.rank] for ranks in candidates
        }
        group_of = dict[int, tuple[int, ...]]()
        for threads in _together([call.thread for call in of if not call.group]) if same else ():
            places = np.array([place for place, call in enumerate(of) if call.thread in threads])
            apart = {
                ranks: float(
                    np.median(
                        [np.abs(ends[rank][places] - ends[trace.rank][places]).mean() for rank in others]
                    )
                )
                for ranks, others in recorded.items()
                if others
            }
            if apart:
                nearest = min(apart, key=lambda ranks: (apart[ranks], len(ranks)))
                group_of |= dict.fromkeys(threads, nearest)
        words = {group.ranks: group.description for group in trace.groups}
        result[trace.rank] = tuple(
            replace(call, group=group_of[call.thread], description=words.get(group_of[call.thread], ""))
            if not call.group and call.thread in group_of
            else call
            for call in of
        )
    return result


def _together(threads: Sequence[int]) -> list[set[int]]:
    """Threads that serve one group take turns; those of two groups follow each other in stretches."""
    turns, counts = Counter(pairwise(threads)), Counter(threads)
    groups = [{thread} for thread in counts]
    for (first, second), times in turns.items():
        fewest = min(counts[first], counts[second])
        if first != second and (times + turns[second, first]) >= fewest > 1:
            joined = next(each for each in groups if first in each)
            other = next(each for each in groups if second in each)
            if joined is not other:
                groups.remove(other)
                joined |= other
    return groups


def _offsets(traces: Sequence[Trace], matched: Sequence[Sequence[Call]]) -> dict[int, float]:
    """Seconds to add to each rank's times: recorders' clocks, corrected by when collectives end together."""
    origin = min(trace.origin_ns for trace in traces)
    offsets = {trace.rank: (trace.origin_ns - origin) * NS for trace in traces}
    pairs: dict[tuple[int, int], list[float]] = defaultdict(list)
    for rows in matched:
        first = rows[0]
        for call in rows[1:]:
            pairs[first.rank, call.rank].append(
                first.end_s + offsets[first.rank] - call.end_s - offsets[call.rank]
            )
    corrected = {traces[0].rank} if traces else set[int]()
    pending = {pair: float(np.median(gaps)) for pair, gaps in pairs.items()}
    while True:
        reached = [pair for pair in pending if len(corrected & {*pair}) == 1]
        if not reached:
            return offsets
        known, other = reached[0] if reached[0][0] in corrected else reached[0][::-1]
        offsets[other] += pending[reached[0]] if known == reached[0][0] else -pending[reached[0]]
        corrected.add(other)
