"""What files beside traces explain: flight records, memory, tables of operations, samples of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from planner.diagnose.devices import device_findings
from planner.diagnose.evidence import fixes
from planner.diagnose.finding import StepFinding
from planner.diagnose.hangs import Hang, hang_of
from planner.diagnose.memory import MemoryResidual
from planner.diagnose.stragglers import JobSlowdown, stragglers_of
from planner.traces.device_samples import COLUMNS, device_samples
from planner.traces.events import ProcessGroup
from planner.traces.flight_records import FlightDump, flight_dump, read_flight_dump
from planner.traces.memory_snapshots import (
    RecordedMemory,
    is_snapshot,
    read_memory_timeline,
    snapshot_memory,
)
from planner.traces.pickles import is_pickle, read_pickle
from planner.traces.pipeline_tables import read_pipeline_table
from planner.traces.server_metrics import RequestTimes, is_server_metrics, request_times
from topology.base.errors import InputError, shortened
from topology.base.files import LONGEST_PATH, open_regular, read_text
from topology.base.units import format_bytes, format_seconds

HEAD_BYTES: Final = 4096
PARQUET_MAGIC: Final = b"PAR1"
KINDS: Final = ("pickle", "flight record", "memory timeline", "operations", "devices", "requests")
"""A pickle is a flight record or a memory snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideEvidence:
    """What files beside traces say."""

    findings: tuple[StepFinding, ...] = ()
    hang: Hang | None = None
    slowdown: JobSlowdown | None = None
    memory: tuple[RecordedMemory, ...] = ()
    memory_budgets: tuple[tuple[MemoryResidual, ...], ...] = ()
    """Of each memory its parts, beside those of the plan where there is one."""
    servers: tuple[str, ...] = ()
    """Servers by their logs, in words."""

    @property
    def lost_share(self) -> float:
        """Share of the step of its most expensive finding."""
        return max((finding.share for finding in self.findings), default=0.0)

    def document(self) -> dict[str, Any]:
        """Plain data for a program: seconds and bytes everywhere."""
        return {
            "hang": None if self.hang is None else asdict(self.hang.finding()),
            "slowdown": None if self.slowdown is None else asdict(self.slowdown),
            "memory": [asdict(each) for each in self.memory],
            "servers": list(self.servers),
            "memory_budgets": [[asdict(row) for row in each] for each in self.memory_budgets],
            "findings": [asdict(each) for each in self.findings],
        }


def kind_beside(path: str | Path) -> str:
    """Which of `KINDS` a file is by how it begins; empty for none of them.

    Raises:
        InputError: It is no regular file, or is not there.
    """
    name = shortened(str(path), LONGEST_PATH)
    try:
        with open_regular(path) as stream:
            head = stream.read(HEAD_BYTES)
    except FileNotFoundError:
        raise InputError(f"{name} does not exist", "no such file", "check the path") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read", error.strerror or str(error), "check the path") from None
    text = head.decode("utf-8", "replace").lstrip()
    columns = {cell.partition("[")[0].strip().lower() for cell in text.partition("\n")[0].split(",")}
    if is_pickle(head):
        return "pickle"
    if head.startswith(PARQUET_MAGIC):
        return "operations"
    if "<nvidia_smi_log" in text or "DCGM_FI_" in text or {"index"} < columns & COLUMNS.keys():
        return "devices"
    if text.startswith("#") and is_server_metrics(read_text(path)):
        return "requests"
    if ".raw" in Path(path).name or "memory_timeline" in Path(path).name:
        return "memory timeline"
    return "flight record" if text.startswith("{") and _is_flight(path) else ""


def _is_flight(path: str | Path) -> bool:
    """Whether a JSON file is named as flight records are, and has their keys."""
    if not Path(path).name.startswith(("fr_", "nccl_trace")):
        return False
    text = read_text(path)
    return '"entries"' in text and '"pg_config"' in text


