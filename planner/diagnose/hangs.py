"""A job that stands still: the first collective that not all of its ranks joined, and which ranks those are.

A rank's flight record says what it began, in its order. Ranks that began more collectives of a group than
others wait for those. Where several groups wait, the first is that for which a rank is missing that waits
nowhere: it is in its program, or gone. Where all wait for each other, it is that which comes first in the
order of the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from planner.diagnose.finding import StepFinding
from planner.traces.events import ProcessGroup
from planner.traces.flight_records import FlightDump, FlightRecord
from topology.base.errors import InputError

ALONE: Final = frozenset(
    ("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "scatter", "gather", "send")
)
"""Collectives from which a rank may return before others have come."""
UNEVEN: Final = frozenset(
    (
        *("all_to_all", "all_to_all_single", "all_to_all_v_single", "all_gather_v", "reduce_scatter_v"),
        *("scatter", "gather", "coalesced"),
    )
)
"""Operations whose shapes may differ from rank to rank."""
WORLD: Final = ("default_pg", "0")
GONE, BUSY, PASSED, UNLIKE, LINK = (
    "gives no dump: its process or its node is gone",
    "is in its program, outside any collective",
    "went past it",
    "calls another operation, shape or type",
    "all ranks have come, and it is not done",
)
"""Why a collective stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A collective, or a message, that is not over."""

    group: ProcessGroup
    number: int
    operation: str
    joined: tuple[int, ...]
    missing: tuple[int, ...]
    """Ranks that have not come; of shapes that differ, the ranks that differ from the most."""
    why: str = ""
    caller: str = ""
    """Where in the program the ranks wait that have come."""
    created_ns: int = 0
    timeout_s: float = 0.0

    @property
    def words(self) -> str:
        """The collective as a message names it."""
        ranks = f" [{', '.join(map(str, self.group.ranks))}]" if len(self.group.ranks) <= 16 else ""
        of = self.group.description or self.group.name
        number = f" {self.number}" if self.number > 0 else ""
        return f"{self.operation}{number} of {of}{ranks}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Where a job stands still."""

    first: Stop
    others: tuple[Stop, ...]
    """Collectives that wait too, by when they were begun."""
    last: Mapping[int, FlightRecord]
    """What each missing rank of the first began last."""
    timeout_s: float
    """How long its ranks wait before the job ends."""

    def finding(self) -> StepFinding:
        """The hang as a finding."""
        stop = self.first
        rank = stop.missing[0] if stop.missing else None
        last = self.last.get(rank) if rank is not None else None
        came = f"{_ranks(stop.joined)} wait{'s' if len(stop.joined) == 1 else ''} in {stop.words}"
        who = f"; {_ranks(stop.missing)} {stop.why}" if stop.missing else f"; {stop.why}"
        after = f", its last call {last.words}{f' ({last.caller})' if last.caller else ''}" if last else ""
        return StepFinding(
            cause="hang",
            rank=rank,
            seconds=self.timeout_s,
            share=1.0,
            evidence=f"{came}{who}{after}",
            fix=_fix(stop, last),
        )


