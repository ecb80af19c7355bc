"""Why is there a bubble? The simulated schedule: a row per pipeline rank, a bar per microbatch and pass.

The same as a Chrome trace, which ui.perfetto.dev and chrome://tracing open: the JSON object form of the Trace
Event Format, complete events (`ph` X), times in microseconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from app.figures.style import BLUE, GREEN, ORANGE, figure
from app.quantities import format_percent
from topology.base.units import US, format_seconds, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

KIND_COLOURS: Mapping[str, str] = {"F": BLUE, "B": ORANGE, "W": GREEN}
KIND_NAMES: Mapping[str, str] = {"F": "forward", "B": "backward", "W": "weight gradient"}
MOST_RANKS, MOST_EVENTS = 16, 4000
_LABELLED_SHARE = 1 / 70
"""Bars narrower than this share of the picture have no room for a number."""
STRETCHES = ("all that is drawn", "start", "middle", "end")
"""Of a schedule: all that is drawn of it, or as much as can be read."""
_SMALLEST_TEXT = 9
"""Pixels; on a narrow screen, numbers that would be smaller are left out."""


class DrawnPass(Protocol):
    """One pass of one microbatch through one stage."""

    @property
    def rank(self) -> int:
        """Pipeline rank that runs it."""

    @property
    def stage(self) -> int:
        """Virtual stage, in model order."""

    @property
    def microbatch(self) -> int:
        """Microbatch, first is 0."""

    @property
    def kind(self) -> str:
        """F forward, B backward, W weight gradient."""

    @property
    def start_s(self) -> float:
        """When it starts."""

    @property
    def end_s(self) -> float:
        """When it ends."""


def schedule_gantt(
    events: Sequence[DrawnPass],
    num_microbatches: int | None = None,
    window_s: tuple[float, float] | None = None,
) -> go.Figure:
    """Draw events as bars on the rows of their ranks.

    At most `MOST_RANKS` ranks (first and last ones) and `MOST_EVENTS` events (the earliest) are drawn.

    Args:
        events: Passes of the simulated microbatches.
        num_microbatches: Microbatches of the whole step, when only its first ones were simulated.
        window_s: Stretch of time that is drawn; all of it by default.
    """
    low_s, high_s = window_s or (0.0, math.inf)
    shown = shown_events([event for event in events if event.end_s > low_s and event.start_s < high_s])
    ranks = sorted({event.rank for event in shown})
    end_s = min(high_s, max(event.end_s for event in shown))
    factor, unit = time_unit(end_s)
    reading = _reading(events, num_microbatches)
    if window_s is not None:
        reading += f" Drawn are {format_seconds(low_s)} to {format_seconds(end_s)}; numbers are microbatches."
    picture = figure(
        reading, height=120 + 26 * len(ranks), barmode="overlay", bargap=0.15,
        uniformtext={"mode": "hide", "minsize": _SMALLEST_TEXT},
        xaxis={"title": f"time, {unit}", "range": [low_s / factor, end_s / factor]},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False,
               "categoryorder": "array", "categoryarray": [f"rank {rank}" for rank in ranks]},
    )  # fmt: skip
    for kind in KIND_COLOURS:
        chosen = [event for event in shown if event.kind == kind]
        if chosen:
            narrowest_s = min(event.end_s - event.start_s for event in chosen)
            wide = narrowest_s >= _LABELLED_SHARE * (end_s - low_s)
            picture.add_trace(_bars(chosen, kind, factor, (low_s, end_s), labelled=wide))
    return picture


def stretch(events: Sequence[DrawnPass], which: str) -> tuple[float, float] | None:
    """A stretch of the schedule in which every pass is wide enough for its number; None where all of it is.

    Args:
        events: Passes.
        which: One of `STRETCHES`.
    """
    end_s = max(event.end_s for event in events)
    length_s = min(event.end_s - event.start_s for event in events) / _LABELLED_SHARE
    if which == STRETCHES[0] or length_s >= end_s:
        return None
    start_s = {"start": 0.0, "middle": (end_s - length_s) / 2, "end": end_s - length_s}[which]
    return start_s, start_s + length_s


def shown_events(events: Sequence[DrawnPass]) -> list[DrawnPass]:
    """Events that are drawn: of the first and last ranks, the earliest ones."""
    ranks = sorted({event.rank for event in events})
    if len(ranks) > MOST_RANKS:
        ranks = ranks[: MOST_RANKS // 2] + ranks[-MOST_RANKS // 2 :]
    kept = [event for event in events if event.rank in set(ranks)]
    return sorted(kept, key=lambda event: (event.start_s, event.rank))[:MOST_EVENTS]


def busy_share(events: Sequence[DrawnPass]) -> float:
    """Share of rank-seconds until the last event ends in which a rank computes."""
    ranks = {event.rank for event in events}
    busy_s = sum(event.end_s - event.start_s for event in events)
    return busy_s / (len(ranks) * max(event.end_s for event in events))


def _bars(
    events: Sequence[DrawnPass], kind: str, factor: float, window_s: tuple[float, float], *, labelled: bool
) -> go.Bar:
    """All events of a kind as horizontal bars, cut off where the window ends; what is cut has no number."""
    import plotly.graph_objects as go

    hover = [
        f"{KIND_NAMES[kind]} of microbatch {event.microbatch}, stage {event.stage}<br>"
        f"{format_seconds(event.start_s)} to {format_seconds(event.end_s)}"
        for event in events
    ]
    low_s, high_s = window_s
    whole = {event for event in events if low_s <= event.start_s and event.end_s <= high_s}
    return go.Bar(
        name=KIND_NAMES[kind], orientation="h", y=[f"rank {event.rank}" for event in events],
        x=[(min(event.end_s, high_s) - max(event.start_s, low_s)) / factor for event in events],
        base=[max(event.start_s, low_s) / factor for event in events],
        marker={"color": KIND_COLOURS[kind],
                "line": {"width": 0.5 if labelled else 0, "color": "rgba(255,255,255,0.7)"}},
        text=[str(event.microbatch) if event in whole else "" for event in events] if labelled else None,
        textposition="inside",
        insidetextanchor="middle", textangle=0, textfont_size=11, constraintext="inside",
        hovertext=hover, hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip


def _reading(events: Sequence[DrawnPass], num_microbatches: int | None) -> str:
    """Say how much of the schedule is waiting."""
    idle = 1 - busy_share(events)
    end_s = max(event.end_s for event in events)
    drawn = 1 + max(event.microbatch for event in events)
    waiting = format_percent(max(0.0, idle))
    truncation = _truncation(events, shown_events(events))
    if num_microbatches is None or num_microbatches <= drawn:
        took = f"{drawn} microbatches take {format_seconds(end_s)}"
        return f"{took}; ranks wait {waiting} of that time.{truncation}"
    return (
        f"The first and the last of {num_microbatches:,} microbatches, {drawn} in all: the other "
        f"{num_microbatches - drawn:,} run as those in the middle. A rank waits "
        f"{format_seconds(max(0.0, idle) * end_s)} in the mean, {waiting} of what is drawn.{truncation}"
    )


def _truncation(events: Sequence[DrawnPass], shown: Sequence[DrawnPass]) -> str:
    """Say what of the schedule is not drawn."""
    ranks = len({event.rank for event in events})
    outer = f" Drawn are the outer {MOST_RANKS} of {ranks} ranks." if ranks > MOST_RANKS else ""
    if len(shown) < MOST_EVENTS:
        return outer
    return f"{outer} Drawn are the first {format_seconds(max(event.end_s for event in shown))}."


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