def beside_traces(
    paths: Sequence[str | Path], *, step_s: float = 0.0, groups: Sequence[ProcessGroup] = ()
) -> SideEvidence:
    """What files beside traces explain, the largest share first.

    Args:
        paths: Files of `KINDS`.
        step_s: The step of the traces; 0 where there is none.
        groups: Their process groups, for flight records that do not say them.

    Raises:
        InputError: A file is none of them, or is not as its tool writes it.
    """
    dumps, memory, samples = list[FlightDump](), list[RecordedMemory](), list[Any]()
    slowdown, findings = None, list[StepFinding]()
    for path in paths:
        name, kind = shortened(str(path), LONGEST_PATH), kind_beside(path)
        if kind == "pickle":
            document = read_pickle(path)
            if is_snapshot(document):
                memory += snapshot_memory(document, name)
            else:
                dumps.append(flight_dump(document, name))
        elif kind == "flight record":
            dumps.append(read_flight_dump(path))
        elif kind == "memory timeline":
            memory.append(read_memory_timeline(path))
        elif kind == "operations":
            slowdown = stragglers_of(read_pipeline_table(path))
            findings += slowdown.findings()
        elif kind == "requests":
            findings += request_findings(request_times(read_text(path), name))
        elif kind == "devices":
            samples += device_samples(read_text(path), name)
        else:
            fix = f"name a file of another form: {', '.join(KINDS)}"
            raise InputError(f"{name} explains no trace", "it is of no form that is known", fix)
    memory = _distinct(memory)
    hang = hang_of(_by_rank(dumps), groups) if dumps else None
    findings += [hang.finding()] if hang is not None else []
    findings += [finding for each in memory for finding in memory_findings(each)]
    findings += device_findings(samples, step_s)
    return SideEvidence(
        findings=tuple(sorted(findings, key=lambda finding: -finding.share)),
        hang=hang,
        slowdown=slowdown,
        memory=tuple(memory),
    )


def _by_rank(dumps: Sequence[FlightDump]) -> list[FlightDump]:
    """One dump of each rank: of a pickle and JSON that lie beside each other the one with callers."""
    best = dict[int, FlightDump]()
    for dump in dumps:
        other = best.get(dump.rank)
        if other is None or _callers(dump) > _callers(other):
            best[dump.rank] = dump
    return list(best.values())


def _distinct(memory: Sequence[RecordedMemory]) -> list[RecordedMemory]:
    """Each memory once: of a timeline and its raw events, which torch's exporter names alike, the finer."""
    best = dict[tuple[str, int | None, int, int], RecordedMemory]()
    for each in memory:
        key = each.source.replace(".raw", ""), each.rank, each.device, each.peak_bytes
        other = best.get(key)
        if other is None or _details(each) > _details(other):
            best[key] = each
    return list(best.values())


def _details(memory: RecordedMemory) -> tuple[bool, int]:
    """How much a record says: whether it has the allocator's segments, and of how many categories."""
    return memory.reserved_bytes is not None, sum(size > 0 for size in memory.at_peak.values())


def _callers(dump: FlightDump) -> int:
    return sum(bool(record.caller) for record in dump.records)


def memory_findings(memory: RecordedMemory) -> Iterator[StepFinding]:
    """What a recorded memory explains: an allocator that waits for the device, or has nothing left."""
    unused = ""
    if memory.reserved_bytes and memory.fragmented_bytes is not None:
        reserved = format_bytes(memory.reserved_bytes)
        unused = f"; {format_bytes(memory.fragmented_bytes)} of {reserved} reserved are unused"
    if memory.failures:
        failed = max(memory.failures, key=lambda failure: failure.size_bytes)
        seen = f"no room for {format_bytes(failed.size_bytes)} with {format_bytes(failed.free_bytes)} free"
    elif memory.retries:
        seen = f"cudaFree before cudaMalloc {memory.retries} times"
    else:
        return
    yield StepFinding(
        cause="allocator",
        rank=memory.rank,
        seconds=0.0,
        share=0.0,
        evidence=f"{seen}{unused}; peak {format_bytes(memory.peak_bytes)}",
        fix=fixes()["allocator"],
    )


QUEUED_CAUSES: Final[Mapping[str, str]] = {"queue": "queueing", "prefill": "prefill", "decode": "decode"}


def request_findings(times: RequestTimes) -> Iterator[StepFinding]:
    """Which phase makes the slowest requests slow."""
    longest = max(times.p99_s, key=lambda phase: times.p99_s[phase])
    cause, value = QUEUED_CAUSES[longest], times.p99_s[longest]
    others = ", ".join(
        f"{QUEUED_CAUSES[phase]} {format_seconds(other)}"
        for phase, other in times.p99_s.items()
        if phase != longest
    )
    evidence = f"99 of 100 of {times.requests:,} requests take {format_seconds(times.whole_p99_s)} or less: "
    yield StepFinding(
        cause=cause,
        seconds=value,
        share=min(1.0, value / times.whole_p99_s) if times.whole_p99_s else 0.0,
        evidence=f"{evidence}{cause} {format_seconds(value)}, {others}".rstrip(", "),
        fix=fixes()[cause],
    )
