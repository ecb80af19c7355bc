"""What all pages share: planning behind a cache, errors in three lines, figures with their reading."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from app.actions.plan import finished_plan
from app.actions.workers import workers
from app.errors import DefectError, defect, three_lines
from app.figures.style import alt_text
from app.pages.base.choices import note_page
from planner.plan import Plan, PlanRequest
from planner.search.infeasible import Infeasible
from planner.search.search import search
from topology.base.counts import counted
from topology.base.decode import structure, unstructure
from topology.base.errors import InputError

if TYPE_CHECKING:
    import plotly.graph_objects as go

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
MOST_CACHED_PLANS = 256
SPINNER_AFTER_S = 0.25
MOST_ROWS_IN_FULL = 30
_NUMBER = re.compile(r"[-+−$]*[\d][\d,.]*( ?(%|[kMGT]?i?B(/s)?|[µmn]?s|min|h|days|k|M|T|TFLOP/s))?")
_answered: dict[str, None] = {}
"""Questions whose answers are kept, the oldest first."""
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[kMGT]?i?B|[kMBT]|[mµn]?s|min|h|days)(?:\W|$))")
_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+!|~$:-])")


class AwaitedFileError(InputError):
    """A file was chosen as the source and is not here yet: nobody did anything wrong."""


def guarded(render: Callable[Given, None]) -> Callable[Given, None]:
    """Draw a page so that whatever escapes it becomes a clear message, never a traceback."""

    @wraps(render)
    def drawn(*args: Given.args, **kwargs: Given.kwargs) -> None:
        note_page()
        try:
            render(*args, **kwargs)
        except InputError as error:
            show_error(error)
        except Exception as error:  # noqa: BLE001 - the last door of a page: a defect is named, the app lives on
            show_error(defect(error))

    return drawn


def show_error(error: InputError) -> None:
    """Show what is wrong, why, and what fixes it; names from files are text, never markup."""
    if isinstance(error, AwaitedFileError):
        st.info(f"{error.what.capitalize()}: {error.fix}.", icon=":material/upload_file:")
        return
    ours = isinstance(error, DefectError)
    title = "Something broke here, not in your input." if ours else "This is not possible as asked."
    st.error(f"**{title}**", icon=":material/block:")
    st.code(three_lines(error), language=None, wrap_lines=True)


def hasten_spinners() -> None:
    """Say that something is being worked on sooner than the half second that Streamlit waits."""
    from streamlit.elements import spinner

    spinner.DELAY_SECS = SPINNER_AFTER_S


def planned_answer(request: PlanRequest) -> Plan | Infeasible:
    """The answer of the planner; equal requests of all sessions are searched once."""
    ahead = 0 if is_known(request) else workers().waiting
    before = f", {counted(ahead, 'question')} before it" if ahead else ""
    with st.spinner(f"Searching layouts on {request.cluster.num_gpus:,} GPUs{before}", show_time=True):
        answer: Plan | Infeasible = _searched(request_key(request))
    return answer


def is_known(request: PlanRequest) -> bool:
    """Whether the question was answered lately, so that its answer is there at once."""
    return request_key(request) in _answered


def answered_quietly(request: PlanRequest) -> Plan | Infeasible:
    """The same without a word of waiting; for fields of a map."""
    answer: Plan | Infeasible = _searched(request_key(request))
    return answer


def finished_or_none(request: PlanRequest) -> Plan | None:
    """The plan of a request with its campaign, or None; for points of a curve of whole runs."""
    answer = answered_quietly(request)
    return answer if isinstance(answer, Plan) else None


def plan_or_none(request: PlanRequest) -> Plan | None:
    """The plan of a request, or None; for points of a curve, which read its step alone."""
    key = request_key(request)
    searched = _searched(key) if key in _answered else _searched_for_a_step(key)
    return searched if isinstance(searched, Plan) else None


def request_key(request: PlanRequest) -> str:
    """Text that two requests share only when they ask the same."""
    return json.dumps(unstructure(request), sort_keys=True)


@st.cache_resource(max_entries=MOST_CACHED_PLANS, show_spinner=False)  # type: ignore[untyped-decorator]  # streamlit has no types here
def _searched(key: str) -> Plan | Infeasible:
    """Search, and run to the end, once per question; plans are immutable, so all sessions may share them."""
    answer = asked(finished_plan, structure(json.loads(key), PlanRequest, "the question"))
    _answered[key] = None
    while len(_answered) > MOST_CACHED_PLANS:
        _answered.pop(next(iter(_answered)), None)
    return answer


@st.cache_resource(max_entries=MOST_CACHED_PLANS, show_spinner=False)  # type: ignore[untyped-decorator]
def _searched_for_a_step(key: str) -> Plan | Infeasible:
    """Search once per question, without its run."""
    return asked(search, structure(json.loads(key), PlanRequest, "the question"))


def asked(function: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs) -> Answer:
    """What a function answers, computed in a process of the pool; one address is one visitor there.

    A question that was changed meanwhile is given up: Streamlit's check ends this run of the page.
    """
    context = get_script_run_ctx()
    visitor = st.context.ip_address or getattr(context, "session_id", "")
    wanted = (lambda: None) if context is None else context.yield_check
    return workers().call_while(wanted, visitor, function, *args, **kwargs)


def draw(figure: go.Figure, key: str, **options: Any) -> Any:
    """Draw a figure with its one-sentence reading as caption and alt text."""
    reading = alt_text(figure)
    chosen = st.plotly_chart(
        figure, key=key, alt=reading, config={"displaylogo": False, "displayModeBar": False}, **options
    )
    st.caption(plain(reading))
    return chosen


def draw_table(
    columns: Mapping[str, Sequence[str]],
    alt: str,
    tints: Mapping[str, Sequence[str]] = MappingProxyType({}),
    **options: Any,
) -> Any:
    """Draw a table in full; columns of numbers are aligned to the right.

    Args:
        columns: Cells of each column.
        alt: What the table shows, for who cannot see it.
        tints: Colours behind the cells of a column, in CSS; empty for none.
        options: What else Streamlit's table is told.
    """
    settings = {
        head: st.column_config.TextColumn(alignment="right" if are_numbers(cells) else "left")
        for head, cells in columns.items()
    }
    rows = max((len(cells) for cells in columns.values()), default=0)
    return st.dataframe(
        _tinted({head: list(cells) for head, cells in columns.items()}, tints),
        hide_index=True,
        column_config=settings,
        height="content" if rows <= MOST_ROWS_IN_FULL else "auto",
        alt=alt,
        **options,
    )


def _tinted(columns: Mapping[str, Sequence[str]], tints: Mapping[str, Sequence[str]]) -> Any:
    """The columns, with colours behind the cells of some."""
    if not tints:
        return columns
    import pandas as pd

    behind = {head: [f"background-color: {tint}" if tint else "" for tint in tints[head]] for head in tints}
    return pd.DataFrame(columns).style.apply(lambda cells: behind[cells.name], subset=list(tints))


def are_numbers(cells: Sequence[str]) -> bool:
    """Whether every cell that says something begins as a number does.

    >>> are_numbers(["+4.03 %", "–", "$1,660"]), are_numbers(["tp 8", "4"]), are_numbers(["8 × h100"])
    (True, False, False)
    """
    result = [cell for cell in cells if cell.strip() not in ("", "–")]
    return bool(result) and all(_NUMBER.fullmatch(cell.strip()) for cell in result)


def columns_of(rows: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Turn rows into columns."""
    return {head: [row[head] for row in rows] for head in (rows[0] if rows else ())}


def heading_text(text: str) -> str:
    """Escape text for large letters, which break often: a unit stays beside its number.

    >>> heading_text("5 % of 3 s").replace("\N{NO-BREAK SPACE}", "_")
    '5_% of 3_s'
    """
    return plain(_UNIT.sub("\N{NO-BREAK SPACE}", text))


def plain(text: str) -> str:
    r"""Escape text so that Markdown shows it as it is.

    >>> plain("a_b <i>")
    'a\\_b \\<i\\>'
    """
    return _MARKUP.sub(r"\\\1", text)
