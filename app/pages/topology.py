"""Topology: a cluster as a graph, its levels and bandwidths, and what every order of the axes gets on it."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app.figures.network import network_map
from app.pages.answer import show_answer
from app.pages.frame import draw, guarded, plain
from app.pages.sidebar import ask_cluster
from app.reports.topology import parse_layout, topology_answer
from costmodel.parallel.axes import RANK_AXES
from planner.analysis.link_load import axis_load, idle_levels
from topology.builders import build
from topology.fabric.mesh import mesh

ORDERS = ("pp-dp-cp-tp", "dp-pp-cp-tp", "pp-cp-dp-tp", "pp-dp-tp-cp", "tp-pp-dp-cp")


@guarded
def render() -> None:
    """Draw the page."""
    with st.sidebar:
        spec = ask_cluster()
        degrees = st.text_input(
            "Layout", "", placeholder="tp=8,pp=4", key="topology_layout", bind="query-params", max_chars=60
        )
        order = st.selectbox("Axis order, slowest first", ORDERS, key="axis_order", bind="query-params")
    cluster = build(spec)
    layout = parse_layout(degrees or None, str(order), cluster.hierarchy)
    answer = topology_answer(cluster, layout)
    st.subheader(plain(answer.headline), anchor=False)
    axes = [axis for axis in RANK_AXES if getattr(layout, axis) > 1]
    axis = st.segmented_control("Show the groups of", axes, key="topology_axis", bind="query-params")
    h, order_of_axes = cluster.hierarchy, [(name, int(getattr(layout, name))) for name in layout.axis_order]
    groups = mesh(order_of_axes).groups(str(axis)) if axis in axes else ()
    loads = axis_load(h, layout, str(axis)) if axis in axes else idle_levels(h)
    draw(network_map(cluster, loads, groups), "topology")
    show_answer(replace(answer, headline=""))
