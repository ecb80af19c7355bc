"""How every figure looks: the Okabe–Ito colours, quiet axes, transparent paper that suits light and dark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PURPLE, YELLOW, GREY = "#D55E00", "#CC79A7", "#F0E442", "#8A8F98"
TOTAL_COLOUR = SWITCH_COLOUR = "#5B6B8C"
FAINT = "rgba(138, 143, 152, 0.25)"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY)

PART_COLOURS: Mapping[str, str] = {
    "compute": BLUE,
    "recompute": SKY,
    "tp": ORANGE,
    "cp": "#F2C14E",
    "ep": VERMILION,
    "pp": "#B45F06",
    "dp": PURPLE,
    "bubble": GREY,
    "optimizer": GREEN,
    "host": "#5C6670",
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

HEIGHT = 340


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
        },
        "xaxis": {"automargin": True, "showgrid": False, "zeroline": False},
        "yaxis": {"automargin": True, "gridcolor": FAINT, "zeroline": False},
        "bargap": 0.3,
    }
    return go.Figure(layout=_merged(base, layout))


def alt_text(figure: go.Figure) -> str:
    """Give the sentence that says what a figure shows."""
    return str(figure.layout.meta["alt"])


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
