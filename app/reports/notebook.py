"""How a notebook shows a plan: the command line's words, and the dashboard's pictures where plotly is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.plan import Plan


def markdown(plan: Plan) -> str:
    """What `plan --format markdown` prints."""
    from app.reports.answer import render
    from app.reports.plan import plan_answer

    return render(plan_answer(plan), "markdown")


def html(plan: Plan) -> str:
    """The same as HTML, under pictures of memory, time and schedule if plotly is installed."""
    from app.reports.html import answer_html
    from app.reports.plan import plan_answer

    return answer_html(plan_answer(plan), pictures=pictures(plan))


def pictures(plan: Plan) -> tuple[str, ...]:
    """Memory of every stage, parts of the step, and the schedule of a pipeline, each as HTML."""
    from importlib.util import find_spec

    if find_spec("plotly") is None:
        return ()
    from app.figures.gantt import schedule_gantt
    from app.figures.memory import memory_bars
    from app.figures.step_time import waterfall
    from app.reports.layout_words import layer_words
    from costmodel.kernels.saved import calibration_for
    from planner.analysis.schedule import schedule_of
    from planner.problem import setting_of

    capacity = setting_of(plan.request).cluster.gpu.memory_bytes
    layers = layer_words(plan.layers_of_stage, plan.layout)
    events = schedule_of(plan, calibration_for(plan.request.cluster))
    figures = [memory_bars(plan.estimate.memory_by_stage, capacity, layers), waterfall(plan.estimate)]
    figures += [schedule_gantt(events)] if events else []
    return tuple(figure.to_html(full_html=False, include_plotlyjs="cdn") for figure in figures)
