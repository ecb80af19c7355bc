"""What a run's folder holds already, held against what is asked: a run goes on as it began, or not at all.

Without a checkpoint nothing is resumed, and only another model, optimizer or adapter is refused. With one,
whatever decides which numbers are computed from which samples must be what it was; rates and lengths may
change, and are told.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from executor.training.option import options_of
from topology.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from costmodel.job import TrainingJob
    from executor.training.settings import RunSettings
    from planner.plan import Plan, PlanRequest


def check_resumed(run: RunSettings, plan: Plan, say: Callable[[str], None]) -> None:
    """Refuse to go on with another run's checkpoints, or otherwise than it began; tells what changes."""
    from app.requests.plan_file import read_claims
    from executor.training.manifest import folder_of_step, read_manifest, steps_on_disk
    from executor.training.settings import CHECKPOINTS, RUN_FILE, read_settings

    root, before = Path(run.folder) / CHECKPOINTS, Path(run.folder) / RUN_FILE
    earlier = read_claims(Path(run.plan_file)).request if Path(run.plan_file).exists() else None
    if earlier is not None:
        _require_same_run(run, earlier, plan.request)
    steps = steps_on_disk(root)
    if not steps:
        return
    if earlier is not None:
        _require_same_batches(run, earlier, plan.request)
    done = next((step for step in steps if read_manifest(folder_of_step(root, step)) is not None), 0)
    if done > run.steps:
        raise InputError(
            what="the run is further than --steps already",
            cause=f"{run.folder} has a checkpoint after step {done}, --steps is {run.steps}",
            fix=f"give more steps than {done}, write its weights by plan convert, or give another --run-dir",
        )
    if before.is_file():
        there = read_settings(before)
        _require_same_settings(run, there, adapts=plan.request.job.adapter is not None, say=say)
        values = [
            f"{name} {getattr(run, name)} ({getattr(there, name)} before)"
            for name, option in options_of(type(run)).items()
            if option.resumable and getattr(run, name) != getattr(there, name)
        ]
        if values:
            say(f"the run goes on with {', '.join(values)}")


def _require_same_run(run: RunSettings, earlier: PlanRequest, asked: PlanRequest) -> None:
    """Refuse a folder whose checkpoints hold other tensors."""
    there, here = earlier.job, asked.job
    for name, text, other, is_same in (
        ("model", earlier.model.name, asked.model.name, earlier.model == asked.model),
        ("optimizer", there.optimizer, here.optimizer, there.optimizer == here.optimizer),
        ("adapter", _adapter(there), _adapter(here), there.adapter == here.adapter),
    ):
        if not is_same:
            raise InputError(
                what=f"{run.folder} holds a run of another {name}",
                cause=f"{text} there, {other} here",
                fix="give another --run-dir",
            )


def _adapter(job: TrainingJob) -> str:
    """A job's adapter in words."""
    return "none" if job.adapter is None else f"{job.adapter.kind} of rank {job.adapter.rank}"


def _require_same_batches(run: RunSettings, earlier: PlanRequest, asked: PlanRequest) -> None:
    """Refuse steps that would repeat samples or leave some out, or compute in other numbers."""
    there, here = earlier.job, asked.job
    _require(
        run,
        ("the plan's global batch", there.global_batch_size, here.global_batch_size),
        ("the plan's sequence length", there.sequence_length, here.sequence_length),
        ("the plan's precision", there.precision, here.precision),
    )


def _require_same_settings(
    run: RunSettings, there: RunSettings, *, adapts: bool, say: Callable[[str], None]
) -> None:
    """Refuse other data, numbers or first values than the run began with.

    A tokenizer is known by its checksum. Checkpoints of full training hold all values; adapters lie upon
    those that were there before.
    """
    base = ("--pretrained", _as_moved("--pretrained", there.pretrained, run.pretrained, say), run.pretrained)
    _require(
        run,
        ("--data", _as_moved("--data", there.data, run.data, say), run.data),
        ("--tokenizer", there.tokenizer and (run.tokenizer or there.tokenizer), run.tokenizer),
        ("--text-field", there.text_field, run.text_field),
        ("--document-end", there.document_end, run.document_end),
        ("--seed", there.seed, run.seed),
        ("the precision (--fp32)", there.precision, run.precision),
        *([base] if adapts else []),
    )


def _require(run: RunSettings, *parts: tuple[str, object, object]) -> None:
    """Refuse the first part that is not what it was."""
    for name, there, here in parts:
        if there != here:
            old, new = ("none" if value is None else value for value in (there, here))
            raise InputError(
                what=f"{name} is not what the run began with",
                cause=f"{run.folder} began with {old}, {new} now",
                fix="give the same, or begin a run of its own with another --run-dir",
            )


def _as_moved(flag: str, there: str | None, here: str | None, say: Callable[[str], None]) -> str | None:
    """What the run began with, by the names of here where files have only moved.

    Those are of the same name, and gone from where they were.
    """
    from executor.data.blend import blend_parts

    if there is None or here is None or there == here:
        return there
    old, new = blend_parts(there) or [(1, there)], blend_parts(here) or [(1, here)]
    pairs = [(Path(text), Path(other)) for (_, text), (_, other) in zip(old, new, strict=False)]
    if [weight for weight, _ in old] != [weight for weight, _ in new] or not all(
        path == other or (path.name == other.name and not path.exists() and other.exists())
        for path, other in pairs
    ):
        return there
    say(f"{flag} was {there} when the run began, which is gone: {here} is taken for the same")
    return here
