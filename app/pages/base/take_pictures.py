"""Every picture of a page as SVG or PNG: made in the browser, of what stands there."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

KINDS = ("html", "css", "js")
PARTS = {kind: Path(__file__).with_name(f"take_pictures.{kind}").read_text("utf-8") for kind in KINDS}


def offer_pictures() -> None:
    """Draw the choice of a picture and its two forms."""
    st.components.v2.component("meshplan_take_pictures", **PARTS)(key="take_pictures")
