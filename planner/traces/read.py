"""Files of recorded steps, each read by what is in it; ranks that two files share are told apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from planner.traces.events import Trace
from planner.traces.json_stream import GZIP_MAGIC, unpacked
from planner.traces.kineto import read_kineto
from planner.traces.nsys import SQLITE_MAGIC, read_nsys
from planner.traces.rocprof import TOOL, read_rocprof
from topology.base.errors import InputError, shortened
from topology.base.files import LONGEST_PATH, open_regular

PLAN = re.compile(rb'\{\s*"request"')
"""How what `plan --json` writes begins."""
MOST_FILES = 4096
LOOKED_AT_BYTES = 4096
"""Of a JSON file's beginning: the keys that say who wrote it."""


def format_of(path: str | Path) -> str:
    """Which reader a file needs: kineto, nsys or rocprof; empty for none of them.

    Raises:
        InputError: It is no regular file, or is not there.
    """
    name = shortened(str(path), LONGEST_PATH)
    try:
        with open_regular(path) as stream:
            head = stream.read(len(SQLITE_MAGIC))
            if head == SQLITE_MAGIC:
                return "nsys"
            stream.seek(0)
            if not head.startswith(GZIP_MAGIC) and head.lstrip()[:1] not in (b"{", b"["):
                return ""
            text = next(unpacked(stream, name), b"")[:LOOKED_AT_BYTES].lstrip()
    except FileNotFoundError:
        raise InputError(f"{name} does not exist", "no such file", "check the path") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read", error.strerror or str(error), "check the path") from None
    if PLAN.match(text):
        return ""
    if TOOL.encode() in text:
        return "rocprof"
    return "kineto" if text[:1] in (b"{", b"[") else ""


def read_traces(paths: Sequence[str | Path]) -> tuple[Trace, ...]:
    """Traces of all files, by rank; a folder stands for the traces in it.

    Raises:
        InputError: A file is none that is read here, or there are none.
    """
    traces = list[Trace]()
    for path in _files(paths):
        kind = format_of(path)
        if kind == "nsys":
            traces += read_nsys(path)
        elif kind == "rocprof":
            traces += read_rocprof(path)
        elif kind == "kineto":
            traces.append(read_kineto(path))
        else:
            name = shortened(str(path), LONGEST_PATH)
            cause = "it is neither JSON, nor gzip, nor SQLite"
            raise InputError(
                f"{name} is no trace", cause, "name Kineto JSON, an nsys SQLite export or rocprofv3 JSON"
            )
    if len({trace.rank for trace in traces}) < len(traces):
        _require_one_job(traces)
        traces = [
            replace(trace, rank=rank, events=replace(trace.events, rank=rank))
            for rank, trace in enumerate(traces)
        ]
    return tuple(sorted(traces, key=lambda trace: trace.rank))


def _require_one_job(traces: Sequence[Trace]) -> None:
    """Refuse traces of which two say of themselves that they are one rank of a job of several.

    Files of a profiler that counts the GPUs of a host, and those without ranks, are told apart instead.

    Raises:
        InputError: They are of several jobs.
    """
    stated: dict[int, Trace] = {}
    for trace in traces:
        if trace.format == "kineto" and trace.world_size > 1:
            first = stated.setdefault(trace.rank, trace)
            if first is not trace:
                raise InputError(
                    "these traces are of several jobs",
                    f"{first.source} and {trace.source} are both rank {trace.rank}, "
                    f"of {first.world_size} and {trace.world_size} ranks",
                    "name the traces of one job",
                )


def _files(paths: Sequence[str | Path]) -> list[Path]:
    """Files that are named, and of folders those that a profiler writes."""
    files = list[Path]()
    for path in map(Path, paths):
        files += traces_in(path) if path.is_dir() else [path]
    if not files:
        raise InputError("no trace was named", "0 files", "plan diagnose rank0.json.gz rank1.json.gz")
    if len(files) > MOST_FILES:
        raise InputError(
            "too many traces", f"{len(files):,} files, and at most {MOST_FILES:,}", "name fewer ranks"
        )
    return files


def traces_in(folder: Path) -> list[Path]:
    """Traces in a folder: those that a profiler writes, a rank in their name."""
    inside = sorted(each for each in folder.iterdir() if each.name.endswith((".json", ".json.gz", ".sqlite")))
    return [each for each in inside if "rank" in each.name and format_of(each) and not _beside(each)]


def _beside(path: Path) -> bool:
    """Whether it lies beside traces without being one: flight records and walls."""
    return path.name.startswith(("fr_", "wall_"))
