"""Flight records of torch: the last collectives of a rank, as its dump or its JSON has them.

A dump is what `TORCH_FR_DUMP_TEMP_FILE` names, written when a collective times out, or the answer of
`torch._C._distributed_c10d._dump_nccl_trace`, `_dump_fr_trace` and `_dump_fr_trace_json`; its keys are those
of FlightRecorder.hpp, version 2. NCCL says `state` and the ranks of every group; gloo leaves `state` at
scheduled, says `retired` once a call has returned, and leaves the ranks of groups empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from planner.traces.pickles import MAX_PICKLE_BYTES, is_pickle, parse_pickle
from topology.base.decode import json_value
from topology.base.errors import InputError, shortened, shown
from topology.base.files import LONGEST_PATH, read_bytes

MAX_RECORDS: Final = 1_000_000
"""Of a rank; `TORCH_FR_BUFFER_SIZE` is 2,000 where nothing else is set."""
MAX_RANK: Final = 2**24
TORCH_FOLDERS: Final = ("site-packages/torch/", "/torch/distributed/", "dist-packages/torch/")
"""Where frames of torch lie: the first frame outside names the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightRecord:
    """One collective, or one message, that a rank began."""

    number: int
    """Place among all that the rank began."""
    group: str
    """The recorder's name of the group."""
    description: str
    """What the program calls the group, as `dp`."""
    operation: str
    """As torch calls it, without its backend: all_reduce, send."""
    sequence: int
    """Place among the collectives of the group, from 1; of a message among its messages."""
    pair: tuple[int, int] | None = None
    """Of a message, places in the group of who sends and who receives."""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    state: str = "scheduled"
    """scheduled, started or completed; gloo leaves it at scheduled."""
    retired: bool = False
    """Whether its wait is over, by completion or by an error."""
    created_ns: int = 0
    timeout_s: float = 0.0
    caller: str = ""
    """The first frame outside torch: function, file and line."""

    @property
    def is_over(self) -> bool:
        """Whether the rank waits in it no more."""
        return self.retired or self.state == "completed"

    @property
    def words(self) -> str:
        """The collective as a message names it."""
        return f"{self.operation} {self.sequence} of {self.description or self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """Numbers of a group's last collectives on one rank; -1 where there was none."""

    enqueued: int = -1
    started: int = -1
    completed: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightDump:
    """What one rank dumped."""

    source: str
    rank: int
    version: str
    records: tuple[FlightRecord, ...]
    """In the order in which they were begun; the first ones may have been overwritten."""
    group_ranks: Mapping[str, tuple[int, ...]]
    """Ranks of groups by the recorder's name, where the dump says them."""
    status: Mapping[tuple[str, str], GroupStatus]
    """By name and description of the group."""


def read_flight_dump(path: str | Path, rank: int | None = None) -> FlightDump:
    """The flight records of one rank, of a pickle or of JSON.

    Args:
        path: The file.
        rank: Whose it is; without it the number in the file's name.

    Raises:
        InputError: It is no flight record, is beyond the bounds, or nothing says whose it is.
        OSError: There is none, or it may not be read.
    """
    name = shortened(str(path), LONGEST_PATH)
    content = read_bytes(path, MAX_PICKLE_BYTES)
    if is_pickle(content[:2]):
        return flight_dump(parse_pickle(content, name), name, rank)
    try:
        return flight_dump(json_value(content.decode("utf-8")), name, rank)
    except (ValueError, RecursionError) as error:
        fix = "pass the file that torch's flight recorder wrote"
        raise InputError(f"{name} is neither a pickle nor JSON", str(error), fix) from None


