"""What does it take, what should it take? A job as it runs beside changes of its files and the best plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.figures.step_time import PART_LABELS, parts_of
from app.figures.style import GREY, PART_COLOURS, SKY, TOTAL_COLOUR, figure
from app.quantities import format_percent
from topology.base.units import format_seconds, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from costmodel.estimate import Estimate
    from planner.audit.audit import Audit

MEASURED, RUNS, BEST = "measured", "as it runs", "the best plan"


def run_beside_best(found: Audit) -> go.Figure:
    """Draw the parts of the step as the files have it and of the best plan, and what was measured.

    Args:
        found: An audit with a prediction.
    """
    import plotly.graph_objects as go

    estimates: dict[str, Estimate] = {}
    if found.predicted is not None:
        estimates[RUNS] = found.predicted
    if found.best is not None:
        estimates[BEST] = found.best.estimate
    measured_s = found.measured_step_s
    names = [*([MEASURED] if measured_s else []), *estimates]
    longest_s = max([measured_s or 0.0, *(estimate.upper_s for estimate in estimates.values())])
    factor, unit = time_unit(longest_s)
    picture = figure(
        _reading(found), height=150 + 44 * len(names), barmode="stack",
        xaxis={"title": f"step, {unit}", "range": [0, 1.12 * longest_s / factor]},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False,
               "categoryorder": "array", "categoryarray": names},
    )  # fmt: skip
    if measured_s:
        picture.add_trace(_bar("measured", [MEASURED], [measured_s], factor, TOTAL_COLOUR))
    for part, label in PART_LABELS.items():
        values = [parts_of(estimate.time).get(part, 0.0) for estimate in estimates.values()]
        if any(values):
            picture.add_trace(_bar(label, list(estimates), values, factor, PART_COLOURS[part]))
    bands = list(estimates.values())
    picture.add_trace(
        go.Scatter(
            x=[one.step_time_s / factor for one in bands], y=list(estimates), mode="markers",
            name="80 % band",
            marker={"size": 1, "color": SKY}, hoverinfo="skip",
            error_x={"type": "data", "symmetric": False, "color": GREY, "thickness": 1.5, "width": 6,
                     "array": [(one.upper_s - one.step_time_s) / factor for one in bands],
                     "arrayminus": [(one.step_time_s - one.lower_s) / factor for one in bands]},
        )
    )  # fmt: skip
    return picture


def _bar(name: str, rows: list[str], seconds: list[float], factor: float, colour: str) -> Any:
    """One part of every row."""
    import plotly.graph_objects as go

    return go.Bar(
        name=name, orientation="h", y=rows, x=[value / factor for value in seconds], marker_color=colour,
        hovertext=[format_seconds(value) for value in seconds],
        hovertemplate="%{y} · %{fullData.name}<br>%{hovertext}<extra></extra>",
    )  # fmt: skip


def _reading(found: Audit) -> str:
    """Say how far the job is from the best."""
    words = []
    if found.measured_step_s:
        words.append(f"A step was measured at {format_seconds(found.measured_step_s)}")
    if found.predicted is not None:
        words.append(f"as its files have it, it should take {format_seconds(found.predicted.step_time_s)}")
    if found.best is not None:
        words.append(f"the best plan {format_seconds(found.best.estimate.step_time_s)}")
    basis = "measured against predicted" if found.basis == "measured" else "both predicted"
    far = (
        ""
        if found.slower_by is None
        else f": {format_percent(found.slower_by, signed=True)} over the best, {basis}"
    )
    note = f": {found.distance_note}" if found.distance_note else ""
    text = "; ".join(words) + far + note + "."
    return text[0].upper() + text[1:]
