"""What a training run has written: steps from its JSON lines, checkpoints from its folder."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from topology.base.errors import InputError
from topology.base.files import json_rows, read_text
from topology.base.units import GIB

METRICS_FILE, STATUS_FILE, CHECKPOINT_FOLDER = "metrics.jsonl", "status.json", "checkpoints"
MOST_READ_BYTES = 8 * 1024 * 1024
MOST_DRAWN_STEPS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One logged step; its prediction and its MFU are 0 where it was not on what its plan is for."""

    step: int
    loss: float
    step_time_s: float
    tokens_per_s: float
    peak_memory_bytes: float
    predicted_step_time_s: float = 0.0
    mfu: float = 0.0

    @property
    def peak_memory_gib(self) -> float:
        """Peak memory in GiB, for axes."""
        return self.peak_memory_bytes / GIB


def read_steps(folder: Path) -> list[RunStep]:
    """Steps of a run, the last of each number when a restart repeated some, without half-written lines."""
    steps = {step.step: step for step in _logged(folder)}
    return thinned([steps[number] for number in sorted(steps)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """How a run stands: its state, why it stopped, and what it went through, oldest first."""

    state: str
    reason: str
    history: tuple[str, ...]


def read_state(folder: Path) -> RunState:
    """State of a run; unknown while it has written none."""
    try:
        data: Any = json.loads(read_text(folder / STATUS_FILE))
        reason = " · ".join(str(data[name]) for name in ("what", "cause", "fix") if data.get(name))
        history = tuple(str(entry) for entry in data.get("history", ()))
        return RunState(state=str(data["state"]), reason=reason, history=history)
    except (InputError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return RunState(state="unknown", reason="", history=())


def repeated_steps(folder: Path) -> int:
    """How many logged steps repeat an earlier one: what restarts from a checkpoint did again."""
    numbers = [step.step for step in _logged(folder)]
    return len(numbers) - len(set(numbers))


def _logged(folder: Path) -> list[RunStep]:
    """Every whole step in the log, in the order they were written."""
    try:
        rows = list(json_rows(folder / METRICS_FILE, last_bytes=MOST_READ_BYTES))
    except InputError:  # a directory, a pipe
        return []
    return [step for row in rows if (step := _step(row)) is not None]


def thinned(steps: list[RunStep]) -> list[RunStep]:
    """At most `MOST_DRAWN_STEPS` steps, evenly spread, the last one included."""
    stride = -(-len(steps) // MOST_DRAWN_STEPS)
    return steps[::-1][::stride][::-1] if stride > 1 else steps


def _step(data: dict[str, Any]) -> RunStep | None:
    """Read one row; None when it is no whole step."""
    try:
        if data.get("compared") is False:
            data = {**data, "predicted_step_time_s": 0.0, "mfu": 0.0}
        values = {field.name: float(data[field.name]) for field in fields(RunStep)}
        return RunStep(step=int(values.pop("step")), **values)
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def checkpoints_of(folder: Path) -> list[dict[str, str]]:
    """Checkpoint folders, newest first; the run may remove one at any moment."""
    paths = (folder / CHECKPOINT_FOLDER).glob("*")
    checkpoints = [(written, path.name) for path in paths if (written := _written(path)) is not None]
    return [
        {
            "checkpoint": name,
            "written": datetime.fromtimestamp(written, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        }
        for written, name in sorted(checkpoints, reverse=True)
    ]


def _written(path: Path) -> float | None:
    """When a folder was last written, seconds since 1970; None when there is no such folder any more."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime if stat.S_ISDIR(facts.st_mode) else None
