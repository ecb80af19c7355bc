"""Topology: a cluster as a graph, its levels and bandwidths, and what every order of the axes gets on it."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app.figures.network import network_map
from app.pages.answer import show_answer
from app.pages.frame import draw, guarded, plain
from app.pages.sidebar import ask_cluster
from app.reports.topology import parse_layout, topology_answer
from planner.analysis.link_load import idle_levels
from topology.builders import build

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
    draw(network_map(cluster, idle_levels(cluster.hierarchy)), "topology")
    show_answer(replace(answer, headline=""))
