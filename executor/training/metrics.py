"""What a run says while it trains: a progress line, JSON lines, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from executor.training.evaluation import Evaluation
from executor.training.settings import EVALUATIONS_FILE, METRICS_FILE, SAVES_FILE
from topology.base.errors import InputError
from topology.base.files import open_lines
from topology.base.units import format_bytes, format_seconds

MOST_NATS = 700.0  # whose exponential a float still holds
OF_THE_PLAN = ("predicted_step_time_s", "mfu")
"""What means nothing where the run is not on what its plan is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """Measurements of one optimizer step; `mfu` counts FLOPs as the plan's estimate does.

    `loss` is the mean over tokens; `router_loss` is what balancing experts adds to it.
    """

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    step_time_s: float
    predicted_step_time_s: float
    tokens_per_s: float
    mfu: float
    peak_memory_bytes: float
    samples: int
    router_loss: float = 0.0


def progress_line(metrics: StepMetrics, steps: int, *, compared: bool = True) -> str:
    """One line of progress, `compared` with the plan where the run is on what the plan is for.

    >>> step = StepMetrics(step=1, loss=2.5, gradient_norm=1.0, learning_rate=1e-3, step_time_s=0.5,
    ...     predicted_step_time_s=0.4, tokens_per_s=1234.5, mfu=0.4, peak_memory_bytes=0.0, samples=8)
    >>> progress_line(step, 10)
    'step 1/10  loss 2.5000  norm 1.00  1,234 tokens/s  MFU 40.0%  step 500 ms (predicted 400 ms)'
    >>> progress_line(step, 10, compared=False)
    'step 1/10  loss 2.5000  norm 1.00  1,234 tokens/s  step 500 ms'
    """
    memory = f"  memory {format_bytes(metrics.peak_memory_bytes)}" if metrics.peak_memory_bytes else ""
    router = f"  router {metrics.router_loss:.4f}" if metrics.router_loss else ""
    mfu = f"  MFU {metrics.mfu:.1%}" if compared else ""
    predicted = f" (predicted {format_seconds(metrics.predicted_step_time_s)})" if compared else ""
    return (
        f"step {metrics.step}/{steps}  loss {metrics.loss:.4f}{router}  norm {metrics.gradient_norm:.2f}  "
        f"{int(metrics.tokens_per_s):,} tokens/s{mfu}{memory}  "
        f"step {format_seconds(metrics.step_time_s)}{predicted}"
    )


def evaluation_line(evaluation: Evaluation, steps: int) -> str:
    """One line of an evaluation.

    >>> evaluation_line(Evaluation(step=10, loss=2.0, samples=64, took_s=1.5), 100)
    'step 10/100  held-out loss 2.0000  perplexity 7.389  64 sequences in 1.5 s'
    """
    return (
        f"step {evaluation.step}/{steps}  held-out loss {evaluation.loss:.4f}  "
        f"perplexity {math.exp(min(evaluation.loss, MOST_NATS)):.4g}  "
        f"{evaluation.samples} sequences in {format_seconds(evaluation.took_s)}"
    )


class Reporter:
    """Writes the metrics of one run; only rank 0 has one.

    `compared` says that the run is on what its plan is for: lines show the plan's times beside its own.
    Where it is not, nothing written has them, and the lines of `metrics.jsonl` say so.
    """

    def __init__(self, folder: Path, steps: int, *, compared: bool, wandb: bool) -> None:
        self.steps, self.compared = steps, compared
        self.folder = folder
        self.lines = open_lines(folder / METRICS_FILE)
        self.board = _board(folder / "tensorboard")
        self.wandb = _wandb(folder) if wandb else None

    def step(self, metrics: StepMetrics) -> None:
        """Report one step everywhere."""
        values = asdict(metrics)
        entry = {"at_s": time.time()}
        if not self.compared:
            values = {name: value for name, value in values.items() if name not in OF_THE_PLAN}
            entry["compared"] = False
        self._append(json.dumps({**values, **entry}))
        for name, value in values.items():
            if self.board is not None and name != "step":
                self.board.add_scalar(name, value, metrics.step)
        if self.wandb is not None:
            self.wandb.log(values, step=metrics.step)
        self._line(progress_line(metrics, self.steps, compared=self.compared))

    def evaluation(self, result: Evaluation) -> None:
        """Report a held-out loss everywhere."""
        self._append_to(EVALUATIONS_FILE, asdict(result))
        if self.board is not None:
            self.board.add_scalar("held_out_loss", result.loss, result.step)
        if self.wandb is not None:
            self.wandb.log({"held_out_loss": result.loss}, step=result.step)
        self.say(evaluation_line(result, self.steps))

    def saved(self, step: int, held_s: float) -> None:
        """Report seconds that steps waited while a checkpoint was copied aside."""
        self._append_to(SAVES_FILE, {"step": step, "held_s": held_s})

    def _append_to(self, name: str, values: Mapping[str, float]) -> None:
        """Add a line to another file of the run; likewise."""
        try:
            with open_lines(self.folder / name) as lines:
                lines.write(json.dumps({**values, "at_s": time.time()}) + "\n")
        except (OSError, InputError) as error:
            reason = error.what if isinstance(error, InputError) else error
            self.say(f"warning: {name} could not be written ({reason})")

    def _append(self, line: str) -> None:
        """Add a line to the metrics file; a full disk must not end the training that fills it."""
        try:
            self.lines.write(f"{line}\n")
            self.lines.flush()
        except OSError as error:
            self.say(f"warning: {self.lines.name} could not be written ({error})")

    def say(self, message: str) -> None:
        """Tell the user something that is not a step."""
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()

    def _line(self, text: str) -> None:
        """Overwrite the progress line on a terminal, append elsewhere."""
        terminal = sys.stderr.isatty()
        sys.stderr.write(f"\r\033[K{text}" if terminal else f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Leave complete files behind."""
        self.lines.close()
        if self.board is not None:
            self.board.close()


def _board(folder: Path) -> Any:
    """TensorBoard writer, None where tensorboard is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))


def _wandb(folder: Path) -> Any:
    """Weights & Biases run; asking for it without having it is an error."""
    try:
        import wandb
    except ImportError as error:
        raise InputError(
            what="Weights & Biases is not installed",
            cause=str(error),
            fix="pip install wandb, or drop --wandb",
        ) from error
    return wandb.init(project="meshplan", dir=str(folder))
