"""What matters most? Bars of how the step or its price changes when one fact is 20 % lower or higher."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.figures.style import BLUE, GREY, ORANGE, figure
from app.quantities import format_percent
from planner.analysis.what_if import Sensitivity

if TYPE_CHECKING:
    import plotly.graph_objects as go


def tornado(effects: Sequence[Sensitivity], outcome: str, by: float = 0.2) -> go.Figure:
    """Draw effects, the largest on top.

    Args:
        effects: One per fact.
        outcome: What changes ("step time", "$ per billion tokens").
        by: How much each fact is changed, relative.
    """
    import plotly.graph_objects as go

    ordered = sorted(effects, key=lambda effect: effect.reach)
    names = [effect.name for effect in ordered]
    picture = figure(
        _reading(ordered, outcome, by),
        height=110 + 34 * len(ordered),
        barmode="overlay",
        xaxis={
            "title": f"change of {outcome}",
            "tickvals": (ticks := _ticks(*_span(ordered))),
            "ticktext": [format_percent(tick, signed=True) if tick else "0" for tick in ticks],
            "range": _span(ordered),
            "zeroline": True,
            "zerolinecolor": GREY,
        },
        yaxis={"type": "category", "showgrid": False},
    )
    for label, colour, values, without in (
        (f"{format_percent(by)} lower", ORANGE, [effect.lowered for effect in ordered], ""),
        (f"{format_percent(by)} higher", BLUE, [effect.raised for effect in ordered], "no effect"),
    ):
        text = ["no plan" if value is None else format_percent(value, signed=True) for value in values]
        picture.add_trace(
            go.Bar(
                name=label,
                orientation="h",
                y=names,
                x=[value or 0.0 for value in values],
                marker_color=colour,
                text=[
                    without if effect.is_none else word if value is None or value else ""
                    for effect, value, word in zip(ordered, values, text, strict=True)
                ],
                textposition="outside",
                constraintext="none",
                cliponaxis=False,
                hovertext=text,
                hovertemplate="%{y}, %{fullData.name}: %{hovertext}<extra></extra>",
            )
        )
    return picture


def _span(effects: Sequence[Sensitivity]) -> list[float]:
    """Ends of the axis, with room for the text at the bars, on a phone too."""
    values = [value for effect in effects for value in (effect.lowered, effect.raised) if value is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    room = 0.36 * max(high - low, 0.01)
    return [min(low, 0.0) - room, max(high, 0.0) + room]


def _ticks(low: float, high: float) -> list[float]:
    """Round shares between two ends, six at most.

    >>> _ticks(-0.3, 0.3), _ticks(-0.04, 0.01)
    ([-0.2, 0.0, 0.2], [-0.04, -0.03, -0.02, -0.01, 0.0, 0.01])
    """
    least = (high - low) / 5
    decade = 10.0 ** math.floor(math.log10(least))
    step = next(factor * decade for factor in (1, 2, 5, 10) if factor * decade >= least * (1 - 1e-9))
    return [
        round(n * step, 12) for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def _reading(ordered: Sequence[Sensitivity], outcome: str, by: float) -> str:
    """Say what matters most."""
    if not ordered or ordered[-1].reach == 0:
        return f"None of these facts changes the {outcome}."
    most = ordered[-1]
    effect = format_percent(most.reach)
    change = f"A change of {format_percent(by)} in {most.name}"
    return f"{change} moves the {outcome} by up to {effect}, more than any other."
