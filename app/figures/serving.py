"""Latency or throughput? What one deployment gives at every load, against the limit that must be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.figures.style import BLUE, SERIES, VERMILION, figure
from topology.base.units import MS, format_seconds, three_digits

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One load: requests in flight, time per output token, output tokens per second and GPU."""

    concurrency: int
    tpot_s: float
    tokens_per_s_per_gpu: float
    label: str


def latency_throughput(points: Sequence[LoadPoint], limit_s: float | None = None) -> go.Figure:
    """Draw throughput against latency; every mark is a load, its shape the layout that serves it best."""
    import plotly.graph_objects as go

    ordered = sorted(points, key=lambda point: point.tpot_s)
    most = max((point.tokens_per_s_per_gpu for point in ordered), default=1.0)
    picture = figure(
        _reading(ordered, limit_s),
        height=380,
        xaxis={"title": "time per output token, ms", "showgrid": True, "rangemode": "tozero"},
        yaxis={
            "title": "output tokens/s/GPU",
            "range": [-0.06 * most, 1.15 * most],
        },
    )
    picture.add_trace(
        go.Scatter(
            x=[point.tpot_s / MS for point in ordered],
            y=[point.tokens_per_s_per_gpu for point in ordered],
            mode="lines",
            line={"color": BLUE, "width": 1, "dash": "dot"},
            hoverinfo="skip",
            showlegend=False,
        )
    )
    for number, label in enumerate(dict.fromkeys(point.label for point in ordered)):
        mine = [point for point in ordered if point.label == label]
        picture.add_trace(
            go.Scatter(
                x=[point.tpot_s / MS for point in mine],
                y=[point.tokens_per_s_per_gpu for point in mine],
                mode="markers+text",
                name=label,
                text=[str(point.concurrency) for point in mine],
                textposition="bottom right",
                marker={"size": 10, "symbol": number, "color": SERIES[number % len(SERIES)]},
                hovertemplate="%{text} in flight<br>%{x:.3g} ms, %{y:.3g} tokens/s/GPU<extra></extra>",
            )
        )
    if limit_s is not None:
        line = {"color": VERMILION, "width": 2, "dash": "dash"}
        picture.add_vline(
            x=limit_s / MS,
            line=line,
            annotation={"text": f" limit {format_seconds(limit_s)}", "xanchor": "left"},
        )
    return picture


def _reading(ordered: Sequence[LoadPoint], limit_s: float | None) -> str:
    """Say what the most throughput within the limit is."""
    kept = [point for point in ordered if limit_s is None or point.tpot_s <= limit_s]
    if not kept:
        return "No load keeps the limit."
    best = max(kept, key=lambda point: point.tokens_per_s_per_gpu)
    rate, latency = three_digits(best.tokens_per_s_per_gpu), format_seconds(best.tpot_s)
    within = "" if limit_s is None else " within the limit"
    load = f"{best.concurrency} requests in flight"
    return f"The most{within} is {rate} tokens/s/GPU at {latency} per token, with {load}."
