"""What if there were more GPUs, a longer sequence, another batch; and what does time cost in money?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from app.figures.bands import whiskers
from app.figures.style import BLUE, GREY, SERIES, VERMILION, faded, figure, log_ticks
from app.quantities import format_percent, format_sum, format_usd
from planner.analysis.what_if import Purchase, ScalePoint
from topology.base.units import DAY, KILO, MEGA, format_seconds, three_digits

if TYPE_CHECKING:
    import plotly.graph_objects as go


THIS_PLAN = {"size": 17, "symbol": "circle-open", "color": VERMILION, "line": {"width": 3}}
"""The ring around the plan at hand."""


def scaling_curve(points: Sequence[ScalePoint], varied: str, chosen: int | None = None) -> go.Figure:
    """Draw tokens per second over what is varied, its band shaded, the layout of every point on hover.

    Args:
        points: At least one point, in any order.
        varied: Name of the axis ("GPUs", "sequence length", "global batch size").
        chosen: The value of the plan at hand, marked.
    """
    import plotly.graph_objects as go

    ordered = sorted(points, key=lambda point: point.value)
    values = [point.value for point in ordered]
    rates = [point.tokens_per_s for point in ordered]
    low = [point.tokens_per_s * point.step_time_s / point.upper_s for point in ordered]
    high = [point.tokens_per_s * point.step_time_s / point.lower_s for point in ordered]
    picture = figure(
        _scaling_reading(ordered, varied),
        height=400,
        showlegend=False,
        xaxis={
            "title": varied,
            "type": "log",
            "tickvals": values,
            "ticktext": [f"{value:,}" for value in values],
            "range": _with_room(values, 0.1, 0.1),
        },
        yaxis={
            "title": "tokens/s",
            "type": "log",
            **_thousands(log_ticks(min(low), max(high))["tickvals"]),
            "range": _with_room([*low, *high], 0.2, 0.12),
        },
    )
    picture.add_trace(
        go.Scatter(
            x=values + values[::-1],
            y=high + low[::-1],
            fill="toself",
            mode="lines",
            fillcolor=faded(BLUE, 0.18),
            line={"width": 0},
            hoverinfo="skip",
            name="80 % band",
        )
    )
    picture.add_trace(
        go.Scatter(
            x=values,
            y=rates,
            mode="lines+markers+text",
            line={"color": BLUE, "width": 2},
            marker={"size": 8},
            text=[_two_lines(point.layout) for point in ordered],
            textposition=_beside(rates),
            hovertext=[_scale_hover(point, varied) for point in ordered],
            hoverinfo="text",
            name="tokens/s",
        )
    )
    mine = [point for point in ordered if point.value == chosen]
    picture.add_trace(
        go.Scatter(
            x=[point.value for point in mine],
            y=[point.tokens_per_s for point in mine],
            mode="markers",
            marker=THIS_PLAN,
            hoverinfo="skip",
            name="this plan",
        )
    )
    return picture


def pareto_chart(
    offers: Sequence[Purchase],
    chosen: tuple[str, int] | None = None,
    latest_s: float | None = None,
    dearest_usd: float | None = None,
) -> go.Figure:
    """Draw price against time over kinds and numbers of GPUs; what nothing beats is joined.

    Time and price are those of the whole run, with their 80 % bands, where offers have one; else of a step,
    and of a billion tokens.

    Args:
        offers: Ways to buy the job.
        chosen: Kind and number of GPUs of the plan at hand, circled.
        latest_s: Deadline of the run in seconds, drawn as a line.
        dearest_usd: Budget of the run in dollars, drawn as a line.
    """
    import plotly.graph_objects as go

    of_runs = bool(offers) and all(offer.days and offer.usd for offer in offers)
    best, titles = pareto_front(offers), RUN_TITLES if of_runs else STEP_TITLES
    every = [spent for offer in offers for spent in _band_points(offer)]
    picture = figure(
        _pareto_reading(best),
        height=380,
        xaxis={
            "title": titles[0],
            "type": "log",
            "showgrid": True,
            **_ticks([time for time, _ in every]),
            **_room([time for time, _ in every]),
        },
        yaxis={
            "title": titles[1],
            "type": "log",
            **_ticks([usd for _, usd in every], format_sum),
            **_room([usd for _, usd in every]),
        },
    )
    picture.add_trace(
        go.Scatter(
            x=[spent_by(offer)[0] for offer in best],
            y=[spent_by(offer)[1] for offer in best],
            mode="lines",
            line={"color": GREY, "width": 1.5, "dash": "dot"},
            name="nothing beats these",
            hoverinfo="skip",
        )
    )
    for number, gpu in enumerate(dict.fromkeys(offer.gpu for offer in offers)):
        mine = [offer for offer in offers if offer.gpu == gpu]
        picture.add_trace(
            go.Scatter(
                x=[spent_by(offer)[0] for offer in mine],
                y=[spent_by(offer)[1] for offer in mine],
                error_x=whiskers([offer.days for offer in mine]) if of_runs else None,
                error_y=whiskers([offer.usd for offer in mine]) if of_runs else None,
                mode="markers+text",
                text=[f"{offer.num_gpus:,}" for offer in mine],
                textposition="top right",
                marker={"size": 10, "color": SERIES[number % len(SERIES)], "symbol": number},
                name=gpu,
                hovertext=[_offer_hover(offer) for offer in mine],
                hoverinfo="text",
                customdata=[[offer.gpu, offer.num_gpus] for offer in mine],
            )
        )
    limit = {"color": VERMILION, "width": 1.5, "dash": "dash"}
    if latest_s is not None and of_runs:
        picture.add_vline(x=latest_s / DAY, line=limit)
        picture.add_annotation(
            x=math.log10(latest_s / DAY), y=1, yref="paper", yanchor="top", xanchor="right", text="deadline",
            textangle=-90, showarrow=False,
        )  # fmt: skip
    if dearest_usd is not None and of_runs:
        picture.add_hline(y=dearest_usd, line=limit)
        picture.add_annotation(
            x=1, xref="paper", y=math.log10(dearest_usd), xanchor="right", yanchor="bottom", text="budget",
            showarrow=False,
        )  # fmt: skip
    circled = [offer for offer in offers if (offer.gpu, offer.num_gpus) == chosen]
    if circled:
        picture.add_trace(
            go.Scatter(
                x=[spent_by(offer)[0] for offer in circled],
                y=[spent_by(offer)[1] for offer in circled],
                mode="markers",
                marker=THIS_PLAN,
                hoverinfo="skip",
                name="this plan",
            )
        )
    return picture


STEP_TITLES = ("step time, s", "$ per billion tokens, steps alone")
RUN_TITLES = ("days to the last token", "cost of the whole run")
"""Axes of time and price: of offers without and with a run to its end."""


def spent_by(offer: Purchase) -> tuple[float, float]:
    """Time and price of an offer: median days and dollars of its run, else of a step and a billion tokens."""
    if offer.days is None or offer.usd is None:
        return offer.step_time_s, offer.usd_per_billion_tokens
    return offer.days.p50, offer.usd.p50


def _band_points(offer: Purchase) -> tuple[tuple[float, float], ...]:
    """Time and price of an offer, and both ends of their bands where they have some."""
    if offer.days is None or offer.usd is None:
        return (spent_by(offer),)
    return (offer.days.p10, offer.usd.p10), spent_by(offer), (offer.days.p90, offer.usd.p90)


def _ticks(values: Sequence[float], text: Callable[[float], str] | None = None) -> dict[str, Any]:
    """Ticks of a logarithmic axis, written as `text` does, if given; none without values."""
    ticks = log_ticks(min(values), max(values)) if values else {}
    return {**ticks, "ticktext": [text(value) for value in ticks["tickvals"]]} if ticks and text else ticks


def _room(values: Sequence[float]) -> dict[str, object]:
    """Range of an axis on which no mark and no label touches the edge; none without values."""
    return {"range": _with_room(values, 0.08, 0.12)} if values else {}


def pareto_front(offers: Sequence[Purchase]) -> list[Purchase]:
    """Offers that no other one beats in both time and money, fastest first.

    >>> cheap = Purchase(gpu="a", num_gpus=8, step_time_s=2.0, usd_per_billion_tokens=1.0, layout="")
    >>> fast = Purchase(gpu="b", num_gpus=8, step_time_s=1.0, usd_per_billion_tokens=2.0, layout="")
    >>> bad = Purchase(gpu="c", num_gpus=8, step_time_s=2.0, usd_per_billion_tokens=2.0, layout="")
    >>> [offer.gpu for offer in pareto_front([cheap, bad, fast])]
    ['b', 'a']
    """
    front: list[Purchase] = []
    for offer in sorted(offers, key=spent_by):
        if not front or spent_by(offer)[1] < spent_by(front[-1])[1]:
            front.append(offer)
    return front


def _with_room(values: Sequence[float], before: float, after: float) -> list[float]:
    """Ends of a logarithmic axis, as powers of ten, with shares of the span left free at both ends."""
    low, high = math.log10(min(values)), math.log10(max(values))
    span = max(high - low, 0.3)
    return [low - before * span, high + after * span]


def _thousands(values: Sequence[float]) -> dict[str, object]:
    """Ticks of a rate, written in thousands or millions."""
    return {"tickvals": list(values), "ticktext": [_rate(value) for value in values]}


def _rate(value: float) -> str:
    """A rate on an axis.

    >>> _rate(5_000), _rate(10_000_000)
    ('5 k', '10 M')
    """
    factor, suffix = (MEGA, "M") if value >= MEGA else (KILO, "k")
    return f"{three_digits(value / factor)} {suffix}"


def _beside(rates: Sequence[float]) -> list[str]:
    """Where labels stand: off the line on its free side, the last one to the left, inside the picture.

    >>> _beside([1.0, 2.0, 4.0])
    ['bottom right', 'bottom right', 'top left']
    """
    rising = rates[-1] >= rates[0]
    inner, last = ("bottom right", "top left") if rising else ("top right", "bottom left")
    return [inner] * (len(rates) - 1) + [last if len(rates) > 1 else inner]


def _two_lines(layout: str) -> str:
    r"""Break the words of a layout in the middle, so that labels of neighbouring points do not meet.

    >>> _two_lines("tp 4 · cp 2 · pp 4 · ZeRO-1").replace("\N{NO-BREAK SPACE}", "")
    'tp 4 · cp 2<br>pp 4 · ZeRO-1'
    """
    words = layout.split(" · ")
    half = (len(words) + 1) // 2
    lines = [" · ".join(part) for part in (words[:half], words[half:]) if part]
    gap = "\N{NO-BREAK SPACE}" * 2
    return "<br>".join(f"{gap}{line}{gap}" for line in lines)


def _scale_hover(point: ScalePoint, varied: str) -> str:
    """What a point of the curve says."""
    return f"{point.value:,} {varied}<br>{point.layout}<br>{format_seconds(point.step_time_s)} a step"


def _offer_hover(offer: Purchase) -> str:
    """What an offer says."""
    named = f"{offer.num_gpus:,} × {offer.gpu}<br>{offer.layout}<br>"
    if offer.days is not None and offer.usd is not None:
        return f"{named}{three_digits(offer.days.p50)} days, {_price(offer)}"
    return f"{named}{format_seconds(offer.step_time_s)} a step, {_price(offer)}"


def _price(offer: Purchase) -> str:
    """What an offer costs, and for what."""
    if offer.usd is not None:
        return f"{format_sum(offer.usd.p50)} for the whole run"
    return f"{format_usd(offer.usd_per_billion_tokens)} per billion tokens"


def _scaling_reading(points: Sequence[ScalePoint], varied: str) -> str:
    """Say how throughput grows."""
    first, last = points[0], points[-1]
    if first.value == last.value:
        return f"One point: {first.value:,} {varied}."
    grown, speed = last.value / first.value, last.tokens_per_s / first.tokens_per_s
    text = f"From {first.value:,} to {last.value:,} {varied} throughput becomes {speed:.3g} times as high"
    return f"{text}, {format_percent(speed / grown)} of proportional." if varied == "GPUs" else f"{text}."


def _pareto_reading(front: Sequence[Purchase]) -> str:
    """Say which offers end the front."""
    if not front:
        return "No offer has a known price."
    fast, cheap = (f"{offer.num_gpus:,} × {offer.gpu} at {_price(offer)}" for offer in (front[0], front[-1]))
    return f"Fastest: {fast}; cheapest: {cheap}."
