"""Widgets of the question: bound to the URL, the same on every page, strict about what a link says.

A link may say what no widget lists: a name in short (`model=405b`), a name of another version, a word that
no page reads. The first is completed, the others are refused in three lines until somebody chooses; what was
asked is never dropped for a default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from topology.base.errors import InputError, shown
from topology.base.names import resolve, suggest

KEPT, REFUSED, READ = "question", "refused", "link_was_read"
PARAMETERS = (
    "model", "cluster", "gpu", "gpus", "sequence_length", "global_batch_size", "precision", "tokens", "stack",
    "memory_headroom", "anchor", "objective", "deadline", "per_node", "nic", "price", "oversubscription",
    "tp", "pp", "dp", "cp", "ep", "expert_tp", "virtual_stages", "microbatch_size", "zero_stage", "recompute",
    "schedule", "set", "picture", "axis", "vary", "outcome", "topology_axis", "topology_layout",
    "axis_order", "by", "serve_gpus", "input", "output", "ttft", "tpot", "percentile", "weights", "rate", "curve",
)  # fmt: skip
"""What the widgets of any page bind; a test finds them in the pages."""
CARRIED = ("baseline", "with", "model_spec", "cluster_spec")
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
    if not free:
        shown_as = how.get("format_func", str)
        _complete(key, [*options, *map(shown_as, options)], label, aliases)
    _seed(key, None if free else options)
    how |= {"index": list(options).index(usual), "accept_new_options": free}
    value = where.selectbox(label, options, key=key, bind="query-params", **how)
    return _keep(key, str(value))


def write(where: Any, label: str, default: str, key: str, **how: Any) -> str:
    """Draw a box for text that is part of the question, and read it."""
    _seed(key, None)
    return _keep(key, str(where.text_input(label, default, key=key, bind="query-params", **how)))


def require_all_read() -> None:
    """Refuse what a link says that nothing here reads, until somebody chooses otherwise.

    Raises:
        InputError: A value that no widget lists, or a word that no page reads; with the nearest.
    """
    _read_words()
    for refusal in _refused().values():
        st.button("Answer what the sidebar shows", on_click=_forget, icon=":material/check:", type="primary")
        raise refusal.error


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


def _complete(key: str, options: Sequence[str], label: str, aliases: Mapping[str, str] | None) -> None:
    """Start a widget at what the link's short name means; keep the refusal of a name that means nothing."""
    if key in st.session_state or key not in st.query_params or st.query_params[key] in options:
        return
    try:
        st.session_state[key] = resolve(st.query_params[key], options, label.lower(), aliases)
    except InputError as error:
        _refused()[key] = Refusal(error=error)  # the widget shows its default, which was not asked for


def _seed(key: str, options: Sequence[str] | None) -> None:
    """Start a widget at what another page was told."""
    kept = st.session_state.setdefault(KEPT, {})
    new = key in kept and key not in st.session_state and key not in st.query_params
    if new and (options is None or kept[key] in options):
        st.session_state[key] = kept[key]


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
    """Take what the sidebar shows as the question."""
    for key in st.session_state.pop(REFUSED, {}):
        if key not in PARAMETERS:
            st.query_params.pop(key, None)
