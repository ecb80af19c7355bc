"""When is memory full? What a GPU of each pipeline rank holds while the simulated schedule runs.

A pass forward keeps its activations until its last pass backward ends. All passes of a rank are taken as
equally large, so that the most it holds at once is its peak; weights, gradients, optimizer and buffers stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.figures.schedule.gantt import DrawnPass
from app.figures.style import SERIES, VERMILION, figure
from costmodel.memory.stage import MemoryBreakdown
from topology.base.units import GIB, format_bytes, format_seconds, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_RANKS = 6
"""Lines that can be told apart."""
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def memory_over_time(
    events: Sequence[DrawnPass], stages: Sequence[MemoryBreakdown], capacity_bytes: float
) -> go.Figure:
    """Draw the memory of ranks over the schedule, the fullest among them.

    Args:
        events: Passes of the simulated microbatches.
        stages: Peak memory of every pipeline rank.
        capacity_bytes: Memory of a GPU.
    """
    import plotly.graph_objects as go

    lines = {rank: held_over_time(events, rank, stages[rank]) for rank in drawn_ranks(stages)}
    end_s = max(event.end_s for event in events)
    factor, unit = time_unit(end_s)
    picture = figure(
        _reading(lines, stages, capacity_bytes),
        height=320,
        xaxis={"title": f"time, {unit}", "range": [0, end_s / factor]},
        yaxis={"title": "GiB on one GPU", "rangemode": "tozero"},
    )
    for number, (rank, line) in enumerate(lines.items()):
        picture.add_trace(
            go.Scatter(
                x=[at_s / factor for at_s, _ in line], y=[held / GIB for _, held in line], mode="lines",
                line={"shape": "hv", "width": 1.8, "color": SERIES[number], "dash": _DASHES[number]},
                name=f"rank {rank}", hovertemplate=f"rank {rank}: %{{y:.3g}} GiB<extra></extra>",
            )
        )  # fmt: skip
    picture.add_hline(
        y=capacity_bytes / GIB, line={"color": VERMILION, "width": 2, "dash": "dash"},
        annotation={"text": f"GPU memory {format_bytes(capacity_bytes)}", "xanchor": "right"},
    )  # fmt: skip
    return picture


def drawn_ranks(stages: Sequence[MemoryBreakdown]) -> list[int]:
    """The ranks that are drawn: the first, the last, the fullest, and some between."""
    last = len(stages) - 1
    if last < MOST_RANKS:
        return list(range(last + 1))
    fullest = max(range(last + 1), key=lambda rank: stages[rank].total_bytes)
    spread = [round(last * n / (MOST_RANKS - 2)) for n in range(MOST_RANKS - 1)]
    return sorted({*spread, fullest})


def held_over_time(
    events: Sequence[DrawnPass], rank: int, stage: MemoryBreakdown
) -> list[tuple[float, float]]:
    """Seconds and the bytes that a GPU of a rank holds from then on."""
    begins: dict[tuple[int, int], float] = {}
    ends: dict[tuple[int, int], float] = {}
    for event in events:
        if event.rank == rank:
            chunk = event.stage, event.microbatch
            if event.kind == "F":
                begins[chunk] = event.start_s
            ends[chunk] = max(ends.get(chunk, 0.0), event.end_s)
    changes = sorted([(at, 1) for at in begins.values()] + [(at, -1) for at in ends.values()])
    held, most, counts = 0, 0, [(0.0, 0)]
    for at, change in changes:  # what ends at a moment goes before what begins then
        held += change
        most = max(most, held)
        counts.append((at, held))
    lasting = stage.total_bytes - stage.activations_bytes
    return [(at, lasting + stage.activations_bytes * count / max(most, 1)) for at, count in counts]


def _reading(
    lines: dict[int, list[tuple[float, float]]], stages: Sequence[MemoryBreakdown], capacity_bytes: float
) -> str:
    """Say when the fullest rank is full, and how different it is from the emptiest."""
    fullest = max(lines, key=lambda rank: stages[rank].total_bytes)
    peak = stages[fullest].total_bytes
    at_s = next(at for at, held in lines[fullest] if held >= peak * (1 - 1e-9))
    least = min(stages, key=lambda stage: stage.total_bytes).total_bytes
    shown = f" Drawn are {len(lines)} of {len(stages)} ranks." if len(lines) < len(stages) else ""
    return (
        f"Rank {fullest} is fullest {format_seconds(at_s)} into the step, with {format_bytes(peak)} of "
        f"{format_bytes(capacity_bytes)}; the emptiest never holds more than {format_bytes(least)}.{shown}"
    )
