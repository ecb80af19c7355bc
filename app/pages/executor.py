"""Executor: a training run as it happens, predicted against measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import streamlit as st

from app.actions.dash import RUN_FOLDER
from app.figures.executor.run import run_line, step_time_figure
from app.figures.executor.runs import runs_over_time
from app.pages.answer.timeline import show_measured, show_timeline
from app.pages.base.choices import choose, require_all_read
from app.pages.base.frame import columns_of, draw, draw_table, guarded, plain, planned_answer
from app.pages.question.bar import DEFAULT_GPUS, DEFAULT_MODEL
from app.quantities import format_percent, format_ratio
from app.store.run_log import RunStep, checkpoints_of, read_state, read_steps, repeated_steps
from app.store.runs import RunSummary, run_summary, runs_in
from app.store.steps import PLAN_FILE, unlike_device
from planner.plan import Plan, from_json
from planner.questions.flags import Flags
from planner.questions.training import understand
from topology.base.errors import InputError
from topology.base.files import read_text
from topology.base.units import format_bytes, format_seconds, three_digits

REFRESH_S = 3


@guarded
def render() -> None:
    """Draw the page."""
    folder = os.environ.get(RUN_FOLDER)
    st.subheader("Training run", anchor=False)
    if folder is None:
        st.info("Start the dashboard with the folder of a run to follow it: plan dash --run DIR")
        if st.toggle("Show what is predicted of the usual question", key="executor_example"):
            plan = planned_answer(understand(Flags(model=DEFAULT_MODEL, gpus=DEFAULT_GPUS)).request)
            if isinstance(plan, Plan):
                show_timeline(plan)
        return
    followed = Path(folder)
    runs = {path.name: path for path in runs_in(followed)}
    if runs:
        show_runs(list(runs.values()))
        names = list(runs)[::-1]
        followed = runs[choose(st, "Run to follow", names, "run_name")]
    require_all_read()
    follow(followed)
    st.markdown("#### What does a rank do when?")
    show_measured(followed, planned_run(followed))


def planned_run(folder: Path) -> Plan | None:
    """The plan of a run that was on what its plan is for."""
    if unlike_device(folder):
        return None
    try:
        return from_json(read_text(folder / PLAN_FILE), PLAN_FILE)
    except InputError:
        return None


def show_runs(folders: Sequence[Path]) -> None:
    """All runs of a folder, predicted against measured."""
    run_summaries = [summary for folder in folders if (summary := run_summary(folder)) is not None]
    if not run_summaries:
        return
    draw(runs_over_time(run_summaries), "runs")
    draw_table(columns_of([run_as_row(run) for run in reversed(run_summaries)]), alt="Runs, the latest first")


def run_as_row(run: RunSummary) -> dict[str, str]:
    """One run as a row; what is not compared is a dash."""
    step, memory = run.predicted_step_s, run.predicted_memory_bytes
    return {
        "run": run.name,
        "state": run.state,
        "steps": f"{run.steps:,}",
        "done again": f"{run.repeated_steps:,}",
        "median step": format_seconds(run.step_s),
        "predicted": format_seconds(step) if step else "–",
        "off": format_ratio(run.step_s / step) if step else "–",
        "peak memory": format_bytes(run.memory_bytes),
        "planned": format_bytes(memory) if memory else "–",
        "not compared": run.elsewhere or "–",
    }


@st.fragment(run_every=REFRESH_S)  # type: ignore[untyped-decorator]  # streamlit has no types here
@guarded  # again, because timed reruns start here
def follow(folder: Path) -> None:
    """Draw what the run has written so far, again every few seconds."""
    steps = read_steps(folder)
    if not steps:
        st.info(plain(f"{folder.name} has no steps yet."))
        return
    show_state(folder)
    elsewhere = unlike_device(folder)
    if elsewhere:
        st.info(plain(elsewhere))
        steps = [replace(step, predicted_step_time_s=0.0) for step in steps]
    show_run_numbers(steps, planned_run(folder), mfu=not elsewhere)
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("#### Does it learn?")
        draw(run_line(steps, "loss", "loss"), "loss")
        st.markdown("#### How fast is it?")
        draw(run_line(steps, "tokens_per_s", "tokens/s"), "tokens")
    with right:
        st.markdown("#### Is a step as long as predicted?")
        draw(step_time_figure(steps), "steps")
        st.markdown("#### How much memory does it take?")
        draw(run_line(steps, "peak_memory_gib", "peak memory, GiB"), "run_memory")
    show_checkpoints(folder)


def show_state(folder: Path) -> None:
    """Whether it runs, why it stopped, and what restarts did again."""
    state, repeated = read_state(folder), repeated_steps(folder)
    repeated_words = f" · {repeated:,} steps done again after restarts" if repeated else ""
    st.caption(plain(f"{folder.name} · {state.state}{repeated_words}"))
    if state.state == "error":
        st.error(plain(state.reason), icon=":material/error:")
    for entry in state.history:
        st.caption(plain(entry))


def difference_to_plan(step: RunStep, plan: Plan | None) -> tuple[str | None, Literal["inverse", "off"]]:
    """A step's time against its prediction, and its colour: grey within the 80 % band of the plan."""
    predicted_s = step.predicted_step_time_s
    if not predicted_s:
        return None, "off"
    text = f"{format_ratio(step.step_time_s / predicted_s)} to predicted"
    if plan is not None and plan.estimate.lower_s <= step.step_time_s <= plan.estimate.upper_s:
        return f"{text}, within the band", "off"
    return text, "inverse"


def show_run_numbers(steps: list[RunStep], plan: Plan | None, *, mfu: bool) -> None:
    """The latest step; its MFU only where it ran on the GPU whose peak that is a share of."""
    last = steps[-1]
    columns = st.container(key="numbers").columns(5)
    columns[0].metric("Step", f"{last.step:,}", border=True, height="stretch")
    columns[1].metric("Loss", three_digits(last.loss), border=True, height="stretch")
    difference, colour = difference_to_plan(last, plan)
    columns[2].metric(
        "Latest step",
        format_seconds(last.step_time_s),
        difference,
        delta_color=colour,
        border=True,
        height="stretch",
    )
    columns[3].metric(
        "MFU", format_percent(last.mfu) if mfu and last.mfu else "–", border=True, height="stretch"
    )
    columns[4].metric("Peak memory", format_bytes(last.peak_memory_bytes), border=True, height="stretch")


def show_checkpoints(folder: Path) -> None:
    """Checkpoints on disk, newest first."""
    st.markdown("#### What could it restart from?")
    checkpoints = checkpoints_of(folder)
    if checkpoints:
        draw_table(columns_of(checkpoints), alt="Checkpoints of the run")
    else:
        st.caption("No checkpoint yet.")
