"""Does it fit, and which stage is fullest? Stacked bars per stage against the GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.figures.style import MEMORY_COLOURS, VERMILION, figure
from costmodel.estimate import Estimate
from costmodel.memory.fit import fit_text
from costmodel.memory.stage import MemoryBreakdown
from topology.base.units import GIB, format_bytes, three_digits

if TYPE_CHECKING:
    import plotly.graph_objects as go

_NARROW_STAGES = 24
BAR_WIDTH = 0.6


def memory_bars(
    stages: Sequence[MemoryBreakdown],
    capacity_bytes: float,
    layers: Sequence[str] = (),
    band_bytes: tuple[float, float] | None = None,
    chance: float | None = None,
) -> go.Figure:
    """Stack the parts of every stage's memory in GiB; the line is what a GPU has, the whisker the error band.

    Args:
        stages: One breakdown per pipeline rank.
        capacity_bytes: Memory of a GPU.
        layers: Text per rank that says which layers it holds.
        band_bytes: Ends of the 80 % band of the fullest stage.
        chance: Chance of OOM; without it nothing is said of whether the layout fits.
    """
    import plotly.graph_objects as go

    totals = [stage.total_bytes for stage in stages]
    fullest = max(range(len(stages)), key=totals.__getitem__)
    top_bytes = max((totals[fullest], *(band_bytes or ())))
    names, at = [f"stage {number}" for number in range(len(stages))], capacity_bytes / GIB
    picture = figure(
        _reading(fullest, totals[fullest], capacity_bytes, band_bytes, chance),
        barmode="stack",
        xaxis={
            "title": "pipeline stage",
            "type": "category",
            "tickvals": names,
            "ticktext": _ticks(len(stages)),
        },
        legend={"y": 1.08},
        yaxis={"title": "GiB on one GPU", "range": [0, 1.08 * max(top_bytes, capacity_bytes) / GIB]},
        shapes=[
            {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "y0": at, "y1": at,
             "line": {"color": VERMILION, "width": 2, "dash": "dash"}}
        ],
        annotations=[
            {"text": f"GPU memory {format_bytes(capacity_bytes)}", "xref": "x domain", "x": 1, "y": at,
             "xanchor": "right", "yanchor": "bottom", "showarrow": False}
        ],
    )  # fmt: skip
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
    if band_bytes is not None:
        picture.add_trace(_whisker(names[fullest], totals[fullest], band_bytes))
    return picture


def estimate_bars(estimate: Estimate, capacity_bytes: float, layers: Sequence[str] = ()) -> go.Figure:
    """The bars of an estimate, with the band of its peak and whether it fits."""
    band = (estimate.memory_lower_bytes, estimate.memory_upper_bytes)
    return memory_bars(estimate.memory_by_stage, capacity_bytes, layers, band, estimate.out_of_memory_chance)


def overflow_bars(
    stages: Sequence[MemoryBreakdown], capacity_bytes: float, budget_bytes: float, layout: str, chance: float
) -> go.Figure:
    """The bars of a layout that does not fit, each with what it has too much.

    Args:
        stages: One breakdown per pipeline rank of the layout that needs least.
        capacity_bytes: Memory of a GPU.
        budget_bytes: What of it may be used.
        layout: That layout in words.
        chance: Of OOM of its fullest stage.
    """
    import plotly.graph_objects as go

    picture = memory_bars(stages, capacity_bytes)
    picture.add_trace(
        go.Scatter(
            x=[None], y=[None], mode="lines", line={"color": VERMILION, "width": 2, "dash": "dash"},
            name=picture.layout.annotations[0].text, text=[""],
        )
    )  # fmt: skip
    picture.layout.annotations = ()  # which would lie on the bars
    totals = [stage.total_bytes for stage in stages]
    over = [max(0.0, total - budget_bytes) for total in totals]
    fullest = max(range(len(stages)), key=totals.__getitem__)
    few = len(stages) <= _NARROW_STAGES // 2
    picture.add_trace(
        go.Scatter(
            x=[f"stage {number}" for number in range(len(stages))], y=[total / GIB for total in totals],
            mode="text", text=[f"+{three_digits(much / GIB)}" if much and few else "" for much in over],
            textposition="top center", hoverinfo="skip", showlegend=False,
        )
    )  # fmt: skip
    does = sum(1 for much in over if much)
    reading = (
        f"The layout that needs least ({layout}) overflows on {does} of {len(stages)} stages: stage "
        f"{fullest} needs {format_bytes(totals[fullest])}, {format_bytes(over[fullest])} more than the "
        f"{format_bytes(budget_bytes)} that may be used of a GPU, "
        f"{three_digits(totals[fullest] / budget_bytes)} times as much: it {fit_text(chance)}."
    )
    top = 1.15 * max(*totals, capacity_bytes) / GIB
    return picture.update_layout(meta={"alt": reading}, yaxis_range=[0, top])


def _reading(
    fullest: int,
    total_bytes: float,
    capacity_bytes: float,
    band_bytes: tuple[float, float] | None,
    chance: float | None,
) -> str:
    """Say which stage is fullest, whether it fits, and the band where there is one."""
    fill = f"Stage {fullest} is fullest with {format_bytes(total_bytes)} of {format_bytes(capacity_bytes)}"
    fit = "" if chance is None else f": {fit_text(chance)}"
    band = "" if band_bytes is None else "; the 80 % band is {} to {}".format(*map(format_bytes, band_bytes))
    return f"{fill}{fit}{band}."


def _whisker(stage: str, total_bytes: float, band_bytes: tuple[float, float]) -> go.Scatter:
    """The error band of the fullest stage, at the top of its bar."""
    import plotly.graph_objects as go

    low, high = band_bytes
    lengths = {"array": [(high - total_bytes) / GIB], "arrayminus": [(total_bytes - low) / GIB]}
    bar = {"type": "data", "symmetric": False, "color": "#666666", "thickness": 2, "width": 8, **lengths}
    hover = f"80 % band {format_bytes(low)} to {format_bytes(high)}<extra></extra>"
    return go.Scatter(
        x=[stage], y=[total_bytes / GIB], mode="markers", error_y=bar, name="80 % band",
        marker={"size": 1, "color": "#666666"}, hovertemplate=hover, showlegend=False,
    )  # fmt: skip


def _ticks(count: int) -> list[str]:
    """Number the stages; every fourth only when there are many."""
    step = 1 if count <= _NARROW_STAGES else 4
    return [str(number) if number % step == 0 else "" for number in range(count)]
