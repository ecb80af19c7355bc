"""Latency or throughput? What the planned fleet gives at every load, against the limit that must be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.figures.style import SERIES, VERMILION, figure
from topology.base.units import MS, format_seconds, three_digits

if TYPE_CHECKING:
    import plotly.graph_objects as go

HOLLOW = 100
"""What plotly adds to the number of a symbol to draw its outline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """The limits of both latencies, seconds."""

    ttft_s: float
    tpot_s: float

    def keeps(self, ttft_s: float, tpot_s: float) -> bool:
        """Whether both latencies are within their limits."""
        return ttft_s <= self.ttft_s and tpot_s <= self.tpot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One load: what it is in words and on its mark, both latencies at one percentile, output tokens/s/GPU.

    `kept` says whether both latencies are within the limits.
    """

    load: str
    mark: str
    ttft_s: float
    tpot_s: float
    kept: bool
    tokens_per_s_per_gpu: float
    label: str


def latency_throughput(
    planned: LoadPoint, points: Sequence[LoadPoint], within: Within, percentile: float
) -> go.Figure:
    """Draw throughput against latency; a mark is a load, its shape the layout, hollow where a limit breaks.

    Args:
        planned: The load of the plan.
        points: Other loads of the same GPUs, in any order.
        within: The limits.
        percentile: That of requests at which latencies are told and limits hold.
    """
    import plotly.graph_objects as go

    ordered = sorted([planned, *points], key=lambda point: point.tpot_s)
    most = max((point.tokens_per_s_per_gpu for point in ordered), default=1.0)
    picture = figure(
        _reading(planned, points, within, percentile),
        height=380,
        xaxis={
            "title": f"p{percentile:g} time per output token, ms",
            "showgrid": True,
            "rangemode": "tozero",
        },
        yaxis={"title": "output tokens/s/GPU", "range": [-0.06 * most, 1.15 * most]},
    )
    for number, label in enumerate(dict.fromkeys(point.label for point in ordered)):
        mine = [point for point in ordered if point.label == label]
        colour = SERIES[number % len(SERIES)]
        picture.add_trace(
            go.Scatter(
                x=[point.tpot_s / MS for point in mine],
                y=[point.tokens_per_s_per_gpu for point in mine],
                mode="lines+markers+text",
                name=label,
                line={"color": colour, "width": 1, "dash": "dot"},
                text=[point.mark for point in mine],
                textposition="bottom right",
                marker={
                    "size": 10,
                    "symbol": [number if point.kept else number + HOLLOW for point in mine],
                    "color": colour,
                },
                hovertext=[_hover(point, percentile) for point in mine],
                hoverinfo="text",
            )
        )
    picture.add_vline(
        x=within.tpot_s / MS,
        line={"color": VERMILION, "width": 2, "dash": "dash"},
        annotation={"text": f" limit {format_seconds(within.tpot_s)}", "xanchor": "left"},
    )
    return picture


def _hover(point: LoadPoint, percentile: float) -> str:
    """What a mark says."""
    return (
        f"{point.load}<br>{three_digits(point.tokens_per_s_per_gpu)} tokens/s/GPU<br>"
        f"p{percentile:g}: first token {format_seconds(point.ttft_s)}, each {format_seconds(point.tpot_s)}"
        f"<br>{'within the limits' if point.kept else 'breaks a limit'}"
    )


def _reading(planned: LoadPoint, points: Sequence[LoadPoint], within: Within, percentile: float) -> str:
    """Say what the plan gives, and what the most throughput of the other loads within both limits is."""
    limits = (
        f"p{percentile:g} first token {format_seconds(within.ttft_s)}, each {format_seconds(within.tpot_s)}"
    )
    kept = [point for point in points if point.kept]
    plan = f"The planned fleet gives {_gives(planned)}."
    if not kept:
        return f"{plan} No other load drawn here keeps the limits ({limits}); hollow marks break one."
    best = max(kept, key=lambda point: point.tokens_per_s_per_gpu)
    return (
        f"{plan} Of the other loads drawn here the most within the limits ({limits}) is {_gives(best)}. "
        "Hollow marks break a limit."
    )


def _gives(point: LoadPoint) -> str:
    """Throughput and latencies of a load, in words."""
    return (
        f"{three_digits(point.tokens_per_s_per_gpu)} tokens/s/GPU with {point.load} ({point.label}): "
        f"first token {format_seconds(point.ttft_s)}, each {format_seconds(point.tpot_s)}"
    )
