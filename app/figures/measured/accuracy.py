"""Can I trust it? Predicted against measured step times, on the line when they agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from app.figures.style import GREY, SERIES, figure
from app.quantities import format_percent
from costmodel.accuracy.training import RunResult
from topology.base.units import format_seconds

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_COLOURS = 8


def predicted_against_measured(results: Sequence[RunResult], by: str = "source") -> go.Figure:
    """Draw one mark for each run that has both times; the grey lines are 10 % off.

    Args:
        results: Predicted runs.
        by: Column whose values are told apart by colour and shape.
    """
    import plotly.graph_objects as go

    timed = [result for result in results if result.error is not None]
    picture = figure(
        _reading(timed),
        height=460,
        xaxis={"title": "measured step time, s", "type": "log", "showgrid": True, "dtick": 1},
        yaxis={"title": "predicted step time, s", "type": "log", "dtick": 1},
    )
    if not timed:
        return picture
    ends = [min(_measured(r) for r in timed), max(_measured(r) for r in timed)]
    for factor, dash in ((1.0, "solid"), (0.9, "dot"), (1.1, "dot")):
        picture.add_trace(
            go.Scatter(
                x=ends,
                y=[factor * end for end in ends],
                mode="lines",
                showlegend=False,
                hoverinfo="skip",
                line={"color": GREY, "width": 1, "dash": dash},
            )
        )
    for number, group in enumerate(_largest_groups(timed, by)):
        mine = [r for r in timed if _group(r, by, timed) == group]
        picture.add_trace(
            go.Scatter(
                x=[_measured(r) for r in mine],
                y=[_predicted(r) for r in mine],
                mode="markers",
                name=group,
                marker={
                    "color": SERIES[number % len(SERIES)],
                    "symbol": number % 40,
                    "size": 7,
                    "opacity": 0.8,
                    "line": {"width": 0.5, "color": GREY},
                },
                hovertext=[_hover(r) for r in mine],
                hoverinfo="text",
            )
        )
    return picture


def _largest_groups(results: Sequence[RunResult], by: str) -> list[str]:
    """Names of the groups with most runs; the small ones are `others`."""
    counts: dict[str, int] = {}
    for result in results:
        name = result.group.get(by, "unnamed")
        counts[name] = counts.get(name, 0) + 1
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    few = ordered[:MOST_COLOURS]
    return few if len(ordered) <= MOST_COLOURS else [*few[:-1], "others"]


def _group(result: RunResult, by: str, results: Sequence[RunResult]) -> str:
    """Group a result is drawn in."""
    name = result.group.get(by, "unnamed")
    return name if name in _largest_groups(results, by) else "others"


def _measured(result: RunResult) -> float:
    """Measured seconds; only asked of timed results."""
    return result.measured_step_time_s or 0.0


def _predicted(result: RunResult) -> float:
    """Predicted seconds; only asked of timed results."""
    return result.predicted_step_time_s or 0.0


def _hover(result: RunResult) -> str:
    """What a mark says."""
    error = format_percent(result.error or 0.0, signed=True)
    times = f"{format_seconds(_measured(result))} measured, {format_seconds(_predicted(result))} predicted"
    return f"{result.name}<br>{times}<br>{error}"


def _reading(timed: Sequence[RunResult]) -> str:
    """Say how far off predictions are."""
    if not timed:
        return "No run has both a measured and a predicted step time."
    errors = np.abs([result.error or 0.0 for result in timed])
    return (
        f"Over {len(timed):,} timed runs the median error is {format_percent(float(np.median(errors)))}, "
        f"and nine of ten are within {format_percent(float(np.quantile(errors, 0.9)))}."
    )
