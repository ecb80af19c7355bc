"""Steps that the user measured: kept under a name by the command line, or of a file that is dropped here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app.pages.base.carried import carried, carry
from app.pages.base.choices import KEPT, choose
from app.pages.base.frame import MOST_CACHED_PLANS, AwaitedFileError, asked
from app.requests.upload_sizes import MOST_UPLOAD_MIB
from app.requests.uploads import read_anchor_upload
from costmodel.accuracy.anchor import Anchor
from costmodel.accuracy.kept_anchors import kept_anchors
from costmodel.kernels.level import StackLevel
from planner.plan import PlanRequest
from planner.questions.flags import Flags
from topology.base.errors import InputError

NO_ANCHOR, MEASURED_FILE = "none", "uploaded runs or log"
SPEC = "anchor_spec"


def choose_anchor(where: Any) -> str:
    """Draw the choice."""
    names = [NO_ANCHOR, *kept_anchors(), MEASURED_FILE]
    return choose(
        where, "Steps you measured", names, "anchor",
        help="One measured step of your own stack is worth more than any term of the model.",
    )  # fmt: skip


def dropped_anchor(rest: Flags) -> Anchor:
    """What the dropped files measured, or the link says they did.

    Args:
        rest: The question, for what a log does not say.

    Raises:
        AwaitedFileError: Nothing was dropped yet.
    """
    files = st.file_uploader(
        "A table of runs (CSV), or a log and its launch files", accept_multiple_files=True,
        key="anchor_files", max_upload_size=MOST_UPLOAD_MIB,
    )  # fmt: skip
    known = carried(SPEC, Anchor)
    if files:
        known = [anchor_of(tuple((file.name, file.getvalue()) for file in files), rest)]
        carry(SPEC, *known)
    if not known:
        raise AwaitedFileError(
            what="no measured step yet", cause="no runs and no log were uploaded",
            fix="drop a CSV or a log below the question, or choose none",
        )  # fmt: skip
    return known[0]


@st.cache_data(max_entries=MOST_CACHED_PLANS, show_spinner="Reading what was measured")  # type: ignore[untyped-decorator]
def anchor_of(files: Sequence[tuple[str, bytes]], rest: Flags) -> Anchor:
    """The anchor of these files; read once."""
    return read_anchor_upload(files, rest, asked)


def anchor_with(level: StackLevel) -> None:
    """Plan the question with a level from now on, on every page."""
    carry(SPEC, Anchor(name=level.name, levels=(level,)))
    st.session_state.setdefault(KEPT, {})["anchor"] = MEASURED_FILE


def level_for(request: PlanRequest, anchor: Anchor) -> StackLevel:
    """The level of the question's stack.

    Raises:
        InputError: The runs are of other stacks.
    """
    level = anchor.level_of(request.stack)
    if level is None:
        others = [entry.stack for entry in anchor.levels]
        raise InputError(
            what=f"these runs say nothing about {request.stack}",
            cause=f"they are of {', '.join(others)}",
            fix=f"choose {others[0]} as the software stack, or drop runs of {request.stack}",
        )
    return level
