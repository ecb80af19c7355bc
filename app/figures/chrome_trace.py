"""A simulated schedule as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.

Format: the JSON object form of the Trace Event Format; complete events (`ph` X), times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from app.figures.gantt import KIND_NAMES, DrawnPass
from topology.base.units import US


def trace_json(events: Sequence[DrawnPass], title: str) -> str:
    """Give the trace of a schedule: one process, one track per pipeline rank."""
    ranks = sorted({event.rank for event in events})
    named: list[dict[str, Any]] = [{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": title}}]
    named += [
        {"ph": "M", "pid": 0, "tid": rank, "name": "thread_name", "args": {"name": f"pipeline rank {rank}"}}
        for rank in ranks
    ]
    drawn = [_complete(event) for event in sorted(events, key=lambda event: (event.start_s, event.rank))]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": named + drawn}, allow_nan=False)


def _complete(event: DrawnPass) -> dict[str, Any]:
    """One pass as a complete event."""
    return {
        "ph": "X",
        "pid": 0,
        "tid": event.rank,
        "name": f"{event.kind} {event.microbatch}",
        "cat": KIND_NAMES[event.kind],
        "ts": event.start_s / US,
        "dur": (event.end_s - event.start_s) / US,
        "args": {"microbatch": event.microbatch, "stage": event.stage},
    }
