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
from numpy.typing import NDArray

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
    shared = _shared_places(traces, calls) if same else []
    group_of: dict[tuple[int, int], tuple[int, ...]] = {}
    for places in shared:
        chosen = {
            trace.rank: _group_by_ends(trace, calls[trace.rank], ends, places)
            for trace in traces
            if not any(calls[trace.rank][place].group for place in places.tolist())
        }
        for ranks in sorted({*chosen.values()} - {()}, key=len, reverse=True):
            members = [rank for rank in ranks if chosen.get(rank)]
            if 2 * sum(chosen[rank] == ranks for rank in members) > len(members):
                chosen |= dict.fromkeys(members, ranks)  # ranks of a group are in it together
        group_of |= {(rank, place): ranks for rank, ranks in chosen.items() for place in places if ranks}
    result = {}
    for trace in traces:
        words = {group.ranks: group.description for group in trace.groups}
        result[trace.rank] = tuple(
            replace(call, group=inferred, description=words.get(inferred, ""))
            if (inferred := group_of.get((trace.rank, place)))
            else call
            for place, call in enumerate(calls[trace.rank])
        )
    return result


def _shared_places(traces: Sequence[Trace], calls: Mapping[int, Sequence[Call]]) -> list[NDArray[np.int64]]:
    """Places of each group's calls: those that share their threads on any rank, or their place in steps."""
    count = len(next(iter(calls.values()), ()))
    first = [*range(count)]

    def root(place: int) -> int:
        while first[place] != place:
            first[place] = first[first[place]]
            place = first[place]
        return place

    for trace in traces:
        of = calls[trace.rank]
        repeated, threads = _repeated_places(trace, of), [call.thread for call in of]
        joined = [
            [place for place, thread in enumerate(threads) if thread in some]
            for some in ([{thread} for thread in {*threads}] if repeated else _together(threads))
        ]
        for places in (*joined, *repeated):
            for place in places[1:]:
                first[root(place)] = root(places[0])
    groups = defaultdict[int, list[int]](list)
    for place in range(count):
        groups[root(place)].append(place)
    return [np.array(places) for places in groups.values()]


def _repeated_places(trace: Trace, calls: Sequence[Call]) -> list[tuple[int, ...]]:
    """Places of the same call in each step, where all steps make the same calls."""
    edges = np.searchsorted(
        [call.start_s for call in calls], [*(each.start_s for each in trace.windows), np.inf]
    )
    steps = [range(start, end) for start, end in pairwise(edges.tolist())]
    made = {tuple((calls[place].kind, calls[place].bytes) for place in step) for step in steps}
    return [*zip(*steps, strict=True)] if len(made) == 1 else []


def _group_by_ends(
    trace: Trace,
    calls: Sequence[Call],
    ends: Mapping[int, NDArray[np.float64]],
    places: NDArray[np.int64],
) -> tuple[int, ...]:
    """The largest group of a rank whose ranks are done together with it.

    They are, where they are done about as near to it as those of its nearest group, or well within the call.
    """
    apart = {}
    for ranks in {group.ranks for group in trace.groups if group.size > 1 and trace.rank in group.ranks}:
        others = [rank for rank in ranks if rank in ends and rank != trace.rank]
        if others:
            gaps = [np.abs(ends[rank][places] - ends[trace.rank][places]) for rank in others]
            apart[ranks] = float(np.mean(gaps))
    if not apart:
        return ()
    nearest = min(apart, key=lambda ranks: (apart[ranks], len(ranks)))
    lasts = float(np.mean([calls[place].seconds for place in places.tolist()]))
    within = max(AS_NEAR * apart[nearest], TOGETHER * lasts)
    return max((ranks for ranks in apart if apart[ranks] <= within), key=len)


AS_NEAR, TOGETHER = 2.0, 0.1
"""Of how far the nearest ranks are, and of a call: what lies between the ends of one call on its ranks."""


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
