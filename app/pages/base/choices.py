"""Widgets of the question: bound to the URL, the same on every page, strict about what a link says.

A link may say what no widget lists: a name in short (`model=405b`), a name of another version, a word that
no page reads. The first is understood, the others are refused in three lines until somebody chooses; what was
asked is never dropped for a default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from topology.base.errors import InputError, shown
from topology.base.names import resolve, suggest

KEPT, REFUSED, READ, SHORT = "question", "refused", "link_was_read", "short_names"
VISIT, USUAL, RECALLED = "visit", "usual", "recalled_question"
"""What the session remembers of the question and of its link."""
QUESTION = (
    "model", "cluster", "gpu", "gpus", "sequence_length", "global_batch_size", "precision", "tokens", "stack",
    "memory_headroom", "anchor", "objective", "deadline", "budget", "per_node", "nic", "price",
    "oversubscription",
    "tp", "pp", "dp", "cp", "ep", "expert_tp", "virtual_stages", "microbatch_size", "zero_stage", "recompute",
    "schedule", "set", "engine", "adapter", "offload", "recompute_modules", "without", "degraded",
)  # fmt: skip
"""What the widgets of the question bind: a step back sets these."""
PARAMETERS = (
    *QUESTION, "picture", "axis", "vary", "outcome", "topology_axis", "topology_layout",
    "axis_order", "by", "serve_gpus", "input", "output", "ttft", "tpot", "percentile", "weights", "rate",
    "serve_engine", "serve_adapter", "adapters",
    "curve", "campaign_run", "frontier", "offers", "stretch", "run_name", "audit_env", "audit_load",
    "lane_rank", "trace_rank",
)  # fmt: skip
"""What the widgets of any page bind; a test finds them in the pages."""
CARRIED = ("baseline", "with", "model_spec", "cluster_spec", "anchor_spec")
"""What the URL carries without a widget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a value of the link is not taken, and what its widget shows instead once it is drawn."""

    error: InputError
    instead: str | None = None


def choose(
    where: Any,
    label: str,
    options: Sequence[str],
    key: str,
    *,
    default: str | None = None,
    aliases: Mapping[str, str] | None = None,
    free: bool = False,
    **how: Any,
) -> str:
    """Draw a select box for one word of the question, and read it.

    Args:
        where: What it is drawn in.
        label: What stands above it.
        options: What it lists.
        key: Its name in the URL.
        default: The option chosen at first; the first one if nothing is said.
        aliases: Short names and what each means.
        free: Whether anything else may be typed as well; the planner refuses what is wrong with it.
        how: Further arguments of the select box.
    """
    usual = options[0] if default is None else default
    _answer_recall(key, usual, label, None if free else options)
    short = {} if free else _short_names(key, options, label, aliases)
    listed = [*options, *short]
    _seed(key, usual, None if free else options)
    how |= {"index": listed.index(usual), "accept_new_options": free}
    value = str(where.selectbox(label, listed, key=key, bind="query-params", **how))
    return _keep(key, short.get(value, value))


def text_box(where: Any, label: str, default: str, key: str, **how: Any) -> str:
    """Draw a box for text that is part of the question, and read it."""
    _answer_recall(key, default, label, None)
    _seed(key, default, None)
    return _keep(key, str(where.text_input(label, default, key=key, bind="query-params", **how)))


def require_all_read() -> None:
    """Refuse what a link says that nothing here reads, until somebody chooses otherwise.

    Raises:
        InputError: A value that no widget lists, or a word that no page reads; with the nearest.
    """
    _read_words()
    for refusal in _refused().values():
        st.button("Answer what the boxes show", on_click=_forget, icon=":material/check:", type="primary")
        raise refusal.error


def question_now() -> dict[str, str]:
    """The question as it stands, by name in the URL, usual values too: it means the same later."""
    kept: dict[str, str] = st.session_state.get(KEPT, {})
    return {key: kept[key] for key in QUESTION if key in kept}


def labels() -> dict[str, str]:
    """What stands above every box of the question that was drawn, by name in the URL."""
    return {key: label for key, (_, label) in st.session_state.get(USUAL, {}).items() if key in QUESTION}


def is_refused() -> bool:
    """Whether a value of the link is not taken."""
    return bool(_refused())


def recall_question(question: Mapping[str, str]) -> None:
    """Ask a question that was asked before, at the next drawing; what it does not say is as usual."""
    _refused().clear()
    usual = {key: default for key, (default, _) in st.session_state.get(USUAL, {}).items() if key in QUESTION}
    st.session_state[RECALLED] = usual | {key: text for key, text in question.items() if key in QUESTION}


def recall_is_over() -> None:
    """Leave what of a recalled question has no box here."""
    for key, value in st.session_state.pop(RECALLED, {}).items():
        st.session_state.setdefault(KEPT, {})[key] = value


def _answer_recall(key: str, usual: str, label: str, options: Sequence[str] | None) -> None:
    """Set a box to what is recalled for it; what it does not list is refused as a link's word is."""
    st.session_state.setdefault(USUAL, {})[key] = (usual, label)
    value = st.session_state.get(RECALLED, {}).pop(key, None)
    if value is None:
        return
    try:
        st.session_state[key] = value if options is None else resolve(value, options, label.lower())
    except InputError as error:
        _refused()[key] = Refusal(error=error)


