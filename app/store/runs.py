"""Several runs of `plan run` in one folder: what each measured, beside what its plan predicts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from app.store.run_log import METRICS_FILE, read_state, read_steps, repeated_steps
from app.store.steps import PLAN_FILE, unlike_device
from planner.plan import from_json
from topology.base.errors import InputError
from topology.base.files import read_text

MOST_RUNS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run: what it measured, and what its plan predicts where it ran on what that is for.

    `predicted_step_s` and `predicted_memory_bytes` are None where nothing compares; `elsewhere` says why.
    """

    name: str
    state: str
    steps: int
    repeated_steps: int
    step_s: float
    memory_bytes: float
    predicted_step_s: float | None
    predicted_memory_bytes: float | None
    elsewhere: str = ""


def runs_in(folder: Path) -> list[Path]:
    """Folders of runs in a folder, the latest last; none where it is a run itself."""
    if (folder / METRICS_FILE).is_file():
        return []
    logs = [path for path in folder.glob(f"*/{METRICS_FILE}") if path.is_file()]
    return [path.parent for path in sorted(logs, key=lambda path: (_written_s(path), path.parent.name))][
        -MOST_RUNS:
    ]


def run_summary(folder: Path) -> RunSummary | None:
    """What a run came to; None while it has no step."""
    steps = read_steps(folder)
    if not steps:
        return None
    elsewhere = unlike_device(folder)
    predicted = steps[-1].predicted_step_time_s
    return RunSummary(
        name=folder.name,
        state=read_state(folder).state,
        steps=steps[-1].step,
        repeated_steps=repeated_steps(folder),
        step_s=median(step.step_time_s for step in steps),
        memory_bytes=max(step.peak_memory_bytes for step in steps),
        predicted_step_s=predicted if predicted and not elsewhere else None,
        predicted_memory_bytes=None if elsewhere else _planned_memory(folder),
        elsewhere=elsewhere,
    )


def _planned_memory(folder: Path) -> float | None:
    """Peak memory that the run's plan predicts, if it holds one."""
    try:
        return from_json(read_text(folder / PLAN_FILE), PLAN_FILE).estimate.peak_memory_bytes
    except (InputError, OSError):
        return None


def _written_s(path: Path) -> float:
    """When a log was last written, seconds since 1970; 0 where it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
