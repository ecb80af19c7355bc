"""What does it take, what should it take? A job as it runs beside changes of its files and the best plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.figures.step_time import PART_LABELS, waterfall_parts
from app.figures.style import GREY, PART_COLOURS, SKY, TOTAL_COLOUR, figure
from app.quantities import format_over_best
from topology.base.units import format_seconds, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from costmodel.estimate import Estimate
    from planner.audit.audit import Audit

MEASURED, RUNS, BEST = "measured", "as it runs", "the best plan"


def run_beside_best(audit: Audit) -> go.Figure:
    """Draw the parts of the step as the files have it and of the best plan, and what was measured.

    Args:
        audit: An audit with a prediction.
    """
    import plotly.graph_objects as go

    estimates: dict[str, Estimate] = {}
    if audit.predicted is not None:
        estimates[RUNS] = audit.predicted
    if audit.best is not None:
        estimates[BEST] = audit.best.estimate
    measured_s = audit.measured_step_s
    names = [*([MEASURED] if measured_s else []), *estimates]
    longest_s = max([measured_s or 0.0, *(estimate.upper_s for estimate in estimates.values())])
    factor, unit = time_unit(longest_s)
    picture = figure(
        _reading(audit), height=150 + 44 * len(names), barmode="stack",
        xaxis={"title": f"step, {unit}", "range": [0, 1.12 * longest_s / factor]},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False,
               "categoryorder": "array", "categoryarray": names},
    )  # fmt: skip
    if measured_s:
        picture.add_trace(_bar("measured", [MEASURED], [measured_s], factor, TOTAL_COLOUR))
    for part, label in PART_LABELS.items():
        values = [waterfall_parts(estimate.time).get(part, 0.0) for estimate in estimates.values()]
        if any(values):
            picture.add_trace(_bar(label, list(estimates), values, factor, PART_COLOURS[part]))
    bands = list(estimates.values())
    picture.add_trace(
        go.Scatter(
            x=[band.step_time_s / factor for band in bands], y=list(estimates), mode="markers",
            name="80 % band",
            marker={"size": 1, "color": SKY}, hoverinfo="skip",
            error_x={"type": "data", "symmetric": False, "color": GREY, "thickness": 1.5, "width": 6,
                     "array": [(band.upper_s - band.step_time_s) / factor for band in bands],
                     "arrayminus": [(band.step_time_s - band.lower_s) / factor for band in bands]},
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


def _reading(audit: Audit) -> str:
    """Say how far the job is from the best."""
    words = []
    if audit.measured_step_s:
        words.append(f"A step was measured at {format_seconds(audit.measured_step_s)}")
    if audit.predicted is not None:
        words.append(f"as its files have it, it should take {format_seconds(audit.predicted.step_time_s)}")
    if audit.best is not None:
        words.append(f"the best plan {format_seconds(audit.best.estimate.step_time_s)}")
    basis = "measured against predicted" if audit.basis == "measured" else "both predicted"
    far = (
        "" if audit.slower_by is None or audit.is_best else f": {format_over_best(audit.slower_by)}, {basis}"
    )
    note = f": {audit.distance_note}" if audit.distance_note else ""
    text = "; ".join(words) + far + note + "."
    return text[0].upper() + text[1:]
