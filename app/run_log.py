"""What a training run has written: steps from its JSON lines, checkpoints from its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from topology.units import GIB

METRICS_FILE, CHECKPOINT_FOLDER = "metrics.jsonl", "checkpoints"
MOST_READ_BYTES = 8 * 1024 * 1024
MOST_DRAWN_STEPS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """One logged step."""

    step: int
    loss: float
    step_time_s: float
    predicted_step_time_s: float
    tokens_per_s: float
    mfu: float
    peak_memory_bytes: float

    @property
    def peak_memory_gib(self) -> float:
        """Peak memory in GiB, for axes."""
        return self.peak_memory_bytes / GIB


def read_steps(folder: Path) -> list[RunStep]:
    """Steps of a run, the last of each number when a restart repeated some, without half-written lines."""
    path = folder / METRICS_FILE
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MOST_READ_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    steps = {step.step: step for line in lines if (step := _step(line)) is not None}
    return thinned([steps[number] for number in sorted(steps)])


def thinned(steps: list[RunStep]) -> list[RunStep]:
    """At most `MOST_DRAWN_STEPS` steps, evenly spread, the last one included."""
    stride = -(-len(steps) // MOST_DRAWN_STEPS)
    return steps[::-1][::stride][::-1] if stride > 1 else steps


def _step(line: str) -> RunStep | None:
    """Read one line; None when it is no whole step."""
    try:
        data: Any = json.loads(line)
        values = {field.name: float(data[field.name]) for field in fields(RunStep)}
    except (ValueError, KeyError, TypeError):
        return None
    return RunStep(step=int(values.pop("step")), **values)


def checkpoints_of(folder: Path) -> list[dict[str, str]]:
    """Checkpoint folders, newest first."""
    root = folder / CHECKPOINT_FOLDER
    found = sorted((path for path in root.glob("*") if path.is_dir()), key=lambda path: -path.stat().st_mtime)
    return [
        {
            "checkpoint": path.name,
            "written": datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        }
        for path in found
    ]
