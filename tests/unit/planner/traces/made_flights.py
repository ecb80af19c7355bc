"""Flight records of ranks that were never run: collectives are played as NCCL and torch would record them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

AHEAD = 4
"""Calls that a rank enqueues before it waits for the oldest, as a stream lets it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a rank's program; of a message, `pair` holds places in the group."""

    group: str
    operation: str
    size: int
    pair: tuple[int, int] | None = None


@dataclass(slots=True)
class Played:
    """What a rank has begun, and where its program stands."""

    program: list[Call]
    begun: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def play(
    groups: dict[str, list[list[int]]],
    programs: Sequence[list[Call]],
    *,
    dead: Sequence[int] = (),
    stalled: tuple[str, int] | None = None,
    nccl: bool = True,
) -> dict[int, dict[str, Any]]:
    """Dumps of all ranks but dead ones, once nothing moves any more.

    Args:
        groups: Ranks of the groups of each description.
        programs: What each rank calls, in its order; a short one is stuck in code of its own.
        dead: Ranks that leave no dump.
        stalled: Description and number of collectives that all join and that are never over.
        nccl: Whether the recorder says states and the ranks of groups.
    """
    ranks = [Played(list(program)) for program in programs]
    names = {}
    for description, sets in groups.items():
        for members in sets:
            names[description, tuple(members)] = str(len(names))
    of = {(d, r): tuple(m) for d, sets in groups.items() for m in sets for r in m}
    joined: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    clock = 10**18
    moved = True
    while moved:
        moved = False
        for rank, state in enumerate(ranks):
            waiting = [row for row in state.begun if not row["over"]]
            if not state.program or len(waiting) >= AHEAD:
                continue
            call, moved, clock = state.program.pop(0), True, clock + 1000
            members = of[call.group, rank]
            kind = ("p2p", call.pair) if call.pair else ("coll",)
            state.numbers[call.group, kind] += 1
            number = state.numbers[call.group, kind]
            key = (call.group, members, kind, number)
            joined[key].add(rank)
            need = set(members) if not call.pair else {members[place] for place in call.pair}
            state.begun.append(
                {"call": call, "key": key, "need": need, "number": number, "ns": clock, "over": False}
            )
        for state in ranks:
            blocked = set()
            for row in state.begun:
                channel = row["key"][:3]
                if (
                    not row["over"]
                    and channel not in blocked
                    and row["need"] <= joined[row["key"]]
                    and (row["call"].group, row["number"]) != stalled
                ):
                    row["over"] = moved = True
                if not row["over"]:
                    blocked.add(channel)
    return {rank: _dump(rank, state, of, names, nccl) for rank, state in enumerate(ranks) if rank not in dead}


def _dump(rank: int, state: Played, of: dict[Any, Any], names: dict[Any, str], nccl: bool) -> dict[str, Any]:
    """A rank's dump in the keys of FlightRecorder.hpp 2.10."""
    entries, status, config, ids = [], {}, {}, {}
    heads: set[Any] = set()
    for place, row in enumerate(state.begun):
        call: Call = row["call"]
        members = of[call.group, rank]
        name = names[call.group, members]
        ids.setdefault(name, len(ids))
        if row["over"]:
            state_word = "completed"
        else:
            state_word = "scheduled" if row["key"][:3] in heads else "started"
            heads.add(row["key"][:3])
        between = ""
        if call.pair:
            between = (
                f" {call.pair[0]}->{call.pair[1]}"
                if call.operation == "send"
                else f" {call.pair[1]}<-{call.pair[0]}"
            )
        entries.append(
            {
                "frames": [{"name": "step", "filename": "/src/train.py", "line": 40 + len(call.operation)}],
                "record_id": place,
                "pg_id": ids[name],
                "process_group": (name, call.group),
                "collective_seq_id": 0 if call.pair else row["number"],
                "p2p_seq_id": row["number"] if call.pair else 0,
                "op_id": place + 1,
                "profiling_name": f"{'nccl' if nccl else 'gloo'}:{call.operation}{between}",
                "time_created_ns": row["ns"],
                "input_sizes": [[call.size]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[call.size]],
                "output_dtypes": ["BFloat16"],
                "state": state_word if nccl else "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": row["over"],
                "timeout_ms": 600000,
                "is_p2p": call.pair is not None,
            }
        )
        last = status.setdefault(
            str(ids[name]),
            {"last_enqueued_collective": -1, "last_started_collective": -1, "last_completed_collective": -1},
        )
        if not call.pair:
            last["last_enqueued_collective"] = row["number"]
            if row["over"]:
                last["last_completed_collective"] = row["number"]
        config[name] = {"name": name, "desc": call.group, "ranks": str(list(members))}
    empty = {"": {"name": "", "desc": "", "ranks": "[]"}}
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.5" if nccl else "",
        "pg_config": config if nccl else empty,
        "pg_status": status,
        "entries": entries,
    }
