"""How a notebook shows a plan: the command line's words, and the dashboard's pictures where plotly is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.reports.answer import Answer, Section
    from planner.plan import Plan


def markdown(plan: Plan) -> str:
    """What `plan --format markdown` prints."""
    from app.reports.answer import render
    from app.reports.plan import plan_answer

    return render(plan_answer(plan), "markdown")


def html(plan: Plan) -> str:
    """The same as HTML, under pictures of memory, time and schedule if plotly is installed."""
    from app.reports.plan import plan_answer

    return answer_html(plan_answer(plan), pictures=pictures(plan))


def pictures(plan: Plan) -> tuple[str, ...]:
    """Memory of every stage, parts of the step, and the schedule of a pipeline, each as HTML."""
    from importlib.util import find_spec

    if find_spec("plotly") is None:
        return ()
    from app.figures.memory import estimate_bars
    from app.figures.schedule.gantt import schedule_gantt
    from app.figures.step_time import waterfall
    from app.reports.layout_words import layer_words
    from costmodel.kernels.saved import calibration_for
    from planner.analysis.schedule import schedule_of
    from planner.pricing import capacity_of_fullest

    capacity = capacity_of_fullest(plan)
    layers = layer_words(plan.layers_of_stage, plan.layout)
    events = schedule_of(plan, calibration_for(plan.request.cluster))
    figures = [estimate_bars(plan.estimate, capacity, layers), waterfall(plan.estimate)]
    figures += [schedule_gantt(events)] if events else []
    return tuple(figure.to_html(full_html=False, include_plotlyjs="cdn") for figure in figures)


def answer_html(answer: Answer, pictures: Sequence[str] = ()) -> str:
    """Headline, pictures, then every section; pictures are HTML already, everything else is escaped."""
    parts = [f"<h3>{escape(answer.headline)}</h3>", *pictures]
    for section in answer.sections:
        parts += [f"<h4>{escape(section.title)}</h4>"] if section.title else []
        parts.append(_section(section))
    return "<div>" + "\n".join(parts) + "</div>"


def _section(section: Section) -> str:
    """One section's body."""
    from app.reports.answer import Facts, Table, html_list

    if isinstance(section, Facts):
        return _table(("", ""), section.pairs, "ll")
    if isinstance(section, Table):
        align = section.align or "l" + "r" * (len(section.columns) - 1)
        note = f"<p><small>{escape(section.note)}</small></p>" if section.note else ""
        return _table(section.columns, section.rows, align) + note
    return html_list(section)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """A table; columns without any title have no head.

    >>> _table(("", ""), [("MFU", "50 %")], "lr")
    '<table><tr><td>MFU</td><td style="text-align: right">50 %</td></tr></table>'
    """
    head = [_row("th", columns, align)] if any(columns) else []
    return "<table>" + "".join([*head, *(_row("td", row, align) for row in rows)]) + "</table>"


def _row(tag: str, cells: Sequence[str], align: str) -> str:
    """One row of cells, numbers to the right."""
    styles = [' style="text-align: right"' if side == "r" else "" for side in align]
    drawn = (f"<{tag}{style}>{escape(cell)}</{tag}>" for cell, style in zip(cells, styles, strict=True))
    return f"<tr>{''.join(drawn)}</tr>"