def _read_words() -> None:
    """Look, once a session, for words of the link that nothing reads."""
    if st.session_state.setdefault(READ, False):
        return
    st.session_state[READ] = True
    known = (*PARAMETERS, *CARRIED)
    for word in st.query_params:
        if word not in known:
            close = suggest(word, known, 2)
            error = InputError(
                what=f"the link asks for {shown(word)}, which no page reads",
                cause="its value would be dropped, and another question answered",
                fix=f"did you mean {' or '.join(close)}?" if close else "open the link in full",
            )
            _refused()[word] = Refusal(error=error)


def _refused() -> dict[str, Refusal]:
    """What of this session's link was refused, by name in the URL."""
    refused: dict[str, Refusal] = st.session_state.setdefault(REFUSED, {})
    return refused


def _short_names(
    key: str, options: Sequence[str], label: str, aliases: Mapping[str, str] | None
) -> dict[str, str]:
    """Short names that a link of this session used for an option, and what each means; others are refused."""
    short: dict[str, str] = st.session_state.setdefault(SHORT, {}).setdefault(key, {})
    word = st.query_params.get(key)
    if word is None or word in (*options, *short):
        return short
    try:
        short[word] = resolve(word, options, label.lower(), aliases)
    except InputError as error:
        _refused()[key] = Refusal(error=error)
    return short


def _seed(key: str, default: str, options: Sequence[str] | None) -> None:
    """Start a widget, and the URL, at what another page was told."""
    value = st.session_state.setdefault(KEPT, {}).get(key, default)
    if not _first_here(key) or key in st.query_params or value == default:
        return
    if options is None or value in options:
        st.session_state[key] = st.query_params[key] = value


def note_page() -> None:
    """Note which page is drawn, so that its widgets know when they are drawn for the first time there.

    Streamlit leaves a page by way of its bare address, and starts one that is gone back to at its address,
    whatever the session says; so such a page is drawn once more, at the question that it had.
    """
    context = get_script_run_ctx()
    page = context.page_script_hash if context else ""
    before, drawn = st.session_state.get(VISIT, ("", {}))
    if before == page:
        return
    st.session_state[VISIT] = (page, {**drawn, page: frozenset()})
    kept = st.session_state.get(KEPT, {})
    if context and context.is_history_navigation and not set(st.query_params) & set(PARAMETERS):
        st.query_params.update({key: kept[key] for key in drawn.get(page, ()) if key in kept})
        st.rerun()


def _first_here(key: str) -> bool:
    """Whether this visit to the page draws a widget for the first time."""
    page, drawn = st.session_state.get(VISIT, ("", {}))
    mine = drawn.get(page, frozenset())
    st.session_state[VISIT] = (page, {**drawn, page: mine | {key}})
    return key not in mine


def _keep(key: str, value: str) -> str:
    """Remember a value for the other pages; a refusal of it ends when somebody chooses another."""
    st.session_state.setdefault(KEPT, {})[key] = value
    refusal = _refused().get(key)
    if refusal and refusal.instead is None:
        _refused()[key] = replace(refusal, instead=value)
    elif refusal and refusal.instead != value:
        del _refused()[key]
    return value


def _forget() -> None:
    """Take what the boxes show as the question."""
    for key in st.session_state.pop(REFUSED, {}):
        if key not in PARAMETERS:
            st.query_params.pop(key, None)
