"""Traces of the PyTorch profiler (Kineto): Chrome JSON, plain or packed, of NVIDIA, ROCm and CPU.

Left out are GPU events whose launch is not recorded: the recorder was started while they ran, so that what
they wait for is not known. Where no launch is recorded at all, nothing is left out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.traces.columns import CODES, LONGEST_SECONDS, EventColumns
from planner.traces.events import GPU_CATEGORIES, Events, ProcessGroup, Trace
from planner.traces.json_stream import Place, walk_json
from planner.traces.windows import step_windows
from topology.base.errors import InputError, shortened
from topology.base.files import LONGEST_PATH
from topology.base.units import NS, US

SPREAD: frozenset[Place] = frozenset({(), ("traceEvents",)})
KINDS: Mapping[str, int] = {
    **dict.fromkeys(("kernel", "Kernel"), CODES["kernel"]),
    **dict.fromkeys(("gpu_memcpy", "Memcpy", "memcpy"), CODES["memcpy"]),
    **dict.fromkeys(("gpu_memset", "Memset", "memset"), CODES["memset"]),
    **dict.fromkeys(("cuda_runtime", "hip_runtime", "Runtime", "runtime"), CODES["runtime"]),
    **dict.fromkeys(("cuda_driver", "hip_driver"), CODES["driver"]),
    **dict.fromkeys(("cpu_op", "Operator", "operator"), CODES["operation"]),
    "user_annotation": CODES["annotation"],
    "gpu_user_annotation": CODES["gpu_annotation"],
    "cuda_sync": CODES["synchronisation"],
    "python_function": CODES["python"],
    "overhead": CODES["overhead"],
}
"""Kineto's `cat`, of torch 1.8 to 2.13."""
MESSAGE_KEYS: Mapping[str, str] = {
    "Collective name": "collective",
    "In msg nelems": "elements_in",
    "Out msg nelems": "elements_out",
    "Group size": "group_size",
    "dtype": "dtype",
    "Process Group Name": "group",
    "Process Group Description": "description",
    "Process Group Ranks": "ranks",
    "Src Rank": "source_rank",
    "Dst Rank": "target_rank",
}
"""What a kernel of a collective says of its message, and what we call it."""
SHAPED = re.compile(
    r"^(?:gloo|nccl|mpi|xccl):|^c10d::|mm|matmul|linear|attention|flash|conv|gemm|moe|expert|^aten::embedding$",
    re.IGNORECASE,
)
"""Operations whose shapes are kept: they say how large a message, a layer or a model is."""
LONGEST = LONGEST_SECONDS / US
"""Microseconds."""
LATEST = 2.0**62 * NS / US
"""Microseconds of a clock whose nanoseconds fit 63 bits."""
MOST_GROUPS, MOST_RANKS = 100_000, 10_000_000
LARGEST = 2.0**63
"""Of a size or a rank that somebody wrote."""
_RANK = re.compile(r"rank[-_ ]?(\d{1,7})", re.IGNORECASE)


def read_kineto(path: str | Path) -> Trace:
    """What one rank recorded. Raises InputError for what is no such file, or larger than one can be."""
    name = shortened(str(path), LONGEST_PATH)
    columns, beside = EventColumns(name), dict[str, Any]()
    first: float | None = None
    skipped = 0
    for place, value in walk_json(path, SPREAD):
        if place[-1:] != ("*",):
            beside[place[0] if place else ""] = value
            continue
        if type(value) is not dict or value.get("ph") != "X":
            continue
        try:
            kind = KINDS.get(value.get("cat", ""))
            if kind is None:
                continue
            start, duration = float(value["ts"]), float(value.get("dur", 0.0))
            if not (0.0 <= duration < LONGEST and abs(start) < LATEST):
                skipped += 1
                continue
            first = start if first is None else first
            if abs(start - first) >= LONGEST:
                skipped += 1
                continue
            _add(columns, value, kind, start - first, duration)
        except (KeyError, TypeError, ValueError, OverflowError):
            skipped += 1
    if not len(columns):
        cause = f"{skipped:,} of its events have no time" if skipped else "it has no events with a duration"
        fix = "name a Kineto JSON (.json or .json.gz)"
        raise InputError(f"{name} is no trace of the PyTorch profiler", cause, fix)
    return _trace(name, columns, beside, first or 0.0, skipped)


def _add(columns: EventColumns, value: dict[str, Any], kind: int, start: float, duration: float) -> None:
    """One row; its arguments are kept where they say something that is used."""
    args = value.get("args")
    if type(args) is not dict:
        args = {}
    name = str(value["name"])
    detail = -1
    thread = stream = -1
    correlation = args.get("correlation", -1)
    if type(correlation) is not int:
        correlation = int(correlation)
    if kind <= 2:
        stream = int(args.get("stream", value.get("tid", 0)))
        if "Collective name" in args:
            detail = _message(columns, args)
        elif "bytes" in args:
            size = float(args["bytes"])
            detail = columns.detail_of(f"{size}", lambda: {"bytes": size})
    else:
        given = value.get("tid", -1)
        thread = given if type(given) is int else int(given) if str(given).lstrip("-").isdigit() else -1
        if "Input Dims" in args and _is_shaped(name):
            shapes, types = args["Input Dims"], args.get("Input type", ())
            detail = columns.detail_of(
                f"{shapes}{types}", lambda: {"shapes": _plain(shapes), "types": _plain(types)}
            )
        elif "Collective name" in args:
            detail = _message(columns, args)
    numbered = kind == CODES["operation"] and _count(args.get("Sequence number"), -1) >= 0
    forward = numbered and not args.get("Fwd thread id")
    columns.add(name, kind, start, duration, stream, thread, correlation, detail, forward=forward)


