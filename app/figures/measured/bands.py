"""How sure is the step time? The 80 % band before and after somebody's own runs were taken into account."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.figures.style import BLUE, GREY, figure
from app.quantities import format_percent
from topology.base.units import format_seconds, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from costmodel.estimate import Estimate

WITHOUT, WITH = "without your runs", "with your runs"


def narrowed_band(without: Estimate, anchored: Estimate, runs: int) -> go.Figure:
    """Draw the step's 80 % band as the model alone has it, and as measured steps leave it.

    Args:
        without: The plan's estimate by the model alone.
        anchored: The same question with the level of measured steps.
        runs: How many steps were measured.
    """
    import plotly.graph_objects as go

    factor, unit = time_unit(max(without.upper_s, anchored.upper_s))
    picture = figure(
        _reading(without, anchored, runs),
        height=170,
        xaxis={"title": f"step, {unit}", "rangemode": "tozero", "showgrid": True},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
    )
    for name, estimate, colour, symbol in (
        (WITHOUT, without, GREY, "circle-open"),
        (WITH, anchored, BLUE, "circle"),
    ):
        picture.add_trace(
            go.Scatter(
                x=[estimate.step_time_s / factor], y=[name], mode="markers", showlegend=False,
                marker={"color": colour, "size": 11, "symbol": symbol, "line": {"width": 2, "color": colour}},
                error_x={"type": "data", "symmetric": False, "thickness": 3, "width": 9, "color": colour,
                         "array": [(estimate.upper_s - estimate.step_time_s) / factor],
                         "arrayminus": [(estimate.step_time_s - estimate.lower_s) / factor]},
                hovertext=[f"{format_seconds(estimate.lower_s)} to {format_seconds(estimate.upper_s)}"],
                hovertemplate="%{y}: %{hovertext}<extra></extra>",
            )
        )  # fmt: skip
    return picture


def band_widths(estimates: Sequence[Estimate]) -> list[float]:
    """Width of each band over its middle: what compares when the middle has moved."""
    return [(estimate.upper_s - estimate.lower_s) / estimate.step_time_s for estimate in estimates]


def _reading(without: Estimate, anchored: Estimate, runs: int) -> str:
    """Say how the band and its middle moved."""
    before, after = band_widths((without, anchored))
    steps = f"{runs:,} measured step{'s' if runs > 1 else ''}"
    moved = format_percent(anchored.step_time_s / without.step_time_s - 1, signed=True)
    return (
        f"With {steps} the 80 % band is {format_seconds(anchored.lower_s)} to "
        f"{format_seconds(anchored.upper_s)}, {format_percent(after)} of the step wide in place of "
        f"{format_percent(before)}; its middle moves by {moved}."
    )
