"""Which level carries what? How busy every level of the fabric is by axis, on a scale of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.figures.cell_text import write_cells
from app.figures.style import figure
from app.quantities import format_percent
from planner.analysis.link_load import LevelLoad
from topology.base.units import format_bandwidth

if TYPE_CHECKING:
    import plotly.graph_objects as go

SCALE = ((0.0, "#F2EFE6"), (0.5, "#E69F00"), (1.0, "#9A3D00"))
"""From idle to the busiest, told apart in grey as well."""


def link_heat(loads: Sequence[LevelLoad]) -> go.Figure:
    """Draw the share of a step in which each level is busy, by axis, and together.

    Args:
        loads: Levels from the inside out, of one plan.
    """
    import plotly.graph_objects as go

    axes = list(dict.fromkeys(axis for load in loads for axis in load.busy))
    heads = [*axes, "all"]
    shares = [[*(load.busy.get(axis, 0.0) for axis in axes), load.utilisation] for load in loads]
    names = [f"{load.name}<br>{format_bandwidth(load.bytes_per_s)}" for load in loads]
    most = max((share for row in shares for share in row), default=0.0)
    picture = figure(
        _reading(loads),
        height=110 + 48 * len(loads),
        margin={"t": 12},
        xaxis={"type": "category", "title": "axis", "side": "bottom"},
        yaxis={"type": "category", "showgrid": False},
    )
    texts = [[format_percent(share) for share in row] for row in shares]
    percents, value_range = [[100 * share for share in row] for row in shares], (0.0, max(100 * most, 1.0))
    picture.add_trace(
        go.Heatmap(
            x=heads, y=names, z=percents, xgap=3, ygap=3, zmin=value_range[0], zmax=value_range[1],
            colorscale=[list(stop) for stop in SCALE], text=texts,
            colorbar={"title": {"text": "busy, %"}, "thickness": 12},
            hovertemplate="%{y}, %{x}: %{text} of the step<extra></extra>",
        )
    )  # fmt: skip
    write_cells(picture, texts, percents, SCALE, value_range)
    return picture


def _reading(loads: Sequence[LevelLoad]) -> str:
    """Say which level is busiest, with which axis, and what is idle."""
    busiest = max(loads, key=lambda load: load.utilisation)
    if not busiest.utilisation:
        return "No level of the fabric carries traffic in this plan."
    axis, share = max(busiest.busy.items(), key=lambda entry: entry[1])
    idle = [load.name for load in loads if not load.utilisation]
    words = f" Nothing crosses {', '.join(idle)}." if idle else ""
    return (
        f"A GPU's share of the {busiest.name} links is busy for {format_percent(busiest.utilisation)} of "
        f"the step, {format_percent(share)} with {axis}.{words}"
    )
