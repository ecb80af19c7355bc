"""Compare: two or three plans side by side, added on the first page, uploaded, or from a shared URL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from app.analysis.plan_diff import diff_answer
from app.figures.memory import estimate_bars
from app.figures.network import network_map
from app.figures.step_time import waterfalls
from app.limits import kept_words
from app.pages.base.carried import MOST_COMPARED, carried, carry
from app.pages.base.fit_colours import fit_tint
from app.pages.base.frame import columns_of, draw, draw_table, guarded, plain, planned_answer
from app.pages.base.sections import show_section
from app.pages.question.bar import DEFAULT_GPUS, DEFAULT_MODEL
from app.quantities import format_percent, format_sum, format_usd
from app.reports.answer import Section, Table
from app.reports.layout_words import UNLIKE, layer_words
from app.reports.plan_headline import cluster_of, headline_of, money_text
from app.requests.upload_sizes import MOST_UPLOAD_MIB
from app.requests.uploads import read_plan_upload
from costmodel.layout import layout_words
from costmodel.memory.fit import fit_text
from planner.analysis.link_load import link_load
from planner.campaign.finish import campaign_or_none
from planner.plan import Plan, PlanRequest
from planner.pricing import capacity_of_fullest
from planner.questions.flags import Flags
from planner.questions.training import understand
from topology.base.units import format_bytes, format_seconds, three_digits

NAMES = ("A", "B", "C")


@guarded
def render() -> None:
    """Draw the page."""
    st.subheader("Plans side by side", anchor=False)
    plans = plans_to_compare()
    if len(plans) < 2:
        st.info(
            f"{len(plans)} of 2 plans. Add plans on the first page, or upload files written by plan --json."
        )
        st.button("Show an example: bf16 beside fp8", on_click=carry, args=("with", *example_requests()))
        return
    show_summary(plans)
    names = NAMES[: len(plans)]
    draw(waterfalls(list(zip(names, plans, strict=True))), "compare_time")
    for column, name, plan in zip(st.columns(len(plans)), names, plans, strict=True):
        with column:
            show_plan(name, plan)
    for name, plan in zip(names[1:], plans[1:], strict=True):
        st.divider()
        st.subheader(f"{name} against {names[0]}", anchor=False)
        for section in diff_answer(plans[0], plan, "A", name).sections:
            show_section(under_name(section, name))


def under_name(section: Section, name: str) -> Section:
    """Head the second plan's column with its letter on this page."""
    if not isinstance(section, Table):
        return section
    heads = tuple(name if head == "B" else head for head in section.columns)
    return replace(section, columns=heads)


def plans_to_compare() -> list[Plan]:
    """Plans that were added, and plans that were uploaded."""
    requests = carried("with", PlanRequest)
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    files = left.file_uploader(
        "plan.json files",
        type="json",
        accept_multiple_files=True,
        key="plan_files",
        max_upload_size=MOST_UPLOAD_MIB,
    )
    right.button(
        "Forget the added plans", on_click=carry, args=("with",), disabled=not requests, width="stretch"
    )
    answers = [planned_answer(request) for request in requests]
    plans = [plan for plan in answers if isinstance(plan, Plan)]
    accept = bool(files) and st.checkbox(
        "Estimate plans anew whose numbers are others here", key="accept_changes"
    )
    changes: list[str] = []
    plans += [
        read_plan_upload(file.name, file.getvalue(), accept_changes=accept, say=changes.append)
        for file in files
    ]
    if changes:
        st.warning(plain("; ".join(changes)))
    return plans[:MOST_COMPARED]


def example_requests() -> tuple[PlanRequest, ...]:
    """The usual question in two precisions."""
    usual = Flags(model=DEFAULT_MODEL, gpus=DEFAULT_GPUS, tokens="1T")
    return tuple(understand(replace(usual, precision=name)).request for name in ("bf16", "fp8"))


def show_summary(plans: Sequence[Plan]) -> None:
    """The numbers that decide, one row a plan: money of the run, or where none ends, of a billion tokens."""
    jobs = [plan.request.job for plan in plans]
    ends, dated = any(job.total_tokens for job in jobs), any(job.deadline_s is not None for job in jobs)
    rows = [
        {
            "": name,
            "model": plan.request.model.name,
            "GPUs": headline_of(plan).split(" on ")[-1].split(" · ")[0],
            "layout": layout_words(plan.layout),
            "step time": format_seconds(plan.estimate.step_time_s),
            "tokens/s/GPU": f"{plan.estimate.tokens_per_s_per_gpu:,.0f}",
            "MFU": format_percent(plan.estimate.mfu),
            "peak memory": format_bytes(plan.estimate.peak_memory_bytes),
            "memory": fit_text(plan.estimate.out_of_memory_chance),
            **(run_cells(plan, dated=dated) if ends else step_cells(plan)),
        }
        for name, plan in zip(NAMES, plans, strict=False)
    ]
    tints = [fit_tint(plan.estimate.out_of_memory_chance) for plan in plans]
    draw_table(columns_of(rows), alt="Headline numbers of the plans", tints={"memory": tints})


def step_cells(plan: Plan) -> dict[str, str]:
    """Dollars of a plan whose run has no end."""
    return {"$ per B tokens, steps alone": format_usd(plan.estimate.usd_per_billion_tokens)}


def run_cells(plan: Plan, *, dated: bool) -> dict[str, str]:
    """Days and dollars of the whole run, failures included; where one is `dated`, its deadline's chance."""
    run = campaign_or_none(plan)
    chance = None if run is None else run.deadline_chance
    cells = {
        "days": "–" if run is None else three_digits(run.days.p50),
        "$ of the run": "–" if run is None or run.usd is None else format_sum(run.usd.p50),
    }
    return cells | ({"deadline": "–" if chance is None else kept_words(chance)} if dated else {})


def show_plan(name: str, plan: Plan) -> None:
    """Memory, links and money of one plan."""
    st.markdown(f"#### {name}")
    st.caption(plain(headline_of(plan)))
    if plan.kind_of_stage:
        st.info(f"Not drawn: {UNLIKE}.")
        return
    cluster = cluster_of(plan.request)
    layers = layer_words(plan.layers_of_stage, plan.layout)
    capacity = capacity_of_fullest(plan)
    draw(estimate_bars(plan.estimate, capacity, layers), f"memory_{name}")
    loads = link_load(cluster.hierarchy, plan.layout, plan.estimate.time, plan.estimate.step_time_s)
    draw(network_map(cluster, loads), f"network_{name}")
    st.caption(plain(money_text(plan.request, plan.estimate)))
