"""Campaign: the run of the question's plan to its last token, with what fails on the way."""

from __future__ import annotations

from typing import Final

import streamlit as st

from app.figures.campaign import finish_frontier, run_timeline, useful_heat
from app.pages.answer.money import limit_words
from app.pages.base.choices import choose, require_all_read
from app.pages.base.frame import (
    MOST_CACHED_PLANS,
    asked,
    columns_of,
    draw,
    draw_table,
    finished_or_none,
    guarded,
    plain,
    planned_answer,
    request_key,
    show_error,
)
from app.pages.base.sections import show_section
from app.pages.question.bar import job_question
from app.quantities import format_number, format_percent, format_sum
from app.reports.campaign.sections import campaign_sections, spares_paid
from app.reports.plan_headline import headline_of, run_s
from costmodel.campaign.course import Course
from costmodel.campaign.record import Band, Campaign
from costmodel.layout import layout_words
from planner.analysis.campaign.run_to_end import (
    Finish,
    Moment,
    UsefulMap,
    course_of_plan,
    finishes,
    one_run,
    useful_map,
)
from planner.analysis.what_if import VARIATIONS, scale_values
from planner.campaign.finish import with_campaign
from planner.plan import Plan
from planner.search.infeasible import Infeasible, no_plan
from topology.base.units import format_seconds, three_digits

NO_JUDGEMENT: Final = "off"
"""The colour of a band: neither good nor bad."""
RUNS = ("1", "2", "3", "4", "5")
USEFUL_NOTE = "Share of the clock in which steps count, in the median."


@guarded
def render() -> None:
    """Draw the page."""
    question = job_question()
    require_all_read()
    request = question.understood().request
    answer = planned_answer(request)
    if isinstance(answer, Infeasible):
        show_error(no_plan(answer))
        return
    if request.job.total_tokens is None:
        st.info("Say above how many tokens to train.")
        return
    plan = finished_on_page(answer)
    title, *job = headline_of(plan).split(" · ")
    st.subheader(plain(f"{title}, to the last token"), anchor=False)
    st.caption(plain(" · ".join((layout_words(plan.layout), *job))))
    if plan.campaign is not None:
        show_numbers(plan.campaign)
        if words := limit_words(plan, question.limits()):
            st.caption(plain(words))
        show_campaign_pictures(plan)
        for section in campaign_sections(plan.campaign, run_s(plan.request, plan.estimate)):
            show_section(section)


def finished_on_page(plan: Plan) -> Plan:
    """The plan with its campaign, which was simulated where it was searched; refused where it has none."""
    return with_campaign(plan) if plan.campaign is None else plan


@st.cache_resource(max_entries=MOST_CACHED_PLANS, show_spinner="Following one run")  # type: ignore[untyped-decorator]
def followed_run(key: str, seed: int, _course: Course) -> tuple[Moment, ...]:  # noqa: ARG001 - the key is what is cached by
    """One simulated run of a course."""
    return asked(one_run, _course, seed)


def show_numbers(campaign: Campaign) -> None:
    """The six numbers that a run comes to; bands from the tenth to the ninetieth percentile."""
    share = campaign.useful_share
    usd = campaign.usd
    bill = "" if usd is None else f"{format_sum(usd.p10)} – {format_sum(usd.p90)}"
    useful = f"{format_percent(share.p10)} – {format_percent(share.p90)}"
    values = (
        ("Days", three_digits(campaign.days.p50), _span(campaign.days), band_in_words(campaign.days)),
        (
            "Dollars", "–" if usd is None else format_sum(usd.p50), bill, _dollars(usd),
        ),
        ("Useful", format_percent(share.p50), useful, USEFUL_NOTE),
        (
            "Interruptions", f"{campaign.interruptions.p50:,.0f}", _span(campaign.interruptions),
            band_in_words(campaign.interruptions),
        ),
        ("Saved every", format_seconds(campaign.checkpoint_interval_s), "", "Of work, not of the clock."),
        ("Spare nodes", f"{campaign.spare_nodes:,}", "", f"Waiting beside the run; {spares_paid(campaign)}."),
    )  # fmt: skip
    row = st.container(key="numbers")
    for column, (label, text, band, note) in zip(row.columns(len(values), gap="small"), values, strict=True):
        column.metric(
            label, text, band or None, delta_color=NO_JUDGEMENT, delta_arrow="off", help=note, border=True,
            height="stretch",
        )  # fmt: skip


def _span(band: Band) -> str:
    """Both ends of a band."""
    return f"{format_number(band.p10)} – {format_number(band.p90)}"


def band_in_words(band: Band) -> str:
    """A band in words."""
    return f"The median; eight runs of ten are between {three_digits(band.p10)} and {three_digits(band.p90)}."


def _dollars(band: Band | None) -> str:
    """The band of the bill."""
    if band is None:
        return "No price is known for this GPU: set one under More."
    return f"The median; eight runs of ten are between {format_sum(band.p10)} and {format_sum(band.p90)}."


def show_campaign_pictures(plan: Plan) -> None:
    """How often to save and how many spares, one run with its failures, and other numbers of GPUs."""
    course, key = course_of_plan(plan), request_key(plan.request)
    st.markdown("#### How often to save, how many spares?")
    draw(useful_heat(intervals_and_spares(key, course)), "useful")
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("#### What does a run look like?")
        seed = int(choose(st, "Simulated run", RUNS, "campaign_run", width=200))
        require_all_read()
        draw(run_timeline(followed_run(key, seed, course), course.work_s), "run")
    with right:
        st.markdown("#### Sooner or cheaper?")
        show_frontier(plan)


@st.cache_resource(max_entries=MOST_CACHED_PLANS, show_spinner="Trying intervals and spares")  # type: ignore[untyped-decorator]
def intervals_and_spares(key: str, _course: Course) -> UsefulMap:  # noqa: ARG001 - the key is what is cached by
    """The map of intervals and spares; computed once per question."""
    return asked(useful_map, _course)


@st.fragment  # type: ignore[untyped-decorator]  # streamlit has no types here
@guarded
def show_frontier(plan: Plan) -> None:
    """Dollars against days over numbers of GPUs; planned only when asked for, since each is a search."""
    request = plan.request
    if not st.toggle("Plan other numbers of GPUs", key="frontier", bind="query-params"):
        st.caption("A quarter, half and twice as many GPUs: each is planned and run to its end.")
        return
    counts = scale_values(request, VARIATIONS[0])[:-1]
    with st.spinner("Running every number to its end", show_time=True):
        values = list(finishes(request, counts, finished_or_none, finished_on_page))
    draw(finish_frontier(values, request.cluster.num_gpus, request.job.deadline_s), "finish_frontier")
    draw_table(columns_of([finish_row(finish) for finish in values]), alt="The run on other numbers of GPUs")


def finish_row(finish: Finish) -> dict[str, str]:
    """One number of GPUs as a row."""
    return {
        "GPUs": f"{finish.num_gpus:,}",
        "layout": finish.layout,
        "days": f"{three_digits(finish.days.p10)} – {three_digits(finish.days.p90)}",
        "dollars": "–"
        if finish.usd is None
        else f"{format_sum(finish.usd.p10)} – {format_sum(finish.usd.p90)}",
        "useful": format_percent(finish.useful_share),
    }