def _fix(stop: Stop, last: FlightRecord | None) -> str:
    """What to look at."""
    ranks = _ranks(stop.missing)
    after = f", after {last.caller}" if last is not None and last.caller else ""
    here = f": {stop.caller}" if stop.caller else ""
    return {
        GONE: f"read the log of {ranks}, and dmesg and Xid errors of its node",
        BUSY: f"print the stack of {ranks}{after}: py-spy dump --pid PID",
        PASSED: f"let {ranks} call {stop.words} where the others do{here}",
        UNLIKE: f"give {ranks} the operation, shape and type of the others{here}",
        LINK: "read NCCL_DEBUG=INFO of these ranks, and measure their links by nccl-tests (all_reduce_perf)",
    }[stop.why]


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks in words."""
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"


def hang_of(dumps: Sequence[FlightDump], groups: Sequence[ProcessGroup] = ()) -> Hang | None:
    """Where a job stands still; None where every collective was joined and is over.

    Args:
        dumps: Flight records of its ranks.
        groups: Ranks of groups by name or description, of a trace, where the dumps do not say them.

    Raises:
        InputError: There is no dump, or two are of one rank.
    """
    if not dumps:
        raise InputError("no flight record is given", "0 files", "pass the dump of every rank")
    twice = [rank for rank, count in Counter(dump.rank for dump in dumps).items() if count > 1]
    if twice:
        fix = "pass one dump of each rank"
        raise InputError(f"two flight records are of rank {twice[0]}", f"{len(dumps)} files", fix)
    board = _Board(dumps, groups)
    stops = [*board.collectives(), *board.messages()]
    if not stops:
        return None
    first = board.first(stops)
    others = [stop for stop in stops if (stop.group, stop.number) != (first.group, first.number)]
    return Hang(
        first=first,
        others=tuple(sorted(others, key=lambda stop: stop.created_ns)),
        last={rank: board.records[rank][-1] for rank in first.missing if board.records.get(rank)},
        timeout_s=first.timeout_s,
    )


_Key = tuple[str, str]
"""Name and description of a group."""


class _Board:
    """What all ranks began, by group."""

    def __init__(self, dumps: Sequence[FlightDump], groups: Sequence[ProcessGroup]) -> None:
        self.records = {dump.rank: dump.records for dump in dumps}
        self.status = {dump.rank: dump.status for dump in dumps}
        self.calls: dict[tuple[_Key, tuple[int, ...]], dict[int, dict[int, FlightRecord]]] = {}
        """By group and its ranks: of each rank its collectives by number."""
        self._members = _members(dumps, groups)
        calls = defaultdict[tuple[_Key, tuple[int, ...]], dict[int, dict[int, FlightRecord]]](dict)
        for rank, records in self.records.items():
            for record in records:
                if record.pair is None:
                    place = calls[self._group(rank, record)].setdefault(rank, {})
                    place[record.sequence] = record
        self.calls = dict(calls)

    def _group(self, rank: int, record: FlightRecord) -> tuple[_Key, tuple[int, ...]]:
        """The group of a record, and its ranks."""
        key = record.group, record.description
        return key, self._members[rank, key]

    def begun(self, rank: int, key: _Key, calls: Mapping[int, FlightRecord]) -> int:
        """Number of the last collective of a group that a rank began."""
        status = self.status.get(rank, {}).get(key)
        return max(max(calls, default=0), status.enqueued if status is not None else 0)

    def collectives(self) -> Iterator[Stop]:
        """Of every group the first collective that is not over, if there is one."""
        for (key, members), by_rank in self.calls.items():
            begun = {
                rank: self.begun(rank, key, by_rank.get(rank, {})) for rank in members if rank in self.records
            }
            unlike = self._unlike(key, members, by_rank)
            if unlike is not None:
                yield unlike
                continue
            gone = tuple(rank for rank in members if rank not in self.records)
            number = min(begun.values()) + 1
            joined = tuple(rank for rank, last in begun.items() if last >= number)
            late = tuple(rank for rank, last in begun.items() if last < number)
            if joined:
                yield self._stop(key, members, number, joined, (*gone, *late), by_rank)
                continue
            waiting = [number for calls in by_rank.values() for number in _not_over(calls)]
            if waiting:  # all have come as far as the dumps say
                number = min(waiting)
                yield self._stop(key, members, number, tuple(begun), gone, by_rank)

    def _stop(
        self,
        key: _Key,
        members: tuple[int, ...],
        number: int,
        joined: tuple[int, ...],
        missing: tuple[int, ...],
        by_rank: Mapping[int, Mapping[int, FlightRecord]],
    ) -> Stop:
        """A collective that stands still."""
        records = [by_rank[rank][number] for rank in joined if number in by_rank.get(rank, {})]
        operations = Counter(record.operation for record in records)
        return Stop(
            group=ProcessGroup(name=key[0], description=key[1], ranks=members, size=len(members)),
            number=number,
            operation=operations.most_common(1)[0][0] if operations else "collective",
            joined=joined,
            missing=missing,
            why="" if missing else LINK,
            caller=next((record.caller for record in records if record.caller), ""),
            created_ns=min((record.created_ns for record in records), default=0),
            timeout_s=max((record.timeout_s for record in records), default=0.0),
        )

    def _unlike(
        self, key: _Key, members: tuple[int, ...], by_rank: Mapping[int, Mapping[int, FlightRecord]]
    ) -> Stop | None:
        """The first collective of a group in which a rank does another thing than the most."""
        numbers = sorted({number for calls in by_rank.values() for number in calls})
        for number in numbers:
            kinds = {rank: _kind(calls[number]) for rank, calls in by_rank.items() if number in calls}
            if len(set(kinds.values())) > 1:
                usual = Counter(kinds.values()).most_common(1)[0][0]
                missing = tuple(sorted(rank for rank, kind in kinds.items() if kind != usual))
                joined = tuple(sorted(kinds.keys() - set(missing)))
                stop = self._stop(key, members, number, joined, missing, by_rank)
                return _because(stop, UNLIKE)
        return None

    def messages(self) -> Iterator[Stop]:
        """Messages that wait for their other side."""
        waiting = defaultdict[tuple[int, int], dict[str, FlightRecord]](dict)
        for rank, records in self.records.items():
            for record in records:
                if record.pair is not None and not record.is_over:
                    members = self._group(rank, record)[1]
                    if max(record.pair) < len(members):
                        pair = members[record.pair[0]], members[record.pair[1]]
                        waiting[pair].setdefault(record.operation, record)
        for (sender, receiver), sides in waiting.items():
            side, record = next(iter(sides.items()))
            here, peer = (sender, receiver) if side == "send" else (receiver, sender)
            both = len(sides) == 2
            yield Stop(
                group=ProcessGroup(
                    name=record.group, description=record.description, ranks=(sender, receiver), size=2
                ),
                number=record.sequence,
                operation=f"{side} {sender}->{receiver}",
                joined=(sender, receiver) if both else (here,),
                missing=() if both else (peer,),
                why=LINK if both else "",
                caller=record.caller,
                created_ns=record.created_ns,
                timeout_s=record.timeout_s,
            )

    # ── which was first ───────────────────────────────────────────────────────────────────────────────────

    def first(self, stops: Sequence[Stop]) -> Stop:
        """The collective for which the others wait, and why it stands still."""
        unlike = [stop for stop in stops if stop.why == UNLIKE]
        if unlike:
            return self._earliest(unlike)
        without = [stop for stop in stops if any(rank not in self.records for rank in stop.missing)]
        if without:
            stop = self._earliest(without)
            gone = tuple(rank for rank in stop.missing if rank not in self.records)
            return _because(stop, GONE, gone)
        waits = {rank for stop in stops for rank in stop.joined if self._waits(rank, stop)}
        busy = [stop for stop in stops if set(stop.missing) - waits]
        if busy:
            stop = self._earliest(busy)
            return _because(stop, BUSY, tuple(rank for rank in stop.missing if rank not in waits))
        short = [stop for stop in stops if stop.missing]
        if short:
            return _because(self._earliest(short), PASSED)
        return self._earliest(stops)

    def _waits(self, rank: int, stop: Stop) -> bool:
        """Whether a rank that has come waits there, or did until an error ended its wait.

        What all ranks must join is over on none before: a rank that returned from it did by an error.
        """
        if stop.operation.partition(" ")[0] not in ALONE:
            return True
        calls = self.calls.get(((stop.group.name, stop.group.description), stop.group.ranks), {})
        record = calls.get(rank, {}).get(stop.number)
        return record is None or not record.is_over

    def _earliest(self, stops: Sequence[Stop]) -> Stop:
        """That which ranks call before the others."""
        return min(
            stops, key=lambda stop: (sum(self._precedes(other, stop) for other in stops), stop.created_ns)
        )

    def _precedes(self, first: Stop, second: Stop) -> bool:
        """Whether the most ranks that call both kinds call the first before the second.

        Where no rank has come to both, their order is that of the calls before.
        """
        for back in (0, 1):
            before = after = 0
            for records in self.records.values():
                places = {
                    (record.description, record.operation, record.sequence): record.number
                    for record in records
                }
                here = places.get((first.group.description, first.operation, first.number - back))
                there = places.get((second.group.description, second.operation, second.number - back))
                if here is not None and there is not None:
                    before, after = before + (here < there), after + (here > there)
            if before != after:
                return before > after
        return False


def _because(stop: Stop, why: str, missing: tuple[int, ...] | None = None) -> Stop:
    """A stop with the reason that it stands still."""
    return replace(stop, why=why, missing=stop.missing if missing is None else missing)


def _not_over(calls: Mapping[int, FlightRecord]) -> Iterator[int]:
    """Numbers of a rank's collectives after the last that is over: a stream works them off in their order."""
    last = max((number for number, record in calls.items() if record.is_over), default=0)
    return (number for number in calls if number > last)


