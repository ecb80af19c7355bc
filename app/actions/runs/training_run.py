"""Carry out `plan run`: find the plan, refuse what cannot end well, start the ranks, tell how it ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.actions.convert import Publication
    from app.reports.answer import Answer
    from executor.data.pieces import Contents
    from executor.training.settings import Endurance, RunSettings, RunStatus
    from planner.plan import Plan
    from planner.questions.flags import Flags

STACK = "meshplan"
DEFAULT_STEPS = 100
STATE_LIMITS = ("adapter", "adapted", "compression", "compressed", "offload", "optimizer", "further-tokens")
"""Limits of the executor that no choice of a layout changes."""


def run_settings(asked: Mapping[str, Any], plan: Plan, folder: Path) -> RunSettings:
    """Settings of the run, with what the plan decides where a user does not.

    Args:
        asked: Every setting of `RunSettings` in the form in which it is asked.
        plan: What is trained.
        folder: Of the run.
    """
    from app.actions.runs.numbers import default_decay_steps, rate_shape_named
    from executor.data.source import named_in_full
    from executor.data.tokenizer import tokenizer_file
    from executor.launch.supervise import with_plan
    from executor.training.settings import RunSettings
    from planner.campaign.saving import save_interval_steps

    steps = asked["steps"] or steps_of(plan)
    decided: dict[str, Any] = {
        "steps": steps,
        "data": named_in_full(asked["data"]),
        "tokenizer": asked["tokenizer"] and str(tokenizer_file(asked["tokenizer"]).absolute()),
        "eval_data": asked["eval_data"] and named_in_full(asked["eval_data"]),
        "pretrained": asked["pretrained"] and str(asked["pretrained"].resolve()),
        "device": device_named(asked["device"]),
        "precision": "fp32" if asked["precision"] else "bf16",
        "warmup_steps": steps // 100 if asked["warmup_steps"] is None else asked["warmup_steps"],
        "rate_shape": rate_shape_named(asked["rate_shape"]),
        "decay_steps": default_decay_steps(steps) if asked["decay_steps"] is None else asked["decay_steps"],
        "checkpoint_every": asked["checkpoint_every"] or save_interval_steps(plan) or 0,
        "env": tuple(asked["env"] or ()),
        "run_key": asked["run_key"] and str(asked["run_key"].resolve()),
    }
    return with_plan(RunSettings(folder="", plan_file="", **{**asked, **decided}), folder.resolve())


def plan_to_run(plan_file: Path | None, flags: Flags, *, accept_changes: bool = False) -> Plan:
    """Read the plan, which is verified and must fit its GPU, or make one for the meshplan stack."""
    from app.reports.answer import note
    from app.requests.plan_file import require_built
    from planner.plan import FREE
    from planner.rules.verdict import require_room

    plan = asked_plan(plan_file, flags, accept_changes=accept_changes)
    if plan_file is None:
        return plan
    require_trained_as_planned(plan)
    engine = plan.request.engine
    if engine not in (STACK, FREE):
        note(f"the plan is for {engine}: its twin is trained; --engine {engine} starts {engine} itself")
    return require_room(require_built(plan, "plan run"))


def asked_plan(plan_file: Path | None, flags: Flags, *, accept_changes: bool = False) -> Plan:
    """Read a plan, or make one for the question that flags ask."""
    from app.actions.plan import find_plan
    from app.reports.answer import note
    from app.requests.plan_file import read_plan
    from planner.questions.training import understand
    from topology.base.errors import InputError

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
    return read_plan(plan_file, accept_changes=accept_changes, say=note)


def require_trained_as_planned(plan: Plan) -> None:
    """Refuse a plan of which other parameters would be trained, or kept elsewhere, than it says."""
    from planner.engines.meshplan import MESHPLAN
    from planner.engines.read_back import require_runnable

    limits = tuple(limit for limit in MESHPLAN.limits if limit.name in STATE_LIMITS)
    require_runnable(plan, replace(MESHPLAN, limits=limits))


def steps_of(plan: Plan) -> int:
    """Steps that consume the job's tokens, a hundred when it names none."""
    job = plan.request.job
    return DEFAULT_STEPS if job.total_tokens is None else max(1, job.total_tokens // job.tokens_per_step)


def device_named(name: str) -> Literal["auto", "cpu", "cuda"]:
    """Check the name of a device."""
    from topology.base.names import resolve

    choices: tuple[Literal["auto", "cpu", "cuda"], ...] = ("auto", "cpu", "cuda")
    text = resolve(name, choices, "device")
    return next(choice for choice in choices if choice == text)


def _check_compiler(device: str) -> None:
    """Refuse what torch.compile cannot build here: a CPU's kernels are C++."""
    import os
    import shutil

    from topology.base.errors import InputError

    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    if device == "cpu" and not any(shutil.which(name) for name in names):
        raise InputError(
            what="--compile on a CPU needs a C++ compiler",
            cause=f"{' and '.join(names)} are not on PATH",
            fix="install g++, name one by CXX, or leave --compile out",
        )


def _check_documents(run: RunSettings, plan: Plan) -> None:
    """Refuse an end of documents that is no token, or that compiled layers would be compiled anew for."""
    from topology.base.errors import InputError

    end, vocab_size = run.document_end, plan.request.model.vocab_size
    if end is not None and end >= vocab_size:
        raise InputError(
            what="--document-end is not a token of the model",
            cause=f"token {end}, vocab_size is {vocab_size}",
            fix=f"give the id of the end-of-document token, 0 to {vocab_size - 1}",
        )
    if end is not None and run.compiles:
        raise InputError(
            what="--document-end and --compile do not go together",
            cause="lengths of documents change from sequence to sequence, and each would be compiled",
            fix="leave one of them out",
        )


def check_run(plan: Plan, run: RunSettings, texts: Mapping[str, Contents], min_gpus: int | None) -> None:
    """Refuse what would fail, destroy something later, or has no effect; `texts` have been looked through."""
    import os

    from app.actions.runs.numbers import check_meant, check_rates, refuse_large_counts
    from app.actions.runs.resumed import check_resumed
    from app.reports.answer import note
    from executor.data.source import raw_token_notes
    from executor.launch.doors import check_doors
    from executor.launch.overlaps import check_overlaps
    from executor.model.layer_limits import check_modelled
    from executor.training.settings import held_out, training_source
    from planner.engines.meshplan import TRAINS
    from topology.base.errors import InputError

    job = plan.request.job
    check_modelled(plan.request.model)
    refuse_large_counts(run)
    check_rates(run)
    check_meant(run, min_gpus, plan.layout.num_gpus)
    if job.precision not in TRAINS:
        raise InputError(
            what="meshplan trains in bf16, fp32, fp8 or mxfp8",
            cause=f"the plan's precision is {job.precision}",
            fix="plan with --precision bf16, fp8 or mxfp8, or export the plan to a framework that has it",
        )
    check_resumed(run, plan, note)
    if _missing("torch"):
        raise InputError(
            what="torch is not installed", cause="plan run trains with it", fix='pip install "meshplan[run]"'
        )
    check_doors(run, plan, os.environ)
    if run.compiles:
        _check_compiler(run.device)
    if run.async_tp:
        check_overlaps(plan, run.device, fp32=run.precision == "fp32")
    _check_documents(run, plan)
    training_source(run, plan, texts)
    held_out(run, plan, texts)
    for text in raw_token_notes(run.data, plan.request.model.vocab_size):
        note(text)


def _missing(name: str) -> bool:
    """Whether a package cannot be imported, found out without importing it."""
    from importlib.util import find_spec

    return find_spec(name) is None


def supervised(
    run: RunSettings,
    plan: Plan,
    endurance: Endurance,
    beside: Mapping[str, str],
    prometheus: str | None = None,
) -> RunStatus:
    """Run to the end, planning again for fewer GPUs when allowed."""
    from app.actions.runs.replan import replanned
    from app.actions.runs.scrape import scraped
    from app.reports.answer import note
    from app.store.run_metrics import RunMetrics
    from costmodel.layout import layout_words
    from executor.launch.supervise import Supervision, supervise

    supervision = Supervision(
        min_gpus=endurance.min_gpus,
        replan=lambda count, lost: replanned(replace(plan.request, stack=STACK), count, lost),
        say=note,
        notice_s=endurance.notice,
        beside=beside,
    )
    metrics = RunMetrics(Path(run.folder), model=plan.request.model.name, layout=layout_words(plan.layout))
    with scraped(prometheus, metrics.text):
        from app.terminal.progress import lives_on

        lives_on()
        return supervise(run, plan, supervision)


def keep_measured(run: RunSettings, status: RunStatus) -> None:
    """Keep what a run that has ended measured. The run is done: what fails here is told, and ends nothing."""
    from app.reports.answer import note
    from app.requests.plan_file import read_plan
    from app.store.steps import keep_measured_step
    from topology.base.errors import InputError

    if status.state not in ("finished", "stopped"):
        return
    folder, memory = Path(run.folder), status.device_memory_bytes
    try:
        ran = read_plan(Path(run.plan_file))  # what is left of the plan when GPUs were lost
        for text in keep_measured_step(folder, ran, status.device, memory):
            note(text)
    except Exception as error:  # noqa: BLE001 - training has succeeded, whatever is wrong with its log
        reason = error.what if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        note(f"what was measured is not kept: {reason}")


def files_beside(
    run: RunSettings, plan: Plan, endurance: Endurance, texts: Mapping[str, Contents]
) -> dict[str, str]:
    """What repeats a run: its settings, the plan as it was asked for, and what its texts consist of."""
    from app.store.run_settings import ASKED_PLAN_FILE, SETTINGS_FILE, settings_text
    from executor.data.contents import TEXTS_FILE, texts_json
    from planner.plan import to_json

    return {
        SETTINGS_FILE: settings_text(run, endurance),
        ASKED_PLAN_FILE: to_json(plan),
        **({TEXTS_FILE: texts_json(texts)} if texts else {}),
    }


def print_command(run: RunSettings, plan: Plan, beside: Mapping[str, str], *, as_json: bool) -> int:
    """Write the run's files and print the command that starts them, on one line to copy."""
    import shlex

    from app.errors import ANSWERED
    from app.reports.answer import json_text, note, print_text
    from executor.launch.run_lock import run_lock
    from executor.launch.supervise import launch_command, write_beside, write_run

    with run_lock(Path(run.folder), note):
        words = launch_command(write_run(run, plan))
        write_beside(Path(run.folder), beside)
    text = json_text({"command": words, "run_dir": run.folder}) if as_json else shlex.join(words)
    print_text(f"{text}\n", is_json=as_json)
    return ANSWERED


def check_publishable(plan: Plan, to: Path) -> None:
    """Refuse, before training, a model or a folder that its result could not be written as or into."""
    from executor.model.hf_config import published_config
    from executor.training.publish import require_empty
    from topology.base.outputs import require_writable

    published_config(plan.request.model)
    require_empty(to)
    require_writable(to, "give --export-hf a place that you may write")


def run_answer(run: RunSettings, status: RunStatus, published: Publication | None = None) -> Answer:
    """Say how the run ended, and what was published of it; an error of the user's is raised as one."""
    from app.reports.answer import Answer, Facts, json_text
    from topology.base.errors import InputError

    if status.state == "error":
        raise InputError(what=status.what, cause=status.cause, fix=status.fix)
    pairs = [("steps", f"{status.step} of {run.steps}"), ("folder", run.folder)]
    document: dict[str, Any] = {
        "state": status.state,
        "step": status.step,
        "steps": run.steps,
        "run_dir": run.folder,
    }
    if published is not None:
        pairs.append(("published", published.text))
        document["published"] = published.document
    return Answer(
        headline=f"training {status.state}",
        sections=(Facts(title="", pairs=tuple(pairs)),),
        document=lambda: json_text(document),
        records=(document,),
    )
