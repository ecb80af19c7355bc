"""`plan run`: train with a plan, or plan and then train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.options import (
    AsJson,
    ClusterName,
    GlobalBatchSize,
    GpuName,
    Gpus,
    Model,
    SequenceLength,
    Settings,
    Tokens,
)

if TYPE_CHECKING:
    from app.job_flags import Flags
    from app.output import Answer
    from executor.run_settings import RunSettings, Status
    from planner.plan import Plan, PlanRequest

STACK = "meshplan"
DEFAULT_STEPS = 100
DEGREES = ("tp", "pp", "dp", "cp", "ep", "expert_tp", "shard_degree", "virtual_stages", "microbatch_size")


def command(
    plan_file: Annotated[
        Path | None, typer.Argument(metavar="[PLAN.json]", help="A plan written by plan --json.")
    ] = None,
    *,
    model: Model = None,
    gpus: Gpus = None,
    gpu: GpuName = None,
    cluster: ClusterName = None,
    sequence_length: SequenceLength = None,
    global_batch_size: GlobalBatchSize = None,
    tokens: Tokens = None,
    settings: Settings = None,
    data: Annotated[
        str, typer.Option(help="synthetic, a .npy or .bin file of token ids, or a text file.", metavar="DATA")
    ] = "synthetic",
    folder: Annotated[
        Path, typer.Option("--run-dir", help="Folder for checkpoints and metrics; resumes what is there.")
    ] = Path("run"),
    steps: Annotated[
        int | None, typer.Option(min=1, help="Optimizer steps; by default --tokens, or 100.")
    ] = None,
    pretrained: Annotated[
        Path | None, typer.Option(help="Start from a Hugging Face state dict.", metavar="PATH")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    fp32: Annotated[bool, typer.Option("--fp32", help="Compute in fp32 instead of bf16.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of initial values and data order.")] = 0,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-4,
    warmup_steps: Annotated[
        int | None, typer.Option(min=0, help="Warm-up; by default 1 % of the steps.")
    ] = None,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of matrices.")] = 0.1,
    clip_norm: Annotated[float, typer.Option(help="Largest gradient norm.")] = 1.0,
    checkpoint_every: Annotated[
        int, typer.Option(min=0, help="Steps between checkpoints; 0 for the interval of Young and Daly.")
    ] = 0,
    keep_checkpoints: Annotated[int, typer.Option(min=1, help="Checkpoints to keep.")] = 3,
    min_gpus: Annotated[
        int | None, typer.Option(min=1, help="Continue on fewer GPUs, down to this many, when some are lost.")
    ] = None,
    profile_step: Annotated[
        int | None, typer.Option(min=1, help="Trace this step with torch's profiler.")
    ] = None,
    wandb: Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases too.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write the run, print its command, do not start.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Train: plan if need be, start the ranks, restart them after failures, end with a checkpoint."""
    from app.job_flags import Flags
    from app.output import emit
    from executor.launch import with_plan
    from executor.run_settings import RunSettings

    flags = Flags(
        model=model,
        gpus=gpus,
        gpu=gpu,
        cluster=cluster,
        sequence_length=sequence_length,
        global_batch_size=global_batch_size,
        tokens=tokens,
        stack=STACK,
        settings=tuple(settings or ()),
    )
    plan = _plan(plan_file, flags)
    count = steps or _steps(plan)
    run = with_plan(
        RunSettings(
            folder="",
            plan_file="",
            steps=count,
            data=data if data == "synthetic" else str(Path(data).resolve()),
            pretrained=None if pretrained is None else str(pretrained.resolve()),
            device=_device(device),
            precision="fp32" if fp32 else "bf16",
            seed=seed,
            learning_rate=learning_rate,
            warmup_steps=count // 100 if warmup_steps is None else warmup_steps,
            weight_decay=weight_decay,
            clip_norm=clip_norm,
            checkpoint_every=checkpoint_every,
            keep_checkpoints=keep_checkpoints,
            profile_step=profile_step,
            wandb=wandb,
        ),
        folder.resolve(),
    )
    _check(plan, run)
    if dry_run:
        return _print_command(run, plan, as_json=as_json)
    return emit(_run_answer(run, _supervised(run, plan, min_gpus)), as_json=as_json)


