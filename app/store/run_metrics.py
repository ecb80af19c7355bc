"""What Prometheus is told of a training run: its files as they grow, read by whoever started it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.store.run_log import read_state
from executor.training.settings import EVALUATIONS_FILE, METRICS_FILE
from topology.base.errors import InputError
from topology.base.files import json_row, open_regular
from topology.base.prometheus import Metric, exposition, metric
from topology.base.version import VERSION

STATES = ("running", "stopped", "finished", "error", "unknown")
AT_ONCE_BYTES = 1 << 20
STEP_METRICS = (
    ("step", "meshplan_run_step", "Optimizer steps done."),
    ("samples", "meshplan_run_samples", "Sequences that the weights have seen, each once."),
    ("loss", "meshplan_run_loss", "Mean loss over the tokens of the last step, nats."),
    ("router_loss", "meshplan_run_router_loss", "What balancing experts adds to the loss, nats."),
    ("gradient_norm", "meshplan_run_gradient_norm", "Euclidean norm of the gradient before clipping."),
    ("learning_rate", "meshplan_run_learning_rate", "Learning rate of the last step."),
    ("step_time_s", "meshplan_run_step_seconds", "Time of the last step, seconds."),
    ("predicted_step_time_s", "meshplan_run_predicted_step_seconds", "Time of a step by the plan, seconds."),
    ("tokens_per_s", "meshplan_run_tokens_per_second", "Tokens of all ranks in a second of the last step."),
    ("mfu", "meshplan_run_mfu_ratio", "Model FLOPs utilization of the last step, 0 to 1."),
    ("peak_memory_bytes", "meshplan_run_peak_memory_bytes", "Largest memory of rank 0 so far, bytes."),
    ("at_s", "meshplan_run_last_step_timestamp_seconds", "When the last step was reported, Unix seconds."),
)
EVALUATION_METRICS = (
    ("loss", "meshplan_run_held_out_loss", "Mean loss over the held-out tokens, nats."),
    ("step", "meshplan_run_held_out_step", "Steps before the last evaluation."),
)


class GrowingLines:
    """JSON lines of a file that grows: its last row, how many there were, how often steps went back."""

    def __init__(self, path: Path) -> None:
        self.path, self.read_bytes, self.rest = path, 0, b""
        self.last: dict[str, Any] = {}
        self.rows = self.returns = 0

    def update(self) -> None:
        """Read what is new; a half-written line waits for its end."""
        try:
            with open_regular(self.path) as stream:
                stream.seek(self.read_bytes)
                while block := stream.read(AT_ONCE_BYTES):
                    self.read_bytes += len(block)
                    *lines, self.rest = (self.rest + block).split(b"\n")
                    for line in lines:
                        self._take(line)
        except (OSError, InputError):
            return

    def _take(self, line: bytes) -> None:
        """Count one line, if it is one."""
        row = json_row(line)
        try:
            step = int(row["step"]) if row is not None else None
        except (ValueError, KeyError, TypeError, OverflowError):
            return
        if row is None or step is None:
            return
        self.returns += bool(self.last) and step <= int(self.last["step"])
        self.rows += 1
        self.last = row


class RunMetrics:
    """The metrics of one run; `labels` say which."""

    def __init__(self, folder: Path, **labels: str) -> None:
        self.folder, self.labels = folder, labels
        self.steps = GrowingLines(folder / METRICS_FILE)
        self.evaluations = GrowingLines(folder / EVALUATIONS_FILE)

    def text(self) -> str:
        """What a scrape is answered."""
        self.steps.update()
        self.evaluations.update()
        state = read_state(self.folder).state
        labels = {"version": VERSION, **self.labels}
        metrics = [metric("meshplan_run_info", "Which run this is.", 1.0, **labels)]
        states = tuple(({"state": name}, float(name == state)) for name in STATES)
        metrics.append(Metric(name="meshplan_run_state", help="1 for the state of the run.", values=states))
        counted = (
            ("meshplan_run_returns_total", "Returns to a checkpoint.", self.steps.returns),
            ("meshplan_run_reported_steps_total", "Steps done, repeated ones too.", self.steps.rows),
        )
        metrics += [metric(name, text, float(count)) for name, text, count in counted]
        for lines, table in ((self.steps, STEP_METRICS), (self.evaluations, EVALUATION_METRICS)):
            metrics += [
                metric(name, text, float(lines.last[key]))
                for key, name, text in table
                if isinstance(lines.last.get(key), (int, float))
            ]
        return exposition(metrics)
