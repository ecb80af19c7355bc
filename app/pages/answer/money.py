"""Time or money: what other kinds and numbers of GPUs make of the job, and which of them keep the limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app.figures.capacity import capacity_map, cell_words
from app.figures.curves import pareto_chart
from app.limits import limits_words
from app.pages.base.frame import answered_quietly, draw, draw_table
from app.pages.question.bar import load_gpus
from planner.analysis.capacity import Cell, Limits, capacity
from planner.analysis.what_if import usual_counts
from planner.campaign.finish import campaign_or_none
from planner.plan import Plan
from topology.hardware.datasheets import offered_gpus

MOST_OF_LARGE = 2048
"""Above this many GPUs, other offers take so long to plan that they are planned when somebody asks."""


def show_money(plan: Plan, limits: Limits) -> None:
    """The map of kinds and numbers, and price against time; a click loads an offer."""
    large = plan.request.cluster.num_gpus > MOST_OF_LARGE
    if large and not st.toggle("Plan every kind and number of GPUs", key="offers", bind="query-params"):
        st.caption("Each takes some seconds to plan at this size.")
        return
    cells = planned_cells(plan)
    spec, job = plan.request.cluster, plan.request.job
    chosen = (spec.nodes[0].gpu, spec.num_gpus)
    whole = "of the whole run, failures included: half of all runs take less"
    if job.total_tokens is None:
        whole = "of a step: say how many tokens to train for the whole run"
    st.caption(f"Time and money {whole}.")
    draw(capacity_map(cells, chosen, limits), "capacity")
    draw_table(capacity_columns(cells, limits), alt="Time and money of every kind and number of GPUs")
    offers = [cell.offer for cell in cells if cell.offer is not None]
    if not offers:
        return
    kept = limits if job.total_tokens else Limits()
    figure = pareto_chart(offers, chosen, kept.deadline_s, kept.budget_usd)
    clicked: Any = draw(figure, "pareto", on_select="rerun", selection_mode="points")
    picked = [point["customdata"] for point in clicked["selection"]["points"] if point.get("customdata")]
    if picked:
        gpu, count = str(picked[0][0]), int(picked[0][1])
        st.button(
            f"Load {count} × {gpu}", on_click=load_gpus, args=(gpu, count), type="primary",
            icon=":material/input:",
        )  # fmt: skip
    else:
        st.caption("A mark is a kind and a number of GPUs. Click one to load it.")


def capacity_columns(cells: Sequence[Cell], limits: Limits) -> dict[str, list[str]]:
    """The map as a table."""
    kinds = list(dict.fromkeys(cell.gpu for cell in cells))
    result = {(c.gpu, c.num_gpus): cell_words(c, limits).replace("<br>", " · ") for c in cells}
    return {"GPU": kinds} | {
        f"{count:,} GPUs": [result[kind, count] for kind in kinds]
        for count in sorted({cell.num_gpus for cell in cells})
    }


def planned_cells(plan: Plan) -> list[Cell]:
    """Every kind and number, planned one after the other; says how far it is."""
    counts = usual_counts(plan.request)
    number = len({plan.request.cluster.nodes[0].gpu, *offered_gpus()}) * len(counts)
    bar, cells = st.empty(), []
    for cell in capacity(plan.request, offered_gpus(), counts, answered_quietly):
        cells.append(cell)
        text = f"Planned {cell.num_gpus:,} × {cell.gpu}, {len(cells)} of {number}"
        bar.progress(len(cells) / number, text=text)
    bar.empty()
    return cells


def limit_words(plan: Plan, limits: Limits) -> str:
    """The chances that a plan keeps its limits, failures included, in words; empty where there are none.

    >>> limit_words(None, Limits())  # type: ignore[arg-type]
    ''
    """
    if limits == Limits() or plan.request.job.total_tokens is None:
        return ""
    run = campaign_or_none(plan)
    return NOT_JUDGED if run is None else " ".join(limits_words(run, limits))


NOT_JUDGED = "Limits are not judged: failures leave this run no headway."
