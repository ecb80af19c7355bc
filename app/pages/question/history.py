"""Undo, redo, what was asked before and named questions: kept in the browser, asked again here.

The question is that of the URL, so a step back is the question as it stood, on whatever page. What a browser
sends is not trusted: names that are no part of the question are dropped, values go the way of a link's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from app.pages.base.carried import held_text, hold
from app.pages.base.choices import QUESTION, is_refused, labels, question_now, recall_question
from app.requests.links import MOST_PACKED_CHARACTERS

SPECS = ("model_spec", "cluster_spec", "anchor_spec")
KEY, SERIAL = "history", "history_serial"
PARTS = {
    kind: Path(__file__).with_name(f"history.{kind}").read_text("utf-8") for kind in ("html", "css", "js")
}


def show_history(title: str) -> None:
    """Draw the buttons, and tell the browser what is asked now; a refused question is not kept.

    Args:
        title: The question in a few words.
    """
    now = (
        None
        if is_refused()
        else question_now() | {name: held_text(name) for name in SPECS if held_text(name)}
    )
    component = st.components.v2.component("meshplan_history", **PARTS)
    component(
        key=KEY,
        data={"question": now, "labels": labels(), "title": title, "serial": st.session_state.get(SERIAL, 0)},
        on_recalled_change=_recall_question,
    )


def _recall_question() -> None:
    """Ask what the browser kept."""
    value = st.session_state[KEY].get("recalled")
    if not isinstance(value, Mapping):
        return
    serial, question = value.get("serial"), trusted(value.get("question"))
    st.session_state[SERIAL] = serial if isinstance(serial, int) else 0
    recall_question({name: text for name, text in question.items() if name in QUESTION})
    for name in SPECS:
        hold(name, question.get(name))


def trusted(values: Any) -> dict[str, str]:
    """What of a browser's answer can be a question: its names, with texts as long as a link may have.

    >>> trusted({"gpus": "64", "path": "/etc/passwd", "tp": 8})
    {'gpus': '64'}
    """
    if not isinstance(values, Mapping):
        return {}
    return {
        name: values[name]
        for name in (*QUESTION, *SPECS)
        if isinstance(values.get(name), str) and len(values[name]) <= MOST_PACKED_CHARACTERS
    }
