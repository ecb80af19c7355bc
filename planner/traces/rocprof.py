"""JSON of rocprofv3 (rocprofiler-sdk): dispatches and copies of each agent, with names by kernel number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.traces.columns import CODES, EventColumns
from planner.traces.events import Trace
from planner.traces.json_stream import Place, walk_json
from planner.traces.windows import step_windows
from topology.base.errors import InputError, shortened
from topology.base.files import LONGEST_PATH
from topology.base.units import NS

TOOL = "rocprofiler-sdk-tool"
ITEM: Place = (TOOL, "*")
RECORDS: Place = (*ITEM, "buffer_records")
SPREAD: frozenset[Place] = frozenset({
    (), (TOOL,), ITEM, RECORDS,
    *((*RECORDS, kind) for kind in ("kernel_dispatch", "memory_copy", "hip_api", "marker_api")),
    (*ITEM, "kernel_symbols"),
})  # fmt: skip
KINDS: Mapping[str, str] = {
    "kernel_dispatch": "kernel",
    "memory_copy": "memcpy",
    "hip_api": "runtime",
    "marker_api": "annotation",
}


def read_rocprof(path: str | Path) -> tuple[Trace, ...]:
    """What one file holds, a trace for each agent that ran kernels. Raises InputError for what is none."""
    name = shortened(str(path), LONGEST_PATH)
    symbols, rows = dict[int, str](), list[tuple[int, int, int, int, int, int, int]]()
    first: int | None = None
    for place, value in walk_json(path, SPREAD):
        if place == (*ITEM, "kernel_symbols", "*") and isinstance(value, dict):
            text = value.get("formatted_kernel_name") or value.get("kernel_name") or ""
            symbols[_whole(value.get("kernel_id"))] = str(text)
        elif len(place) == 5 and place[:3] == RECORDS and isinstance(value, dict):
            kind = CODES[KINDS[place[3]]]
            start, end = _whole(value.get("start_timestamp")), _whole(value.get("end_timestamp"))
            if not 0 < start <= end:
                continue
            first = start if first is None else min(first, start)
            info = value.get("dispatch_info") if isinstance(value.get("dispatch_info"), dict) else {}
            agent = _handle((info or {}).get("agent_id", value.get("dst_agent_id")))
            linked = value.get("correlation_id")
            number = _whole(linked.get("internal")) if isinstance(linked, dict) else -1
            symbol = _whole((info or {}).get("kernel_id", value.get("operation")))
            rows.append((kind, start, end - start, agent, _handle(value.get("stream_id")), number, symbol))
    agents = sorted({agent for kind, _, _, agent, *_ in rows if kind == CODES["kernel"]})
    if not agents or first is None:
        cause = "it has no kernel dispatches"
        raise InputError(
            f"{name} is no trace of rocprofv3", cause, "rocprofv3 --kernel-trace --output-format json"
        )
    traces = []
    for rank, agent in enumerate(agents):
        columns = EventColumns(name)
        for kind, start, duration, of, stream, linked_to, symbol in rows:
            if kind == CODES["kernel"] and of == agent:
                columns.add(
                    symbols.get(symbol, f"kernel {symbol}"),
                    kind,
                    start - first,
                    duration,
                    stream,
                    -1,
                    linked_to,
                )
            elif kind == CODES["memcpy"] and of == agent:
                columns.add("Memcpy", kind, start - first, duration, stream, -1, linked_to)
        events = columns.events(rank, NS)
        traces.append(
            Trace(
                source=name,
                format="rocprof",
                rank=rank,
                world_size=len(agents),
                platform="rocm",
                gpu=True,
                events=events,
                windows=step_windows(events),
                origin_ns=first,
            )
        )
    return tuple(traces)


def _whole(value: Any) -> int:
    """A whole number within 62 bits; -1 for anything else."""
    return value if type(value) is int and abs(value) < 2**62 else -1


def _handle(value: Any) -> int:
    """The number in `{"handle": 5}`."""
    return _whole(value.get("handle")) if isinstance(value, dict) else -1
