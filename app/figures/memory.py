"""Does it fit, and which stage is fullest? Stacked bars per stage against the GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.figures.style import MEMORY_COLOURS, VERMILION, figure
from costmodel.memory.stage import MemoryBreakdown
from topology.base.units import GIB, format_bytes, three_digits

if TYPE_CHECKING:
    import plotly.graph_objects as go

_NARROW_STAGES = 24
BAR_WIDTH = 0.6


def memory_bars(
    stages: Sequence[MemoryBreakdown], capacity_bytes: float, layers: Sequence[str] = ()
) -> go.Figure:
    """Stack the parts of every stage's memory in GiB; the line is what a GPU has.

    Args:
        stages: One breakdown per pipeline rank.
        capacity_bytes: Memory of a GPU.
        layers: Text per rank that says which layers it holds.
    """
    import plotly.graph_objects as go

    totals = [stage.total_bytes for stage in stages]
    fullest = max(range(len(stages)), key=totals.__getitem__)
    fits = "fits" if totals[fullest] <= capacity_bytes else "does not fit"
    fill = f"{format_bytes(totals[fullest])} of {format_bytes(capacity_bytes)}"
    alt = f"Stage {fullest} is fullest with {fill}: it {fits}."
    names = [f"stage {number}" for number in range(len(stages))]
    picture = figure(
        alt,
        barmode="stack",
        xaxis={
            "title": "pipeline stage",
            "type": "category",
            "tickvals": names,
            "ticktext": _ticks(len(stages)),
        },
        legend={"y": 1.08},
        yaxis={"title": "GiB on one GPU", "range": [0, 1.08 * max(*totals, capacity_bytes) / GIB]},
    )
    held = [f"<br>layers {text}" for text in layers] or [""] * len(stages)
    for part, colour in MEMORY_COLOURS.items():
        values = [getattr(stage, f"{part}_bytes") / GIB for stage in stages]
        if not any(values):
            continue
        hover = [f"{three_digits(value)} GiB{text}" for value, text in zip(values, held, strict=True)]
        picture.add_trace(
            go.Bar(name=part.replace("_", " "), x=names, y=values, marker_color=colour,
                   hovertext=hover, width=BAR_WIDTH,
                   hovertemplate="%{x} · %{fullData.name}<br>%{hovertext}<extra></extra>")
        )  # fmt: skip
    picture.add_hline(
        y=capacity_bytes / GIB, line={"color": VERMILION, "width": 2, "dash": "dash"},
        annotation={"text": f"GPU memory {format_bytes(capacity_bytes)}", "xanchor": "right"},
    )  # fmt: skip
    return picture


def _ticks(count: int) -> list[str]:
    """Number the stages; every fourth only when there are many."""
    step = 1 if count <= _NARROW_STAGES else 4
    return [str(number) if number % step == 0 else "" for number in range(count)]
