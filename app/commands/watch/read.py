"""Read what a run has logged so far: a folder of `plan run`, or logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.store.run_log import METRICS_FILE
from planner.formats.progress import LoggedStep, logged_steps
from topology.base.decode import read_text
from topology.base.errors import InputError, shown

PLAN_FILE = "plan.json"
MOST_LOG_BYTES = 256 * 1024 * 1024


def plan_of_run(runs: Sequence[Path]) -> Path:
    """The plan in the one folder that is watched.

    Raises:
        InputError: nothing is where a run or a log was said to be, or which plan is run is not known.
    """
    for run in runs:
        if not run.exists():
            raise InputError(
                what=f"there is no {shown(str(run))}",
                cause="neither a folder of plan run nor a log has that name",
                fix="name the folder that plan run was given, or the log of another engine",
            )
    folders = [run for run in runs if run.is_dir()]
    if len(folders) == 1:
        return folders[0] / PLAN_FILE
    raise InputError(
        what="it is not known which plan is run",
        cause=f"{len(folders)} of what is watched are folders of plan run",
        fix="add --plan PLAN.json",
    )


def files_of(runs: Sequence[Path]) -> list[Path]:
    """The files that grow while these are watched."""
    return [run / METRICS_FILE if run.is_dir() else run for run in runs]


def steps_of_runs(runs: Sequence[Path]) -> list[LoggedStep]:
    """Every step that was logged, one file after the other."""
    return [
        step for file in files_of(runs) for step in logged_steps(read_text(file, MOST_LOG_BYTES).splitlines())
    ]
