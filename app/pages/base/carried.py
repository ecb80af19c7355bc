"""State that no widget holds: specs, plans to compare, the baseline; kept in the URL across pages."""

from __future__ import annotations

from typing import TypeVar

import streamlit as st

from app.requests.links import pack, unpack

T = TypeVar("T")

MOST_COMPARED = 3


def carried(name: str, as_type: type[T]) -> list[T]:
    """Specs kept under a name: from the URL, else from this session; kept in both."""
    texts = st.query_params.get_all(name) or list(st.session_state.get(f"carried_{name}", ()))
    specs = [unpack(text, as_type) for text in texts[:MOST_COMPARED]]
    if texts:
        _keep(name, texts[:MOST_COMPARED])
    return specs


def carry(name: str, *specs: object) -> None:
    """Keep specs under a name, in place of what was there; none forgets them."""
    _keep(name, [pack(spec) for spec in specs])


def add(name: str, spec: object) -> None:
    """Keep one more spec; the oldest leaves when there are too many."""
    texts = [*st.session_state.get(f"carried_{name}", st.query_params.get_all(name)), pack(spec)]
    _keep(name, list(dict.fromkeys(texts))[-MOST_COMPARED:])


def held_text(name: str) -> str:
    """The text of the one spec kept under a name; empty without one."""
    texts = st.session_state.get(f"carried_{name}", ())
    return str(texts[0]) if texts else ""


def hold(name: str, text: str | None) -> None:
    """Keep a spec by its text, which is read when it is needed; None forgets it."""
    _keep(name, [text] if text else [])


def _keep(name: str, texts: list[str]) -> None:
    """Write texts to the session and, when they differ, to the URL."""
    st.session_state[f"carried_{name}"] = texts
    if not texts:
        st.query_params.pop(name, None)
    elif st.query_params.get_all(name) != texts:
        st.query_params[name] = texts
