"""For the keyboard and for screen readers: a way past the boxes to the answer, and no names of icons."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

SCRIPT = Path(__file__).with_name("reachable.js").read_text("utf-8")


def make_reachable() -> None:
    """Add what Streamlit's widgets leave out; once a page."""
    st.components.v2.component("meshplan_reachable", js=SCRIPT)(key="reachable", height=0)
