"""SQLite exports of Nsight Systems: opened read-only, schema looked up first, tables alone and no views."""

from __future__ import annotations

import functools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from planner.traces.columns import CODES, EventColumns
from planner.traces.events import GPU_CATEGORIES, Trace
from planner.traces.windows import step_windows
from topology.base.errors import InputError, shortened
from topology.base.files import LONGEST_PATH, require_regular
from topology.base.units import MIB, NS

SQLITE_MAGIC = b"SQLite format 3\x00"
LONGEST_SECONDS = 10.0
"""Of all queries together: an export of five million events takes less."""
LATEST_NS = 2**62
STEPS_BETWEEN_LOOKS = 20_000
"""Of SQLite's virtual machine, between two looks at the clock."""
TEXT_BYTES = MIB
COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
"""CUPTI's `CUpti_ActivityMemcpyKind`."""
TABLES = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "kernel", "demangledName"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "memcpy", ""),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "memset", ""),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "runtime", "nameId"),
    ("NVTX_EVENTS", "annotation", "textId"),
)
GPU_COLUMNS = ("start", "end", "streamId", "correlationId", "globalPid", "deviceId")
PROCESS_MASK = ~0xFFFFFF
"""Of a serialised id: the lowest 24 bits are the thread."""


def read_nsys(path: str | Path) -> tuple[Trace, ...]:
    """What one export holds, a trace for each GPU of each process. Raises InputError for what is none."""
    name = shortened(str(path), LONGEST_PATH)
    file = require_regular(path)
    until = time.monotonic() + LONGEST_SECONDS
    try:
        address = f"file:{quote(str(file.resolve()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as base:
            base.text_factory = lambda raw: raw.decode("utf-8", "replace")
            base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, TEXT_BYTES)
            base.execute("pragma trusted_schema = off")
            base.set_authorizer(_reads_alone)
            base.set_progress_handler(lambda: time.monotonic() > until, STEPS_BETWEEN_LOOKS)
            return _traces(base, name)
    except (sqlite3.Error, OverflowError, TypeError, ValueError) as error:
        fix = "export it once more: nsys export --type sqlite"
        raise InputError(f"{name} is no export of Nsight Systems", str(error)[:200], fix) from None


def _reads_alone(action: int, *_: Any) -> int:
    """Allow to select and to read, nothing else: no function, no attached file, no setting."""
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY


def _columns(base: sqlite3.Connection) -> dict[str, set[str]]:
    """EventColumns of the tables that are there; what is a view or virtual is none."""
    rows = base.execute("select name, sql from sqlite_master where type = 'table'").fetchall()
    plain = [table for table, sql in rows if sql and "virtual" not in sql[:40].lower()]
    wanted = {table for table, _, _ in TABLES} | {
        "StringIds",
        "TARGET_INFO_GPU",
        "TARGET_INFO_SESSION_START_TIME",
    }
    return {
        table: {each[0] for each in base.execute(f'select * from "{table}" limit 0').description}  # noqa: S608
        for table in plain
        if table in wanted
    }


def _rows(base: sqlite3.Connection, schema: dict[str, set[str]], table: str, *names: str) -> Iterator[Any]:
    """Rows of the columns that are there; None for one that is not."""
    chosen = ", ".join(f'"{name}"' if name in schema[table] else "null" for name in names)
    return iter(base.execute(f'select {chosen} from "{table}"'))  # noqa: S608 - names of `TABLES`


def _traces(base: sqlite3.Connection, name: str) -> tuple[Trace, ...]:
    schema = _columns(base)
    if "StringIds" not in schema or not any(table in schema for table, _, _ in TABLES[:1]):
        cause = f"tables {', '.join(sorted(schema)) or 'of another kind'}; StringIds and kernels are needed"
        raise InputError(
            f"{name} is no export of Nsight Systems", cause, "nsys export --type sqlite REPORT.nsys-rep"
        )
    texts = {int(key): str(value) for key, value in _rows(base, schema, "StringIds", "id", "value")}
    gpus: dict[tuple[int, int], EventColumns] = {}
    host: dict[int, list[tuple[Any, ...]]] = {}
    origin = 0
    if "TARGET_INFO_SESSION_START_TIME" in schema:
        for (epoch,) in _rows(base, schema, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
            origin = int(epoch or 0)
    for table, kind, named in TABLES:
        if table not in schema:
            continue
        if kind in GPU_CATEGORIES:
            names = (*GPU_COLUMNS, named, "bytes", "copyKind")
            rows = _rows(base, schema, table, *names)
            for start, end, stream, linked, process, device, text, size, copied in rows:
                if not _lasts(start, end):
                    continue
                columns = gpus.setdefault((int(process or 0), int(device or 0)), EventColumns(name))
                words = texts.get(text, "kernel") if named else COPIES.get(copied, kind.capitalize())
                detail = columns.detail_of(f"{size}", functools.partial(_sized, size)) if size else -1
                columns.add(
                    words, CODES[kind], start, end - start, int(stream or 0), -1, int(linked or -1), detail
                )
        else:
            rows = _rows(base, schema, table, "start", "end", "globalTid", "correlationId", named, "text")
            for start, end, thread, linked, text, written in rows:
                if not _lasts(start, end):
                    continue
                words = str(written) if written else texts.get(text, kind)
                process = int(thread or 0) & PROCESS_MASK
                host.setdefault(process, []).append((words, CODES[kind], start, end - start, thread, linked))
    if not gpus:
        cause = "its tables hold no kernel, copy or memset that lasts"
        raise InputError(f"{name} has nothing of a GPU", cause, "nsys profile --trace cuda,nvtx")
    devices = (
        [str(row[0]) for row in _rows(base, schema, "TARGET_INFO_GPU", "name")]
        if "TARGET_INFO_GPU" in schema
        else []
    )
    return tuple(
        _trace(name, gpus[key], host.get(key[0], []), rank, len(gpus), (devices or [""])[0], origin)
        for rank, key in enumerate(sorted(gpus))
    )


def _lasts(start: Any, end: Any) -> bool:
    """Whether two values of a table are a stretch of time, in whole nanoseconds."""
    return type(start) is int and type(end) is int and 0 <= start <= end < LATEST_NS


def _sized(size: Any) -> dict[str, Any]:
    return {"bytes": float(size)}


def _trace(
    name: str,
    columns: EventColumns,
    host: list[tuple[Any, ...]],
    rank: int,
    world: int,
    device: str,
    origin: int,
) -> Trace:
    """One GPU's events with those of the process that used it."""
    for words, kind, start, duration, thread, linked in host:
        columns.add(words, kind, start, duration, -1, int(thread or 0), int(linked or -1))
    events = columns.events(rank, NS)
    return Trace(
        source=name,
        format="nsys",
        rank=rank,
        world_size=world,
        device=device[:100],
        platform="cuda",
        gpu=True,
        events=events,
        windows=step_windows(events),
        origin_ns=origin,
    )
