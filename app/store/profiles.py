"""Traces of torch.profiler as lanes: what one rank computed and communicated in a step.

The JSON object form of the Trace Event Format: complete events (`ph` X), times in microseconds. Kernels are
those of the device where there are any; on a CPU they are operators, and what is inside another counts once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from planner.analysis.lanes import Slice
from topology.base.decode import json_value
from topology.base.errors import InputError
from topology.base.files import read_text
from topology.base.units import MIB, US

MOST_BYTES = 64 * MIB
MOST_SLICES = 1500
"""Of a lane; closer ones are drawn as one."""
TRACE = re.compile(r"trace-rank(\d{1,6})\.json")
COLLECTIVES: Mapping[str, re.Pattern[str]] = {
    "all-reduce": re.compile(r"all_?reduce", re.IGNORECASE),
    "all-gather": re.compile(r"all_?gather", re.IGNORECASE),
    "reduce-scatter": re.compile(r"reduce_?scatter", re.IGNORECASE),
    "all-to-all": re.compile(r"all_?to_?all", re.IGNORECASE),
    "send, receive": re.compile(r"send|recv", re.IGNORECASE),
    "broadcast": re.compile(r"broadcast", re.IGNORECASE),
}
_COMMUNICATES = re.compile(r"nccl|rccl|gloo:|c10d::", re.IGNORECASE)
_DEVICE = {"kernel": "compute", "gpu_memcpy": "copies", "gpu_memset": "copies"}


def traces_in(folder: Path) -> dict[int, Path]:
    """Traces of a run's folder, by rank."""
    named = ((TRACE.fullmatch(path.name), path) for path in sorted(folder.glob("trace-rank*.json")))
    return {int(match.group(1)): path for match, path in named if match and path.is_file()}


def read_lanes(path: Path) -> tuple[Slice, ...]:
    """The lanes of a trace.

    Raises:
        InputError: It is too large, or no trace.
    """
    try:
        document: Any = json_value(read_text(path, int(MOST_BYTES)))
    except (ValueError, RecursionError) as error:
        fix = "the file may be cut off: profile the step anew"
        raise InputError(f"{path.name} is not valid JSON", str(error), fix) from None
    entries = document.get("traceEvents") if isinstance(document, Mapping) else document
    if not isinstance(entries, list):
        cause, fix = "it has no traceEvents", "name what torch.profiler's export_chrome_trace wrote"
        raise InputError(f"{path.name} is no trace", cause, fix)
    return lanes_from(entries, path.name)


def lanes_from(entries: Iterable[Any], name: str = "the trace") -> tuple[Slice, ...]:
    """Slices of events; those of a lane that touch are one.

    >>> lanes_from([{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0.0, "dur": 2.0}])[0].end_s
    2e-06
    """
    lanes: dict[str, list[tuple[float, float]]] = defaultdict(list)
    whole = [entry for entry in entries if _is_complete(entry)]
    on_device = any(entry.get("cat") in _DEVICE for entry in whole)
    for entry in whole:
        lane = _lane(entry, on_device=on_device)
        if lane is not None:
            lanes[lane].append((float(entry["ts"]) * US, float(entry["ts"] + entry["dur"]) * US))
    if not lanes:
        raise InputError(f"{name} shows nothing", "no event of it computes or communicates", "profile a step")
    start_s = min(start for spans in lanes.values() for start, _ in spans)
    end_s = max(end for spans in lanes.values() for _, end in spans)
    return tuple(
        Slice(lane=lane, start_s=first - start_s, end_s=last - start_s, what="measured", gaps_s=gaps)
        for lane, spans in lanes.items()
        for first, last, gaps in _joined(spans, (end_s - start_s) / MOST_SLICES)
    )


def _is_complete(entry: Any) -> bool:
    """Whether an event has a start and a length that are numbers."""
    return (
        isinstance(entry, Mapping)
        and entry.get("ph") == "X"
        and all(isinstance(entry.get(key), int | float) and abs(entry[key]) < 1e18 for key in ("ts", "dur"))
        and entry["dur"] >= 0
    )


def _lane(entry: Mapping[str, Any], *, on_device: bool) -> str | None:
    """The lane of an event; None where it is no work of a rank."""
    kind, name = str(entry.get("cat", "")), str(entry.get("name", ""))
    if on_device and kind not in _DEVICE:
        return None
    if _COMMUNICATES.search(name):
        return next((lane for lane, word in COLLECTIVES.items() if word.search(name)), "other collectives")
    if on_device:
        return _DEVICE[kind]
    return "compute" if kind == "cpu_op" else None


def _joined(spans: Iterable[tuple[float, float]], close_s: float) -> list[tuple[float, float, float]]:
    """Spans in order with the gaps in them: those that overlap or are close are one."""
    joined: list[tuple[float, float, float]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1] + close_s:
            first, last, gaps = joined[-1]
            joined[-1] = (first, max(last, end), gaps + max(0.0, start - last))
        else:
            joined.append((start, end, 0.0))
    return joined
