"""Read what a run has logged so far, a folder of `plan run` or logs, and what its scheduler says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from executor.training.settings import METRICS_FILE, RUN_FILE, SAVES_FILE, read_settings
from planner.analysis.campaign.watch import NOBODY, Watched, watched
from planner.campaign.finish import with_campaign
from planner.formats.progress import logged_job, logged_steps
from planner.formats.saves import held_by_saves
from planner.formats.scheduler import scheduled
from planner.plan import Plan
from topology.base.errors import InputError, shown
from topology.base.files import read_text

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


def growing_files(runs: Sequence[Path], events: Path | None = None) -> list[Path]:
    """The files that grow while these are watched."""
    logs = [run / METRICS_FILE if run.is_dir() else run for run in runs]
    saves = [run / SAVES_FILE for run in runs if run.is_dir() and (run / SAVES_FILE).exists()]
    return [*logs, *saves, *([] if events is None else [events])]


def watched_runs(plan: Plan, runs: Sequence[Path], events: Path | None = None) -> Watched:
    """How a run stands by every line of its files, one file after the other, and by its scheduler's file.

    Raises:
        InputError: a file cannot be read, holds no step, or is not a scheduler's.
    """
    plan = _to_its_end(plan, runs)
    lines = [line for file in growing_files(runs) for line in read_text(file, MOST_LOG_BYTES).splitlines()]
    seen = NOBODY if events is None else scheduled(read_text(events, MOST_LOG_BYTES), events.name)
    return watched(plan, list(logged_steps(lines)), list(held_by_saves(lines)), seen, logged_job(lines))


def _to_its_end(plan: Plan, runs: Sequence[Path]) -> Plan:
    """The plan with the tokens of a run that was told its steps (`--steps`), which its folder says."""
    files = [run / RUN_FILE for run in runs if run.is_dir() and (run / RUN_FILE).is_file()]
    if len(files) != 1:
        return plan
    job, steps = plan.request.job, read_settings(files[0]).steps
    if job.total_tokens is not None and max(1, job.total_tokens // job.tokens_per_step) == steps:
        return plan
    job = replace(job, total_tokens=steps * job.tokens_per_step)
    return with_campaign(replace(plan, request=replace(plan.request, job=job)))