def _plan(plan_file: Path | None, flags: Flags) -> Plan:
    """Read the plan, or make one for the meshplan stack."""
    from app.output import note
    from app.plan_file import read_plan
    from app.request import understand
    from app.solve import find_plan
    from topology.errors import InputError

    if plan_file is None:
        understood = understand(flags)
        for text in understood.notes:
            note(text)
        return find_plan(understood.request)
    if flags.model or flags.gpus or flags.cluster:
        raise InputError(
            what="both a plan and a question were given",
            cause=f"{plan_file} and --model, --gpus or --cluster",
            fix="give the plan alone, or leave it out to plan first",
        )
    return read_plan(plan_file)


def _steps(plan: Plan) -> int:
    """Steps that consume the job's tokens, a hundred when it names none."""
    job = plan.request.job
    return DEFAULT_STEPS if job.total_tokens is None else max(1, job.total_tokens // job.tokens_per_step)


def _device(name: str) -> Literal["auto", "cpu", "cuda"]:
    """Check the name of a device."""
    from topology.names import resolve

    choices: tuple[Literal["auto", "cpu", "cuda"], ...] = ("auto", "cpu", "cuda")
    found = resolve(name, choices, "device")
    return next(choice for choice in choices if choice == found)


def _check(plan: Plan, run: RunSettings) -> None:
    """Refuse what would fail or destroy something later."""
    from app.plan_file import read_plan
    from topology.errors import InputError

    job = plan.request.job
    if job.precision != "bf16":
        raise InputError(
            what="meshplan trains in bf16 or fp32",
            cause=f"the plan's precision is {job.precision}",
            fix="plan with --precision bf16, or export the plan to a framework that has it",
        )
    earlier = Path(run.plan_file)
    if earlier.exists() and read_plan(earlier).request.model != plan.request.model:
        raise InputError(
            what=f"{run.folder} holds a run of another model",
            cause=f"{read_plan(earlier).request.model.name} there, {plan.request.model.name} here",
            fix="give another --run-dir",
        )
    if _missing("torch"):
        raise InputError(
            what="torch is not installed", cause="plan run trains with it", fix='pip install "meshplan[run]"'
        )


def _missing(name: str) -> bool:
    """Whether a package cannot be imported, found out without importing it."""
    from importlib.util import find_spec

    return find_spec(name) is None


def _supervised(run: RunSettings, plan: Plan, min_gpus: int | None) -> Status:
    """Run to the end, planning again for fewer GPUs when allowed."""
    from app.output import note
    from executor.launch import Supervision, supervise

    supervision = Supervision(min_gpus=min_gpus, replan=lambda count: _replan(plan.request, count), say=note)
    return supervise(run, plan, supervision)


def _replan(request: PlanRequest, num_gpus: int) -> Plan | None:
    """Plan the same job and global batch on fewer GPUs; pinned degrees no longer fit and are dropped."""
    from dataclasses import replace

    from app.solve import answer_of
    from planner.plan import Plan
    from topology.cluster_file import resized

    pins = {name: value for name, value in request.pins.items() if name not in DEGREES}
    found = answer_of(replace(request, cluster=resized(request.cluster, num_gpus), pins=pins, stack=STACK))
    return found if isinstance(found, Plan) else None


def _print_command(run: RunSettings, plan: Plan, *, as_json: bool) -> int:
    """Write the run's files and print the command that starts them, on one line to copy."""
    import os
    import shlex
    import sys

    from app.errors import ANSWERED
    from app.output import json_text
    from executor.launch import nodes_of_slurm, torchrun_command, write_run

    words = torchrun_command(write_run(run, plan), plan.layout.num_gpus, nodes_of_slurm(os.environ))
    text = json_text({"command": words, "run_dir": run.folder}) if as_json else shlex.join(words)
    sys.stdout.write(f"{text}\n")
    return ANSWERED


def _run_answer(run: RunSettings, status: Status) -> Answer:
    """Say how the run ended; an error of the user's is raised as one."""
    from app.output import Answer, Facts, json_text
    from topology.errors import InputError

    if status.state == "error":
        raise InputError(what=status.what, cause=status.cause, fix=status.fix)
    pairs = (("steps", f"{status.step} of {run.steps}"), ("folder", run.folder))
    document = {"state": status.state, "step": status.step, "steps": run.steps, "run_dir": run.folder}
    return Answer(
        headline=f"training {status.state}",
        sections=(Facts(title="", pairs=pairs),),
        document=json_text(document),
        records=(document,),
    )