def rank_of_name(path: str) -> int | None:
    """The rank that a file's name says: the number after `rank`, else the last number of the name.

    >>> rank_of_name("run3/nccl_trace_rank_12"), rank_of_name("fr_rank0.pickle"), rank_of_name("dump")
    (12, 0, None)
    """
    base = re.split(r"[/\\]", path)[-1]
    named = re.findall(r"rank[_-]?(\d{1,8})", base, re.IGNORECASE) or re.findall(r"(\d{1,8})", base)
    rank = int(named[-1]) if named else -1
    return rank if 0 <= rank < MAX_RANK else None


def is_flight_dump(document: object) -> bool:
    """Whether a document has the keys of a flight record."""
    return (
        isinstance(document, dict) and isinstance(document.get("entries"), list) and "pg_config" in document
    )


def flight_dump(document: object, source: str, rank: int | None = None) -> FlightDump:
    """The records of a document that was read. Raises InputError where it is none."""
    if not isinstance(document, dict) or not is_flight_dump(document):
        cause = "it has no `entries` and `pg_config`"
        fix = "pass what `TORCH_FR_DUMP_TEMP_FILE` names, of a run with TORCH_FR_BUFFER_SIZE above 0"
        raise InputError(f"{source} is no flight record", cause, fix)
    whose = rank if rank is not None else rank_of_name(source)
    if whose is None:
        fix = "name the file by its rank, as fr_rank0.pickle"
        raise InputError(f"{source} does not say its rank", "its name has no number", fix)
    entries = document["entries"]
    if len(entries) > MAX_RECORDS:
        cause = f"it has {len(entries):,} records, more than {MAX_RECORDS:,}"
        raise InputError(f"{source} is too large", cause, "dump the last ones: set TORCH_FR_BUFFER_SIZE")
    fields = [_Fields(source, place, entry) for place, entry in enumerate(entries)]
    names = {
        entry.whole("pg_id", -1): (entry.group, entry.description) for entry in fields if entry.has("pg_id")
    }
    statuses = document.get("pg_status")
    return FlightDump(
        source=source,
        rank=whose,
        version=shortened(str(document.get("version", "")), 20),
        records=tuple(entry.record() for entry in fields),
        group_ranks=_ranks_of_groups(document["pg_config"]),
        status={
            names[int(number)]: _status(status)
            for number, status in (statuses.items() if isinstance(statuses, dict) else ())
            if isinstance(status, dict) and str(number).isdecimal() and int(number) in names
        },
    )


def _ranks_of_groups(config: object) -> dict[str, tuple[int, ...]]:
    """Ranks by the name of a group; torch writes a list as text."""
    groups = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        listed = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(listed, str):
            listed = [int(number) for number in re.findall(r"\d{1,8}", listed)]
        if isinstance(listed, list) and listed and all(isinstance(rank, int) for rank in listed):
            groups[str(name)] = tuple(sorted({rank for rank in listed if 0 <= rank < MAX_RANK}))
    return groups


def _status(status: Mapping[str, Any]) -> GroupStatus:
    """Last numbers of a group; JSON has them as text."""

    def last(word: str) -> int:
        value = status.get(f"last_{word}_collective", -1)
        return int(value) if re.fullmatch(r"-?\d{1,18}", str(value)) else -1

    return GroupStatus(enqueued=last("enqueued"), started=last("started"), completed=last("completed"))


