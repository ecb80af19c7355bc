"""What a rank does when: the plan's own word, and a profiler's beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from app.figures.schedule.timeline import timeline
from app.pages.base.choices import choose, require_all_read
from app.pages.base.frame import draw
from app.store.profiles import read_lanes, traces_in
from costmodel.kernels.saved import calibration_for
from costmodel.layout import num_microbatches
from planner.analysis.lanes import Slice, lanes_of
from planner.plan import Plan

MOST_RANKS = 64
"""Pipeline ranks that can be chosen."""
ORDER = (
    "In a pass, layers compute and communicate in turn; here every part of it stands once, in the share that "
    "it has on the rank that sets the pace."
)


def show_timeline(plan: Plan) -> None:
    """Draw the lanes of one pipeline rank as the plan has them."""
    st.markdown("#### What does a rank do when?")
    ranks = [str(rank) for rank in range(min(plan.layout.pp, MOST_RANKS))]
    rank = choose(st, "Pipeline rank", ranks, "lane_rank", width=200) if len(ranks) > 1 else ranks[0]
    require_all_read()
    slices, words = predicted_lanes(plan, int(rank))
    draw(timeline(slices, (), words), "timeline")
    st.caption(f"{ORDER} Hatched communication runs under compute.")


def predicted_lanes(plan: Plan, rank: int) -> tuple[tuple[Slice, ...], str]:
    """Lanes of a pipeline rank, and what they show."""
    slices, count = lanes_of(plan, calibration_for(plan.request.cluster), rank)
    whole = num_microbatches(plan.layout, plan.request.job)
    of_all = f"{count:,} of {whole:,} microbatches" if count < whole else f"All {whole:,} microbatches"
    return slices, f"{of_all} of pipeline rank {rank}, and the end of the step."


def show_measured(folder: Path, plan: Plan | None) -> None:
    """Draw what a profiler recorded of a run, a rank at a time; above it what the plan predicts.

    Args:
        folder: The run's.
        plan: What it ran; None where it ran on another device, or has no plan.
    """
    traces = traces_in(folder)
    if not traces:
        st.caption("No step was profiled: plan run --profile-step N records one.")
        return
    rank = int(choose(st, "Rank", [str(number) for number in traces], "trace_rank", width=200))
    require_all_read()
    measured = _read(str(traces[rank]), traces[rank].stat().st_mtime)
    predicted: Sequence[Slice] = ()
    words = f"The step that rank {rank} recorded."
    if plan is not None:
        predicted, whose = predicted_lanes(plan, stage_of_rank(plan, rank))
        words += f" Above it the prediction: {whose[0].lower()}{whose[1:]}"
    draw(timeline(predicted, measured, words), "measured_timeline")


def stage_of_rank(plan: Plan, rank: int) -> int:
    """The pipeline rank that a rank of the job is."""
    gpu = plan.mesh.gpu_of_rank[rank]
    groups = plan.mesh.groups("pp") if plan.layout.pp > 1 else ()
    return next((group.index(gpu) for group in groups if gpu in group), 0)


@st.cache_data(max_entries=16, show_spinner="Reading the trace")  # type: ignore[untyped-decorator]
def _read(path: str, changed: float) -> tuple[Slice, ...]:
    """Lanes of a trace; read again when it has changed."""
    del changed
    return read_lanes(Path(path))
