"""Topology: the cluster of the question as a graph, its levels, what every axis of the plan gets on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import streamlit as st

from app.figures.fabric_tree import fabric_tree, unfolds
from app.figures.network import network_map
from app.pages.base.choices import choose, require_all_read, write
from app.pages.base.frame import draw, guarded, plain, planned
from app.pages.base.sections import show_answer
from app.pages.question.sidebar import ask_job
from app.reports.topology import parse_layout, topology_answer
from costmodel.layout import ParallelLayout, layout_words
from costmodel.parallel.axes import RANK_AXES
from planner.analysis.link_load import axis_load, idle_levels
from planner.plan import Plan, PlanRequest
from topology.builders import build
from topology.cluster import Cluster
from topology.fabric.mesh import mesh

Groups = Callable[[str], tuple[tuple[int, ...], ...]]

ORDERS = ("pp-dp-cp-tp", "dp-pp-cp-tp", "pp-cp-dp-tp", "pp-dp-tp-cp", "tp-pp-dp-cp")
THE_PLANS = "as the plan"


@guarded
def render() -> None:
    """Draw the page."""
    with st.sidebar:
        st.markdown("**Layout to look at**")
        degrees = write(
            st, "Layout", "", "topology_layout", placeholder="the plan's; tp=8,pp=4 for another", max_chars=60
        )
        order = choose(st, "Axis order, slowest first", (THE_PLANS, *ORDERS), "axis_order")
    request = ask_job().understood().request
    require_all_read()
    cluster = build(request.cluster)
    layout, groups_of, words = _layout(request, cluster, degrees, order)
    answer = topology_answer(cluster, layout)
    st.subheader(plain(answer.headline), anchor=False)
    st.caption(plain(words))
    axes = [axis for axis in RANK_AXES if getattr(layout, axis) > 1]
    axis = st.segmented_control("Show the groups of", axes, key="topology_axis", bind="query-params")
    h = cluster.hierarchy
    groups = groups_of(str(axis)) if axis in axes else ()
    loads = axis_load(h, layout, str(axis)) if axis in axes else idle_levels(h)
    if unfolds(cluster, loads):
        draw(fabric_tree(cluster.hierarchy.num_gpus, loads, groups, str(axis or "")), "topology")
    else:
        draw(network_map(cluster, loads, groups), "topology")
    if axis in axes:
        st.caption(f"Busy is meant while {axis} communicates, and nothing else does.")
    show_answer(replace(answer, headline=""))


def _layout(
    request: PlanRequest, cluster: Cluster, degrees: str, order: str
) -> tuple[ParallelLayout, Groups, str]:
    """The layout that is looked at: what was typed, else the plan's; its groups; what it is, in words."""
    if not degrees and order == THE_PLANS:
        plan = planned(request)
        if isinstance(plan, Plan):
            return plan.layout, plan.mesh.groups, f"Layout of the plan: {layout_words(plan.layout)}"
    typed = parse_layout(degrees or None, None if order == THE_PLANS else order, cluster.hierarchy)
    axes = [(name, int(getattr(typed, name))) for name in typed.axis_order]
    whose = "Layout as typed" if degrees else "No plan is drawn: tensor parallelism fills a host"
    return typed, mesh(axes).groups, f"{whose}: {layout_words(typed)}"
