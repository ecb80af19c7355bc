"""A run's folder cut off at every write, torn and reordered, as SQLite tests its files: does each run go on?

`python -m benchmarks.crash_points [--points 10000] [--seed 0]` trains a small model in one process whose
files are recorded: begun, evaluated, ended, gone on with, older checkpoints dropped. Then the folder is built
again as each cut leaves it, and the run is started on it: settings, data, checks of `plan run`, the newest
checkpoint, the next sample. Asked of each: no error, no step lost that a synced checkpoint holds, values to
the last bit, every line of metrics that is read a line that was written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recorded_files import VARIANTS, CutPoint, FileOperation, built, cut_points, recording

CONFIG = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64,
}  # fmt: skip
BATCH, STEPS = 4, (4, 7)
DATA = "tokens.bin"
AT_ONCE = 500
"""Cuts that one process tries: each start makes process groups."""


# ── a run, and its start on what is left ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """What a run did to its folder, the values that each of its checkpoints holds, its lines of metrics."""

    done: tuple[FileOperation, ...]
    values: dict[int, str]
    lines: frozenset[str]


def settings_of(folder: Path, data: Path, steps: int) -> Any:
    """Settings of a run in fp32 on one CPU rank."""
    from executor.launch.supervise import with_plan
    from executor.training.settings import RunSettings

    base = RunSettings(
        folder="", plan_file="", steps=steps, device="cpu", precision="fp32", checkpoint_every=2,
        keep_checkpoints=2, data=str(data), eval_data="synthetic", eval_interval=3, eval_batches=1,
        rate_shape="constant",
    )  # fmt: skip
    return with_plan(base, folder)


def digest(trainer: Any) -> str:
    """Checksum of all values of a rank: parameters and moments."""
    sha256 = hashlib.sha256()
    for name, value in sorted(trainer.checkpointer._state().items()):  # noqa: SLF001
        part = value.to_local() if hasattr(value, "to_local") else value
        sha256.update(name.encode() + part.detach().contiguous().numpy().tobytes())
    return sha256.hexdigest()


def started(settings: Any, plan: Any) -> Any:
    """What `plan run` does before ranks train: read, compare, refuse, write; then this rank made ready."""
    import torch

    from app.actions.runs.resumed import check_resumed
    from app.actions.runs.texts import with_data
    from executor.launch.run_lock import run_lock
    from executor.launch.supervise import begin_run, write_beside, write_run
    from executor.training.trainer import prepare

    settings, _ = with_data(settings, plan)
    check_resumed(settings, plan, lambda _: None)
    with run_lock(Path(settings.folder), lambda _: None):
        write_run(settings, plan)
        write_beside(Path(settings.folder), {"settings.toml": "steps = 1\n"})
        begin_run(Path(settings.folder))
        return prepare(settings, plan, torch.device("cpu"))


def recorded_run(root: Path, data: Path, plan: Any) -> RecordedRun:
    """Train in two starts, the second from where the first ended; the process group exists."""
    from executor.training import loop
    from executor.training.checkpoint import Checkpointer
    from executor.training.settings import METRICS_FILE
    from topology.base.files import json_rows

    values: dict[int, str] = {}
    folder, save = root / "run", Checkpointer.save

    def saved(self: Any, step: int, *arguments: Any, **fields: Any) -> Any:
        values[step] = digest(_Holder(self))
        return save(self, step, *arguments, **fields)

    Checkpointer.save = saved  # type: ignore[method-assign]
    try:
        with recording(root) as recorder:
            for steps in STEPS:
                ready = started(settings_of(folder, data, steps), plan)
                loop.record_status(ready.settings, loop.train(ready))
    finally:
        Checkpointer.save = save  # type: ignore[method-assign]
    lines = frozenset(f"{row['step']} {row['loss']}" for row in json_rows(folder / METRICS_FILE))
    return RecordedRun(done=tuple(recorder.done), values=values, lines=lines)


@dataclass
class _Holder:
    """What `digest` reads."""

    checkpointer: Any


def least_step(done: Sequence[FileOperation], cut: CutPoint) -> int:
    """The newest checkpoint that a cut must leave: named, and synced where power is lost; 0 for none."""
    step = 0
    for number, each in enumerate(done[: cut.number]):
        if each.kind == "rename" and Path(each.to).name.startswith("step-"):
            folder = Path(each.to).parent.as_posix()
            after = done[number : cut.number]
            if cut.variant != "power" or any(o.kind == "sync folder" and o.path == folder for o in after):
                step = max(step, int(Path(each.to).name.removeprefix("step-")))
    return step


def fault_of(run: RecordedRun, cut: CutPoint, data: Path, plan: Any) -> str:
    """What is wrong when a run is started on what a cut leaves; empty where it goes on as it should."""
    from executor.training.settings import METRICS_FILE
    from topology.base.files import json_rows

    root = Path(tempfile.mkdtemp(prefix="meshplan-crash-"))
    try:
        built(run.done, cut, root / "cut")
        folder = root / "cut" / "run"
        try:
            ready = started(settings_of(folder, data, STEPS[-1]), plan)
        except Exception as error:  # noqa: BLE001 - whatever it is, a cut has ended the run
            return f"{type(error).__name__}: {error}"
        ready.reporter.close()
        step = 0 if ready.resumed is None else ready.resumed.step
        if step < least_step(run.done, cut):
            return f"goes on after step {step}, a checkpoint of step {least_step(run.done, cut)} was written"
        if step and (
            digest(ready) != run.values[step] or ready.resumed.samples != step * ready.global_batch_size
        ):
            return f"values or samples of step {step} are others"
        rows = {f"{row.get('step')} {row.get('loss')}" for row in json_rows(folder / METRICS_FILE)}
        return f"lines that nobody wrote: {sorted(rows - run.lines)[:3]}" if rows - run.lines else ""
    finally:
        shutil.rmtree(root, ignore_errors=True)


def recorded(_rank: int, root: str, plan: Any) -> RecordedRun:
    """On a rank of its own: a run whose data lie beside it in a folder."""
    data = Path(root) / DATA
    data.write_bytes(bytes(byte for each in random.Random(1).randbytes(2000) for byte in (each, 0)))
    return recorded_run(Path(root) / "whole", data, plan)


def faults(
    rank: int, points: int, seed: int, plan: Any, most: int = sys.maxsize, variants: Sequence[str] = VARIANTS
) -> tuple[int, dict[str, list[str]]]:
    """On a rank of its own: how many operations there were, and cuts by what is wrong, at `most` so many."""
    root = Path(tempfile.mkdtemp(prefix="meshplan-crash-"))
    try:
        run, data = recorded(rank, str(root), plan), root / DATA
        result: dict[str, list[str]] = {}
        for cut in cut_points(run.done, points, seed):
            if cut.variant not in variants:
                continue
            if fault := fault_of(run, cut, data, plan):
                result.setdefault(fault, []).append(f"{cut.variant} {cut.number} of seed {cut.seed}")
            if len(result) == most:
                break
        return len(run.done), result
    finally:
        shutil.rmtree(root, ignore_errors=True)


# ── real ranks on what is left ────────────────────────────────────────────────────────────────────────────


def sampled(run: RecordedRun, count: int, points: int = 10_000) -> list[CutPoint]:
    """Some of so many cuts, spread over all, each kind in its turn."""
    stride = points // count
    return cut_points(run.done, points, 0)[:: stride + (stride % len(VARIANTS) == 0)][:count]


def fault_of_ranks(run: RecordedRun, cut: CutPoint, data: Path, plan: Any, rounding: float) -> str:
    """What is wrong with a run that a launcher and its ranks go on with; empty where every step is there.

    Losses may differ by `rounding`: by 0 on the layout of the run.
    """
    from app.actions.runs.resumed import check_resumed
    from app.actions.runs.texts import with_data
    from executor.launch.supervise import Supervision, supervise
    from executor.training.settings import METRICS_FILE
    from topology.base.files import json_rows

    root = Path(tempfile.mkdtemp(prefix="meshplan-crash-"))
    try:
        built(run.done, cut, root / "cut")
        metrics = root / "cut" / "run" / METRICS_FILE
        before = len(list(json_rows(metrics))) if metrics.exists() else 0
        settings, _ = with_data(settings_of(metrics.parent, data, STEPS[-1]), plan)
        try:
            check_resumed(settings, plan, lambda _: None)
            alone = Supervision(min_gpus=None, replan=lambda *_: None, say=lambda _: None)
            status = supervise(settings, plan, alone)
        except Exception as error:  # noqa: BLE001 - whatever it is, a cut has ended the run
            return f"{type(error).__name__}: {error}"
        if (status.state, status.step) != ("finished", STEPS[-1]):
            return f"ended {status.state} after step {status.step}: {status.what} {status.cause}"
        rows = list(json_rows(metrics))
        true = {int(step): float(loss) for step, loss in map(str.split, run.lines)}
        apart = {row["step"]: abs(row["loss"] / true[row["step"]] - 1) for row in rows}
        wrong = [step for step, share in apart.items() if share > rounding]
        steps = [row["step"] for row in rows[before:]]
        if wrong:
            return f"losses of steps {wrong} are others"
        begun = steps[0] - 1 if steps else STEPS[-1]
        if begun < least_step(run.done, cut) or steps != list(range(begun + 1, STEPS[-1] + 1)):
            return f"steps {steps} after a checkpoint of step {least_step(run.done, cut)}"
        return ""
    finally:
        shutil.rmtree(root, ignore_errors=True)


def main() -> int:
    """Cut a run as often as asked; 1 when any start on what is left was wrong."""
    from executor.bench.local_ranks import run_ranks
    from planner.plan import from_json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    plan, totals, operations = from_json(small_plan(), "the plan"), Counter[str](), 0
    for first in range(0, given.points, AT_ONCE):
        count = min(AT_ONCE, given.points - first)
        ((operations, wrong),) = run_ranks(faults, 1, count, given.seed + first, plan, timeout_s=3600)
        for fault, cuts in wrong.items():
            totals[fault] += len(cuts)
            sys.stdout.write(f"{fault}\n  {', '.join(cuts[:5])}\n")
        sys.stderr.write(f"{first + count} of {given.points} cuts, {sum(totals.values())} with a fault\n")
    sys.stdout.write(f"{given.points} cuts of {operations} operations, {sum(totals.values())} with a fault\n")
    return 1 if totals else 0


def small_plan() -> str:
    """A plan for one rank, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(CONFIG))
        words = [
            "--model",
            str(path),
            "--gpus",
            "1",
            "--sequence-length",
            "16",
            "--global-batch-size",
            str(BATCH),
        ]
        command = [sys.executable, "-m", "app", *words, "--stack", "meshplan", "--json"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
