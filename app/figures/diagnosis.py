"""A recorded step: its ranks over time beside the predicted step, and what makes the difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.figures.diagnosis_view import DiagnosisView, LanePart
from app.figures.step_time import PART_LABELS
from app.figures.style import GREY, PART_COLOURS, TOTAL_COLOUR, figure
from costmodel.estimate import PART_NAMES
from topology.base.units import format_seconds, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go


def step_lanes(view: DiagnosisView) -> go.Figure:
    """A lane for each rank, coloured by the term of the model, and the predicted one below."""
    import plotly.graph_objects as go

    longest_s = max(part.start_s + part.seconds for parts in view.lanes.values() for part in parts)
    factor, unit = time_unit(longest_s)
    by_term: dict[str, list[tuple[str, LanePart]]] = {}
    for name, parts in view.lanes.items():
        for part in parts:
            by_term.setdefault(part.term, []).append((name, part))
    picture = figure(
        lanes_reading(view), height=120 + 30 * len(view.lanes), barmode="overlay", bargap=0.2,
        xaxis={"title": f"time, {unit}", "range": [0, longest_s / factor]},
        yaxis={"type": "category", "categoryorder": "array", "categoryarray": [*view.lanes][::-1]},
    )  # fmt: skip
    for term in [term for term in PART_COLOURS if term in by_term]:
        rows = by_term[term]
        words = [f"{name} · {part.part}<br>{format_seconds(part.seconds)}" for name, part in rows]
        picture.add_trace(
            go.Bar(name=PART_LABELS[term], orientation="h", y=[name for name, _ in rows],
                   x=[part.seconds / factor for _, part in rows],
                   base=[part.start_s / factor for _, part in rows], marker_color=PART_COLOURS[term],
                   marker_line_width=0, hovertext=words, hovertemplate="%{hovertext}<extra></extra>")
        )  # fmt: skip
    return picture


def lanes_reading(view: DiagnosisView) -> str:
    """What the lanes say in a sentence."""
    ranks = len(view.lanes) - (view.predicted_s is not None)
    recorded = f"The middle step of {ranks} rank{'s' if ranks > 1 else ''}; a step takes"
    predicted = "" if view.predicted_s is None else f", predicted {format_seconds(view.predicted_s)}"
    return f"{recorded} {format_seconds(view.recorded_s)}{predicted}."


def residual_waterfall(view: DiagnosisView) -> go.Figure:
    """From the predicted step to the recorded one, term by term; terms outside their band are full."""
    import plotly.graph_objects as go

    predicted_s = view.predicted_s or 0.0
    rows = [("predicted", 0.0, predicted_s, TOTAL_COLOUR, 1.0)]
    at = predicted_s
    for each in view.residuals:
        colour = PART_COLOURS.get(each.part.removesuffix("_s"), GREY)
        opacity = 0.4 if each.verdict == "explained" else 1.0
        rows.append((PART_NAMES.get(each.part, each.part), at, each.residual_s, colour, opacity))
        at += each.residual_s
    rows.append(("recorded", 0.0, at, TOTAL_COLOUR, 1.0))
    factor, unit = time_unit(max(abs(value) for _, _, value, _, _ in rows))
    first = view.residuals[0] if view.residuals else None
    furthest = "" if first is None else f": {PART_NAMES.get(first.part, first.part)} is furthest off"
    reading = f"From {format_seconds(predicted_s)} predicted to {format_seconds(at)} recorded{furthest}."
    picture = figure(
        reading, height=110 + 28 * len(rows), showlegend=False, barmode="overlay",
        xaxis={"title": f"time, {unit}", "rangemode": "tozero"},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False},
    )  # fmt: skip
    for name, base, value, colour, opacity in rows:
        text = format_seconds(value) if value >= 0 else f"−{format_seconds(-value)}"
        picture.add_trace(
            go.Bar(orientation="h", y=[name], x=[value / factor], base=[base / factor], opacity=opacity,
                   marker_color=colour, text=[text], hovertemplate=f"{name} · %{{text}}<extra></extra>")
        )  # fmt: skip
    return picture
