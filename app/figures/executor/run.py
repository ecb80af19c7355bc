"""A training run over its steps: loss, rate, memory, and the step time against its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from app.figures.style import BLUE, GREY, figure
from app.quantities import format_number, format_ratio
from app.store.run_log import RunStep
from topology.base.units import format_seconds

if TYPE_CHECKING:
    import plotly.graph_objects as go


PLAIN = ",~f"
"""How ticks are written: thousands apart, no zeros at the end."""


def run_line(steps: Sequence[RunStep], field: str, title: str) -> go.Figure:
    """Draw one logged quantity over the steps."""
    import plotly.graph_objects as go

    values = [float(getattr(step, field)) for step in steps]
    first, last = format_number(values[0]), format_number(values[-1])
    name, _, unit = title.partition(", ")
    alt = (
        f"{name.capitalize()} is {f'{last} {unit}'.strip()} at step {steps[-1].step:,}; it began at {first}."
    )
    picture = figure(
        alt,
        height=260,
        showlegend=False,
        xaxis={"title": "step"},
        yaxis={"title": title, "tickformat": PLAIN},
    )
    picture.add_trace(
        go.Scatter(x=[step.step for step in steps], y=values, mode="lines", line={"color": BLUE})
    )
    return picture


def step_time_figure(steps: Sequence[RunStep]) -> go.Figure:
    """Draw measured step times and the predicted one."""
    import plotly.graph_objects as go

    predicted = steps[-1].predicted_step_time_s
    typical = median(step.step_time_s for step in steps)
    off = f"to its prediction that is {format_ratio(typical / predicted)}" if predicted else "not predicted"
    picture = figure(
        f"The median step takes {format_seconds(typical)}; {off}.",
        height=260,
        xaxis={"title": "step"},
        yaxis={"title": "step time, s", "rangemode": "tozero"},
    )
    numbers = [step.step for step in steps]
    picture.add_trace(
        go.Scatter(
            x=numbers,
            y=[step.step_time_s for step in steps],
            mode="lines",
            name="measured",
            line={"color": BLUE},
        )
    )
    if predicted:
        ends = [numbers[0], numbers[-1]]
        picture.add_trace(
            go.Scatter(
                x=ends,
                y=[predicted, predicted],
                mode="lines",
                name="predicted",
                line={"color": GREY, "dash": "dash"},
            )
        )
    return picture
