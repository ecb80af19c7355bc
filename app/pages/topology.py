"""Topology: the cluster of the question as a graph, its levels, what every axis of the plan gets on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from app.figures.fabric_tree import fabric_tree, unfolds
from app.figures.network import network_map
from app.pages.base.choices import choose, require_all_read, text_box
from app.pages.base.frame import draw, guarded, plain, planned_answer
from app.pages.base.sections import show_answer
from app.pages.question.bar import job_question
from app.reports.topology import parse_layout, topology_answer
from costmodel.layout import ParallelLayout, layout_words
from costmodel.parallel.axes import PARTS
from planner.analysis.link_load import LevelLoad, axis_groups, axis_load, link_load, unloaded_levels
from planner.plan import Plan, PlanRequest
from topology.builders import build
from topology.cluster import Cluster

ORDERS = ("pp-dp-cp-tp", "dp-pp-cp-tp", "pp-cp-dp-tp", "pp-dp-tp-cp", "tp-pp-dp-cp")
THE_PLANS = "as the plan"


@guarded
def render() -> None:
    """Draw the page."""
    request = job_question().understood().request
    left, right = st.columns(2)
    degrees = text_box(
        left, "Layout to look at", "", "topology_layout", placeholder="the plan's; tp=8,pp=4 for another",
        max_chars=60,
    )  # fmt: skip
    order = choose(right, "Axis order, slowest first", (THE_PLANS, *ORDERS), "axis_order")
    require_all_read()
    cluster = build(request.cluster)
    layout, gpu_of_rank, plan, words = _layout(request, cluster, degrees, order)
    answer = topology_answer(cluster, layout)
    st.subheader(plain(answer.headline), anchor=False)
    st.caption(plain(words))
    axes = [axis for axis in PARTS if getattr(layout, axis) > 1]
    chosen = st.segmented_control("Show the groups of", axes, key="topology_axis", bind="query-params")
    axis = str(chosen) if chosen in axes else ""
    groups = axis_groups(layout, axis, gpu_of_rank) if axis else ()
    loads = _loads(cluster, layout, plan, axis)
    if unfolds(cluster, loads):
        draw(fabric_tree(cluster.hierarchy.num_gpus, loads, groups, axis), "topology")
    else:
        draw(network_map(cluster, loads, groups), "topology")
    if axis:
        st.caption(f"Busy is meant while {axis} communicates, and nothing else does.")
    elif any(load.busy for load in loads):
        st.caption("Busy is a share of the plan's step, of all axes together.")
    else:
        st.caption("Choose an axis to see which levels are busy while it communicates.")
    show_answer(replace(answer, headline=""))


def _loads(cluster: Cluster, layout: ParallelLayout, plan: Plan | None, axis: str) -> tuple[LevelLoad, ...]:
    """How busy levels are: while one axis communicates, over the plan's step, or unknown without a plan.

    Links of stages on unlike GPUs differ, so that no level is as busy everywhere.
    """
    h = cluster.hierarchy
    if axis:
        return axis_load(h, layout, axis)
    if plan is None or plan.kind_of_stage:
        return unloaded_levels(h)
    return link_load(h, layout, plan.estimate.time, plan.estimate.step_time_s)


def _layout(
    request: PlanRequest, cluster: Cluster, degrees: str, order: str
) -> tuple[ParallelLayout, Sequence[int], Plan | None, str]:
    """The layout that is looked at, typed or the plan's; GPUs of its ranks; the plan; what it is in words."""
    if not degrees and order == THE_PLANS:
        plan = planned_answer(request)
        if isinstance(plan, Plan):
            return (
                plan.layout,
                plan.mesh.gpu_of_rank,
                plan,
                f"Layout of the plan: {layout_words(plan.layout)}",
            )
    typed = parse_layout(degrees or None, None if order == THE_PLANS else order, cluster.hierarchy)
    whose = "Layout as typed" if degrees else "No plan is drawn: tensor parallelism fills a host"
    return typed, range(typed.num_gpus), None, f"{whose}: {layout_words(typed)}"
