"""What if: the plan of the question, and a picture for every question about it."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app.figures.measured.bands import narrowed_band
from app.pages.answer.headline import show_actions, show_headline
from app.pages.answer.money import limit_words
from app.pages.answer.overflow import show_overflow
from app.pages.answer.pictures import show_pictures
from app.pages.answer.sliders import show_sliders
from app.pages.base.carried import carried
from app.pages.base.choices import require_all_read
from app.pages.base.frame import draw, guarded, is_known, plain, planned_answer, show_error
from app.pages.question.bar import Question, job_question, load_change
from app.pages.question.start import start_from_file
from app.reports.plan_headline import headline
from costmodel.kernels.saved import calibration_for
from costmodel.layout import layout_words
from planner.analysis.first_look import first_look
from planner.plan import Plan, PlanRequest
from planner.search.infeasible import Infeasible, no_plan
from topology.base.units import format_seconds

STANDS = "plan_that_stands"
"""Where the session keeps the plan that it was last shown."""


@guarded
def render() -> None:
    """Draw the page."""
    start_from_file()
    question = job_question()
    require_all_read()
    understood = question.understood()
    answer = planned_with_a_first_look(understood.request)
    if isinstance(answer, Infeasible):
        title, *job = headline(understood.request).split(" · ")
        st.subheader(plain(title), anchor=False)
        st.caption(plain(" · ".join(job)))
        show_infeasible(answer, question)
        return
    baseline = pinned_baseline()
    show_headline(answer, baseline)
    show_narrowed(answer)
    limits = question.limits()
    if words := limit_words(answer, limits):
        st.caption(plain(words))
    show_sliders(answer)
    show_actions(answer, question.typed(), baseline)
    show_pictures(answer, limits)


def planned_with_a_first_look(request: PlanRequest) -> Plan | Infeasible:
    """The answer, and until it is there what the layout that stands makes of the question."""
    known: Plan | None = st.session_state.get(STANDS)
    place = st.empty()
    if known is not None and not is_known(request):
        look = first_look(known, request, calibration_for(request.cluster))
        if look is not None:
            place.info(plain(first_words(look)), icon=":material/hourglass_top:")
    answer = planned_answer(request)
    place.empty()
    st.session_state[STANDS] = answer if isinstance(answer, Plan) else None
    return answer


def first_words(look: Plan) -> str:
    """A first number in words; the best is no slower."""
    estimate, layout = look.estimate, layout_words(look.layout)
    return f"At most {format_seconds(estimate.step_time_s)} a step, with {layout}; looking for the best."


def show_narrowed(plan: Plan) -> None:
    """What steps that were measured do to the band of this plan."""
    level = plan.request.anchor
    without = None if level is None else planned_answer(replace(plan.request, anchor=None))
    if level is None or not isinstance(without, Plan):
        return
    with st.expander("How sure is the step time, with your own runs?", expanded=True):
        draw(narrowed_band(without.estimate, plan.estimate, level.runs), "narrowed")


def pinned_baseline() -> Plan | None:
    """The plan that numbers are compared with, from the URL."""
    requests = carried("baseline", PlanRequest)
    answer = planned_answer(requests[0]) if requests else None
    return answer if isinstance(answer, Plan) else None


def show_infeasible(infeasible: Infeasible, question: Question) -> None:
    """Say why there is no plan, and offer the nearest changes that give one."""
    show_error(no_plan(infeasible))
    show_overflow(infeasible)
    for number, change in enumerate(infeasible.nearest):
        if change.flag and not (question.cluster and change.flag.startswith("--gpu")):
            st.button(
                f"Apply: {change.change}",
                key=f"apply_{number}",
                type="primary" if number == 0 else "secondary",
                on_click=load_change,
                args=(question.flags, change.flag),
                icon=":material/build:",
            )