@dataclass(frozen=True, slots=True)
class _Fields:
    """One entry of a dump, whose fields are looked at before they are used."""

    source: str
    place: int
    entry: Any

    def __post_init__(self) -> None:
        """Refuse what is no entry."""
        if not isinstance(self.entry, dict):
            self._refuse(shown(self.entry) if not isinstance(self.entry, list) else "a list", "a record")

    def _refuse(self, have: str, need: str) -> None:
        cause = f"record {self.place} holds {have} where {need} was expected"
        fix = "pass the unchanged dump of torch's flight recorder"
        raise InputError(f"{self.source} is no flight record", cause, fix)

    def has(self, key: str) -> bool:
        """Whether the entry says it."""
        return self.entry.get(key) is not None

    def whole(self, key: str, default: int = 0) -> int:
        """An integer of the entry."""
        value = self.entry.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or abs(value) >= 2**63:
            self._refuse(f"{key} = {shown(value)}", "an integer")
        return int(value)

    def text(self, key: str) -> str:
        """A text of the entry."""
        value = self.entry.get(key, "")
        if not isinstance(value, str):
            self._refuse(f"{key} of type {type(value).__name__}", "text")
        return str(value)

    @property
    def _process_group(self) -> tuple[str, str]:
        group = self.entry.get("process_group", ("", ""))
        if (
            not isinstance(group, list | tuple)
            or len(group) != 2
            or not all(isinstance(part, str) for part in group)
        ):
            self._refuse("process_group", "a name and a description")
        return group[0], group[1]

    @property
    def group(self) -> str:
        """The recorder's name of the group."""
        return self._process_group[0]

    @property
    def description(self) -> str:
        """What the program calls the group; empty where it calls it nothing."""
        described = self._process_group[1]
        return "" if described == "undefined" else described

    def sizes(self, key: str) -> tuple[tuple[int, ...], ...]:
        """Shapes of tensors."""
        value = self.entry.get(key) or ()
        if not isinstance(value, list | tuple):
            self._refuse(key, "a list of shapes")
        shapes = []
        for shape in value:
            if not isinstance(shape, list | tuple) or not all(isinstance(length, int) for length in shape):
                self._refuse(key, "a list of shapes")
            shapes.append(tuple(shape))
        return tuple(shapes)

    def names(self, key: str) -> tuple[str, ...]:
        """Names of types."""
        value = self.entry.get(key) or ()
        if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
            self._refuse(key, "a list of names")
        return tuple(value)

    def record(self) -> FlightRecord:
        """The record of the entry."""
        named = self.text("profiling_name").partition(":")[2] or self.text("profiling_name")
        operation, _, between = named.partition(" ")
        is_message = self.entry.get("is_p2p") is True
        return FlightRecord(
            number=self.whole("record_id", self.place),
            group=self.group,
            description=self.description,
            operation=shortened(operation, 60),
            sequence=self.whole("p2p_seq_id" if is_message else "collective_seq_id"),
            pair=_pair(operation, between) if is_message else None,
            input_sizes=self.sizes("input_sizes"),
            output_sizes=self.sizes("output_sizes"),
            dtypes=tuple(sorted({*self.names("input_dtypes"), *self.names("output_dtypes")})),
            state=shortened(self.text("state"), 20) or "scheduled",
            retired=self.entry.get("retired") is True,
            created_ns=self.whole("time_created_ns"),
            timeout_s=self.whole("timeout_ms") / 1000,
            caller=_caller(self.entry.get("frames")),
        )


def _pair(operation: str, between: str) -> tuple[int, int] | None:
    """Who sends and who receives, of `send 0->1` and `recv 0<-1`; None where it is not said.

    >>> _pair("send", "0->1"), _pair("recv", "0<-1"), _pair("coalesced", "")
    ((0, 1), (1, 0), None)
    """
    match = re.fullmatch(r"(\d{1,8})(->|<-)(\d{1,8})", between)
    if match is None or operation not in ("send", "recv"):
        return None
    here, peer = int(match[1]), int(match[3])
    return (here, peer) if match[2] == "->" else (peer, here)


def _caller(frames: object) -> str:
    """The first frame outside torch as `function at file:line`; empty where no frame is kept."""
    kept = [frame for frame in frames if isinstance(frame, dict)] if isinstance(frames, list) else []
    outside = [f for f in kept if not any(folder in str(f.get("filename")) for folder in TORCH_FOLDERS)]
    for frame in (*outside, *kept):
        file = shortened(str(frame.get("filename", "")).rpartition("/")[2], 60)
        return f"{shortened(str(frame.get('name', '')), 60)} at {file}:{frame.get('line', '')!s:.12}"
    return ""
