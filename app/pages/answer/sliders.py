"""What if? Sliders over GPUs, sequence length and batch: a first number at once, the proven one after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import streamlit as st

from app.pages.question.bar import BATCHES, COUNTS, LENGTHS, UPLOADED
from planner.plan import Plan, PlanRequest

MOVED: Mapping[str, tuple[str, Sequence[str], Callable[[PlanRequest], int]]] = {
    "gpus": ("GPUs", COUNTS, lambda request: request.cluster.num_gpus),
    "sequence_length": ("Sequence length, tokens", LENGTHS, lambda request: request.job.sequence_length),
    "global_batch_size": ("Global batch, sequences", BATCHES, lambda request: request.job.global_batch_size),
}
"""Box of the question that each slider moves: what it is, where it can be put, where it is."""


def show_sliders(plan: Plan) -> None:
    """Draw a slider for each; letting one go asks anew."""
    with st.expander("What if? Move one thing"):
        columns = st.columns(len(MOVED), gap="medium")
        for column, (box, (label, usual, value)) in zip(columns, MOVED.items(), strict=True):
            if box == "gpus" and st.session_state.get("cluster") == UPLOADED:
                continue
            now, longest = value(plan.request), plan.request.model.max_sequence_length
            most = longest if box == "sequence_length" else None
            values = sorted({now, *(int(text) for text in usual if most is None or int(text) <= most)})
            key = f"slide_{box}"
            st.session_state[key] = now
            column.select_slider(
                label, values, key=key, on_change=_move, args=(key, box), format_func=lambda at: f"{at:,}"
            )
        st.caption("The layout that stands answers at once, as an upper bound; the proven best follows.")


def _move(key: str, box: str) -> None:
    """Put what a slider says into its box of the question."""
    st.session_state[box] = str(st.session_state[key])
