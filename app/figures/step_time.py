"""Where does the step go? A waterfall from compute to the whole step, hidden communication hatched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from app.figures.style import GREY, HEIGHT, PART_COLOURS, TOTAL_COLOUR, faded, figure
from app.quantities import format_number, format_percent
from costmodel.estimate import Estimate, TimeBreakdown
from costmodel.parallel.axes import PARTS, Traffic
from planner.analysis.compare import compare, tokens_per_s
from planner.plan import Plan
from topology.base.units import MEGA, format_seconds, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

_VERBS = {Traffic.RING: "wait", Traffic.ALL_TO_ALL: "wait", Traffic.NEXT: "sends"}

PART_LABELS = {
    "compute": "compute",
    "recompute": "recompute",
    **{part: f"{part.upper()} {_VERBS[axis.traffic]}" for part, axis in PARTS.items()},
    "bubble": "bubble",
    "optimizer": "optimizer",
    "host": "host",
    "rest": "rest",
}
SMALLEST_SHARE = 0.003
"""Parts below this share of the step are drawn together."""
_ROOM_FOR_TEXT = 1.16


def waterfall_parts(time: TimeBreakdown) -> dict[str, float]:
    """Seconds of every part that lengthens the step, in the order of the waterfall."""
    names = [field.name for field in fields(TimeBreakdown) if field.name != "hidden_s"]
    return {name.removesuffix("_s"): float(getattr(time, name)) for name in names}


def waterfall(estimate: Estimate) -> go.Figure:
    """Line up the parts of a step, one row each, down to the total, whose band is drawn as an error bar."""
    total_s = estimate.step_time_s
    factor, unit = time_unit(total_s)
    parts = drawn_parts(estimate)
    hidden = {axis: s for axis, s in estimate.time.hidden_s.items() if s > SMALLEST_SHARE * total_s}
    longest_s = max(estimate.upper_s, *hidden.values(), total_s)
    picture = figure(
        _reading(estimate, parts), height=max(HEIGHT, 90 + 26 * (len(parts) + 1 + len(hidden))),
        showlegend=False, barmode="overlay", bargap=0.25,
        xaxis={"title": f"time, {unit}", "range": [0, _ROOM_FOR_TEXT * longest_s / factor], "showgrid": True},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
    )  # fmt: skip
    below_s = 0.0
    for name, value_s in parts.items():
        picture.add_trace(_bar(PART_LABELS[name], below_s, value_s, total_s, {"color": PART_COLOURS[name]}))
        below_s += value_s
    picture.add_trace(_whole(estimate))
    for axis, value_s in hidden.items():
        colour = PART_COLOURS.get(axis, GREY)
        hatched = {"color": faded(colour, 0.35), "pattern": {"shape": "/", "fgcolor": colour}}
        picture.add_trace(_bar(f"{axis.upper()} hidden", 0.0, value_s, total_s, hatched))
    return picture


def drawn_parts(estimate: Estimate) -> dict[str, float]:
    """Seconds of every part that can be seen; the others are one part, so that bars still sum to the step."""
    parts = waterfall_parts(estimate.time)
    seen = {name: value for name, value in parts.items() if value > SMALLEST_SHARE * estimate.step_time_s}
    rest_s = sum(parts.values()) - sum(seen.values())
    return seen | ({"rest": rest_s} if rest_s > 0 else {})


def waterfalls(plans: Sequence[tuple[str, Plan]]) -> go.Figure:
    """Stack the parts of several plans' steps, a row for each plan, its time at the end.

    Where steps do not hold the same tokens, times are those of a million tokens: only these compare.
    """
    import plotly.graph_objects as go

    whole = all(compare(plans[0][1], plan).same_work for _, plan in plans)
    names = [name for name, _ in plans]
    scales = [1.0 if whole else MEGA / plan.request.job.tokens_per_step for _, plan in plans]
    totals = [plan.estimate.step_time_s * scale for (_, plan), scale in zip(plans, scales, strict=True)]
    factor, unit = time_unit(max(totals))
    picture = figure(
        compared_reading(plans),
        height=130 + 44 * len(names), barmode="stack",
        xaxis={"title": f"time{'' if whole else ' of a million tokens'}, {unit}",
               "range": [0, _ROOM_FOR_TEXT * max(totals) / factor]},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
    )  # fmt: skip
    for part, label in PART_LABELS.items():
        values = [
            waterfall_parts(plan.estimate.time).get(part, 0.0) * scale
            for (_, plan), scale in zip(plans, scales, strict=True)
        ]
        if any(values):
            picture.add_trace(
                go.Bar(name=label, orientation="h", y=names, x=[value / factor for value in values],
                       marker_color=PART_COLOURS[part], hovertext=[format_seconds(value) for value in values],
                       hovertemplate="%{y} · %{fullData.name}<br>%{hovertext}<extra></extra>")
            )  # fmt: skip
    picture.add_trace(
        go.Scatter(x=[total / factor for total in totals], y=names, mode="text", showlegend=False,
                   text=[f" {format_seconds(total)}" for total in totals], textposition="middle right",
                   hoverinfo="skip")
    )  # fmt: skip
    return picture


def compared_reading(plans: Sequence[tuple[str, Plan]]) -> str:
    """Say which plan is fastest per token, and which the error band cannot tell from it."""
    name, best = max(plans, key=lambda entry: tokens_per_s(entry[1]))
    against = [(other, compare(best, plan)) for other, plan in plans if other != name]
    rate = f"{format_number(tokens_per_s(best))} tokens/s"
    if not all(comparison.same_model for _, comparison in against):
        return f"{name} has the most tokens a second, {rate}; the models are not the same."
    ties = [other for other, comparison in against if comparison.tied]
    if ties:
        return f"{name} has {rate}; the error band cannot tell {' and '.join(ties)} from it."
    if all(comparison.same_work for _, comparison in against):
        return f"{name} is fastest with {format_seconds(best.estimate.step_time_s)} a step."
    return f"{name} is fastest with {rate}; steps hold unequal tokens."


def _bar(label: str, below_s: float, value_s: float, total_s: float, marker: Mapping[str, Any]) -> go.Bar:
    """One row of the waterfall, from `below_s` onwards, its time at its end."""
    import plotly.graph_objects as go

    factor, _ = time_unit(total_s)
    text = format_seconds(value_s)
    return go.Bar(
        name=label, orientation="h", y=[label], x=[value_s / factor], base=[below_s / factor],
        marker=dict(marker), text=[text], textposition="outside", constraintext="none", cliponaxis=False,
        hovertemplate=f"{label}<br>{text} · {format_percent(value_s / total_s)}<extra></extra>",
    )  # fmt: skip


def _whole(estimate: Estimate) -> go.Bar:
    """The row of the whole step: its time inside the bar, its band at the end."""
    total_s = estimate.step_time_s
    factor, _ = time_unit(total_s)
    band = {
        "type": "data",
        "symmetric": False,
        "array": [(estimate.upper_s - total_s) / factor],
        "arrayminus": [(total_s - estimate.lower_s) / factor],
        "color": PART_COLOURS["rest"],
        "thickness": 2,
    }
    bar = _bar("step", 0.0, total_s, total_s, {"color": TOTAL_COLOUR})
    return bar.update(error_x=band, textposition="inside", insidetextanchor="start", textfont_color="white")


def _reading(estimate: Estimate, parts: dict[str, float]) -> str:
    """Say what the waterfall shows."""
    total = estimate.step_time_s
    waits = {name: value for name, value in parts.items() if name != "compute"}
    share = format_percent(parts.get("compute", 0.0) / total)
    text = f"Compute takes {share} of the {format_seconds(total)} step"
    if waits:
        worst = max(waits, key=waits.__getitem__)
        text += (
            f"; the largest other part is {PART_LABELS[worst]} with {format_percent(waits[worst] / total)}"
        )
    return f"{text}."