def _kind(record: FlightRecord) -> tuple[object, ...]:
    """What must be the same on all ranks of a collective."""
    if record.operation in UNEVEN:
        return (record.operation,)
    return record.operation, record.input_sizes, record.output_sizes, record.dtypes


def _members(
    dumps: Sequence[FlightDump], groups: Sequence[ProcessGroup]
) -> dict[tuple[int, _Key], tuple[int, ...]]:
    """Ranks of each group of each rank: as its dump says, as a trace says, else all that call it."""
    callers = defaultdict[_Key, set[int]](set)
    for dump in dumps:
        for record in dump.records:
            callers[record.group, record.description].add(dump.rank)
    called = _with_silent(callers, {dump.rank for dump in dumps})
    members: dict[tuple[int, _Key], tuple[int, ...]] = {}
    for key, ranks in callers.items():
        for rank, dump in ((dump.rank, dump) for dump in dumps if dump.rank in ranks):
            traced = (g.ranks for g in groups if rank in g.ranks and (g.description or g.name) in key)
            stated = dump.group_ranks.get(key[0], ())
            members[rank, key] = stated if rank in stated else next(traced, called[key])
    return members


def _with_silent(callers: Mapping[_Key, set[int]], dumped: set[int]) -> dict[_Key, tuple[int, ...]]:
    """Ranks that call each group, and a rank without a dump where one group alone lacks it.

    Groups of a description are as large as each other: that which is smaller lacks a rank.
    """
    silent = set(range(max(dumped))) - dumped
    called = {}
    for key, ranks in callers.items():
        beside = [others for other, others in callers.items() if other[1] == key[1]]
        short = [others for others in beside if len(others) < max(map(len, beside))]
        is_world = key[1] == WORLD[0] or key == (WORLD[1], "")
        lacks = is_world or (len(silent) == 1 and short == [ranks])
        called[key] = tuple(sorted(ranks | silent if lacks else ranks))
    return called