def _message(columns: EventColumns, args: dict[str, Any]) -> int:
    """Place of what a collective says of its message."""
    given = {ours: args[key] for key, ours in MESSAGE_KEYS.items() if key in args}

    def kept() -> dict[str, Any]:
        return {key: _ranks(value) if key == "ranks" else _plain(value) for key, value in given.items()}

    return columns.detail_of(f"{given}", kept)


@functools.lru_cache(maxsize=100_000)
def _is_shaped(name: str) -> bool:
    return SHAPED.search(name) is not None


def _plain(value: Any, depth: int = 4) -> Any:
    """A value whose lists are short, whose texts and numbers are bounded; lists as text are lists."""
    if isinstance(value, str):
        if value.startswith("[") and re.fullmatch(r"\[[\d,\s]*\]", value[:MOST_RANKS]):
            return tuple(int(part) for part in re.findall(r"\d{1,9}", value))
        return value[:200]
    if isinstance(value, list):
        return tuple(_plain(part, depth - 1) for part in value[:MOST_RANKS]) if depth else ()
    return value if isinstance(value, int | float) and abs(value) < LARGEST else None


def _ranks(value: Any) -> tuple[int, ...]:
    """Ranks of a group: the whole numbers of a list, or of a list written as text."""
    plain = _plain(value)
    return tuple(rank for rank in plain if type(rank) is int) if isinstance(plain, tuple) else ()


def _trace(name: str, columns: EventColumns, beside: dict[str, Any], first: float, skipped: int) -> Trace:
    """The record of what was gathered."""
    listed = beside.get("distributedInfo")
    info: Mapping[str, Any] = listed if isinstance(listed, dict) else {}
    named = _RANK.findall(Path(name).name)
    rank = _count(info.get("rank"), int(named[-1]) if named else 0)
    events = columns.events(rank, US)
    platform = _platform(events, beside)
    notes = [f"{skipped:,} events without a time were left out"] if skipped else []
    windows, kept = step_windows(events), _launched(events)
    left_out = np.column_stack((events.start_s, events.end_s))[~kept]
    if not kept.all():
        notes.append(f"{int((~kept).sum()):,} GPU events whose launch is not recorded were left out")
        events = events.chosen(kept)
    devices = beside.get("deviceProperties")
    device = devices[0] if isinstance(devices, list) and devices else None
    return Trace(
        source=name,
        format="kineto",
        rank=rank,
        world_size=max(1, _count(info.get("world_size"), 1), rank + 1 if info.get("world_size") else 1),
        device=str(device.get("name", ""))[:100] if isinstance(device, dict) else "",
        devices=min(len(devices), MOST_GROUPS) if isinstance(devices, list) else 0,
        platform=platform,
        gpu=bool(events.of(*GPU_CATEGORIES).any()),
        groups=tuple(_groups(info)),
        events=events,
        windows=windows,
        left_out=left_out,
        origin_ns=_count(beside.get("baseTimeNanoseconds"), 0) + int(first * US / NS),
        notes=tuple(notes),
    )


def _count(value: Any, otherwise: int) -> int:
    """A natural number that somebody wrote, within 64 bits."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if 0 <= number < 2**63 else otherwise


def _platform(events: Events, beside: Mapping[str, Any]) -> str:
    """Whose GPU it is: what versions say, else the names of launches."""
    if any(key.startswith(("roctracer", "hip_", "rocprofiler")) for key in beside):
        return "rocm"
    if not events.of(*GPU_CATEGORIES).any():
        return "cpu"
    runtime = {events.names[place][:3] for place in np.unique(events.name[events.of("runtime")])}
    return "rocm" if "hip" in runtime and "cud" not in runtime else "cuda"


def _launched(events: Events) -> NDArray[np.bool_]:
    """Which events stay: all of the host, and those of the GPU whose launch is there."""
    on_gpu = events.of(*GPU_CATEGORIES)
    launches = events.correlation[events.of("runtime", "driver")]
    if not len(launches):
        return np.ones(len(events), bool)
    return ~on_gpu | np.isin(events.correlation, launches)


def _groups(info: Mapping[str, Any]) -> Iterator[ProcessGroup]:
    """Process groups that the recorder lists: those that this rank is in."""
    listed = info.get("pg_config")
    for each in listed[:MOST_GROUPS] if isinstance(listed, list) else ():
        if not isinstance(each, dict):
            continue
        ranks = _ranks(each.get("ranks", ()))
        yield ProcessGroup(
            ranks=ranks,
            name=str(each.get("pg_name", ""))[:200],
            description=str(each.get("pg_desc", ""))[:200],
            size=_count(each.get("pg_size", each.get("group_size")), len(ranks)),
        )
