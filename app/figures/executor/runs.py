"""Do runs go as predicted, one after the other? Measured over predicted, step and memory of every run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.figures.style import BLUE, GREY, ORANGE, figure
from app.quantities import format_ratio
from app.store.runs import RunSummary

if TYPE_CHECKING:
    import plotly.graph_objects as go


def runs_over_time(runs: Sequence[RunSummary]) -> go.Figure:
    """Draw how far the median step and the peak memory of each run are from its plan; not on other devices.

    Args:
        runs: In the order they were written.
    """
    import plotly.graph_objects as go

    judged = [run for run in runs if run.predicted_step_s or run.predicted_memory_bytes]
    names = [run.name for run in judged]
    picture = figure(
        _reading(runs, judged),
        height=320,
        xaxis={"type": "category", "title": "run, the latest last", "categoryarray": names},
        yaxis={"title": "measured over predicted", "rangemode": "tozero", "tickformat": ".2~f"},
    )
    for name, colour, symbol, ratios in (
        ("step time", BLUE, "circle", [_over(run.step_s, run.predicted_step_s) for run in judged]),
        ("peak memory", ORANGE, "diamond", [_over(r.memory_bytes, r.predicted_memory_bytes) for r in judged]),
    ):
        if not any(ratios):  # a name without a mark
            continue
        picture.add_trace(
            go.Scatter(
                x=names, y=ratios, mode="lines+markers", name=name, line={"color": colour, "width": 1.5},
                marker={"size": 9, "symbol": symbol},
                hovertemplate="%{x}: %{y:.3g}<extra>%{fullData.name}</extra>",
            )
        )  # fmt: skip
    picture.add_hline(y=1.0, line={"color": GREY, "dash": "dash"})
    return picture


def _over(measured: float, predicted: float | None) -> float | None:
    """Measured over predicted; None where nothing was predicted or nothing measured."""
    return measured / predicted if predicted and measured else None


def _reading(runs: Sequence[RunSummary], judged: Sequence[RunSummary]) -> str:
    """Say how far the latest run is off, and how many are not compared."""
    left = len(runs) - len(judged)
    rest = f" {left} of {len(runs)} are not compared: they did not run on what their plan is for."
    rest = rest if left else ""
    ratios = [(run.name, over) for run in judged if (over := _over(run.step_s, run.predicted_step_s))]
    if not ratios:
        return f"No run has a step to compare with its plan.{rest}"
    name, latest = ratios[-1]
    worst_name, worst = max(ratios, key=lambda entry: abs(entry[1] - 1))
    return (
        f"The step of the latest run, {name}, is {format_ratio(latest)} to its plan; furthest off is "
        f"{worst_name} with {format_ratio(worst)}.{rest}"
    )
