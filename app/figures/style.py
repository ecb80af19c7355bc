"""How every figure looks: the Okabe–Ito colours, quiet axes, transparent paper that suits light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PURPLE, YELLOW, GREY = "#D55E00", "#CC79A7", "#F0E442", "#707780"
TOTAL_COLOUR = SWITCH_COLOUR = "#5B6B8C"
FAINT, PALE = "rgba(138, 143, 152, 0.25)", "rgba(138, 143, 152, 0.6)"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY)

PART_COLOURS: Mapping[str, str] = {
    "compute": BLUE,
    "recompute": SKY,
    "tp": ORANGE,
    "cp": "#F2C14E",
    "ep": VERMILION,
    "pp": "#A0522D",
    "dp": PURPLE,
    "bubble": GREY,
    "optimizer": GREEN,
    "host": "#454C56",
    "rest": "#9AA5B1",
}
"""Colours of the parts of a step; communication is warm, waiting is grey."""

MEMORY_COLOURS: Mapping[str, str] = {
    "weights": BLUE,
    "gradients": SKY,
    "optimizer": GREEN,
    "activations": ORANGE,
    "kv_cache": VERMILION,
    "buffers": PURPLE,
    "overhead": GREY,
}
"""Colours of the parts of memory."""

FAINTEST = 0.34
"""Opacity of a line that nothing crosses."""
HEIGHT = 340
_FEWEST_TICKS = 3
_CLOSEST_TICKS = 0.1
"""Of the length of an axis, between two ticks."""
_TICK_STEPS = (
    (1.0,),
    (1.0, 3.0),
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0),
    tuple(float(n) for n in range(1, 10)),
    tuple(n / 2 for n in range(2, 20)),
    tuple(n / 5 for n in range(5, 50)),
    tuple(n / 20 for n in range(20, 200)),
)
"""Digits of ticks in a decade, from few to many; the first choice that gives enough ticks is taken."""


def busy_colour(share: float) -> str:
    """Colour of a line that is busy for a share of the most: faint grey when idle, vermilion when busiest.

    Opacity is what tells them apart on light and on dark paper alike; an idle line has no hue, which on
    dark paper would be brown.

    >>> busy_colour(0.0), busy_colour(1.0)
    ('rgba(112, 119, 128, 0.34)', 'rgba(213, 94, 0, 1)')
    """
    share = min(1.0, max(0.0, share))
    opacity = FAINTEST + (1 - FAINTEST) * share
    ends = ((int(GREY[at : at + 2], 16), int(VERMILION[at : at + 2], 16)) for at in (1, 3, 5))
    red, green, blue = (round(idle + share * (busiest - idle)) for idle, busiest in ends)
    return f"rgba({red}, {green}, {blue}, {opacity:.3g})"


_AXIS = {"automargin": True, "gridcolor": FAINT, "zeroline": False, "separatethousands": True}


def figure(alt: str, *, height: int = HEIGHT, **layout: Any) -> go.Figure:
    """Give an empty figure in the house style, whose reading is `alt`."""
    import plotly.graph_objects as go

    base: dict[str, Any] = {
        "height": height,
        "meta": {"alt": alt},
        "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 13},
        "hoverlabel": {"font": {"size": 13}},
        "legend": {
            "orientation": "h",
            "yanchor": "bottom",
            "y": 1.0,
            "xanchor": "left",
            "x": 0.0,
            "title": None,
            "traceorder": "normal",
        },
        "xaxis": {**_AXIS, "showgrid": False},
        "yaxis": dict(_AXIS),
        "bargap": 0.3,
    }
    return go.Figure(layout=_merged(base, layout))


def alt_text(figure: go.Figure) -> str:
    """Give the sentence that says what a figure shows."""
    return str(figure.layout.meta["alt"])


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Few round ticks for a logarithmic axis, written out, so that no tick is a lone digit.

    >>> log_ticks(33.0, 310.0)["ticktext"], log_ticks(1650.0, 2300.0)["ticktext"]
    (['50', '100', '200'], ['1,600', '1,800', '2,000', '2,200', '2,400'])
    >>> log_ticks(51_000, 86_000)["ticktext"]
    ['50,000', '60,000', '70,000', '80,000', '90,000']
    >>> log_ticks(9_850, 14_200)["ticktext"]
    ['9,600', '10,000', '12,000', '14,000']
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _TICK_STEPS:
        values = [step * 10.0**decade for decade in decades for step in steps]
        values = [value for value in values if 0.95 * low <= value <= 1.05 * high]
        if len(values) >= _FEWEST_TICKS:
            break
    values = _apart(values, math.log10(high / low) * _CLOSEST_TICKS)
    return {"tickvals": values, "ticktext": [f"{value:,.10g}" for value in values]}


def _apart(values: list[float], least: float) -> list[float]:
    """Ticks without those that stand too close below another: steps are finer below a power of ten."""
    kept: list[float] = []
    for value in reversed(values):
        if not kept or math.log10(kept[-1] / value) >= least:
            kept.append(value)
    return kept[::-1]


def faded(colour: str, opacity: float) -> str:
    """Give a hex colour with an opacity.

    >>> faded("#0072B2", 0.5)
    'rgba(0, 114, 178, 0.5)'
    """
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def _merged(base: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested settings."""
    merged = dict(base)
    for key, value in extra.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
