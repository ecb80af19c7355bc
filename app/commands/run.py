"""`plan run`: train with a plan, or plan and then train."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from app.flags.group import gathers
from app.flags.run import (
    OPTIONS,
    DryRun,
    Engine,
    ExportHF,
    PlanFile,
    Prometheus,
    RunFolder,
    by_setting,
)
from app.flags.sections import QUESTION
from app.flags.shared import (
    AcceptChanges,
    AsJson,
    ClusterName,
    GlobalBatchSize,
    GpuName,
    Gpus,
    ModelFlag,
    SequenceLength,
    Settings,
    Tokens,
)


def _take_settings(context: typer.Context, path: Path | None) -> Path | None:
    """Let a file say what flags do not."""
    if path is not None:
        from app.reports.answer import note
        from app.store.run_settings import read_run_file

        context.default_map, notes = read_run_file(path)
        for text in notes:
            note(text)
    return path


SettingsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        help="Flags from a file, as a run writes it (settings.toml); others on the command line win.",
        metavar="FILE",
        rich_help_panel=QUESTION,
        callback=_take_settings,
        is_eager=True,
    ),
]


def _given(context: typer.Context, of_a_file: Container[str]) -> dict[str, object]:
    """Flags that the command line gives, whatever their value, and some that a settings file does."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {
        name: context.params[name]
        for name, source in sources.items()
        if source is not None
        and (source.name == "COMMANDLINE" or (source.name == "DEFAULT_MAP" and name in of_a_file))
    }


@gathers(
    {name: option for name, (option, _) in OPTIONS.items()},
    by_setting,
    defaults={name: default for name, (_, default) in OPTIONS.items()},
    after="engine",
)
def command(
    asked: dict[str, Any],
    context: typer.Context,
    plan_file: PlanFile = None,
    *,
    model: ModelFlag = None,
    gpus: Gpus = None,
    gpu: GpuName = None,
    cluster: ClusterName = None,
    sequence_length: SequenceLength = None,
    global_batch_size: GlobalBatchSize = None,
    tokens: Tokens = None,
    settings: Settings = None,
    settings_file: SettingsFile = None,
    engine: Engine = None,
    folder: RunFolder = Path("run"),
    export_hf: ExportHF = None,
    prometheus: Prometheus = None,
    dry_run: DryRun = False,
    accept_changes: AcceptChanges = False,
    as_json: AsJson = False,
) -> int:
    """Train: plan if need be, start the ranks, restart them after failures, end with a checkpoint."""
    from app.actions.convert import publish_run
    from app.actions.runs import by_engine, training_run
    from app.actions.runs.texts import with_data
    from app.reports.answer import emit
    from executor.training.option import options_of
    from executor.training.settings import Endurance
    from planner.questions.flags import Flags

    by = training_run.STACK if engine is None else by_engine.engine_named(engine)
    by_executor = by == training_run.STACK
    flags = Flags(
        model=model, gpus=gpus, gpu=gpu, cluster=cluster, tokens=tokens,
        stack=by if by_executor else None, engine=None if by_executor else by,
        sequence_length=sequence_length, global_batch_size=global_batch_size,
        settings=tuple(settings or ()),
    )  # fmt: skip
    if not by_executor:
        plan = training_run.asked_plan(plan_file, flags, accept_changes=accept_changes)
        given = _given(context, by_engine.VARIABLE_OF)
        return by_engine.started_by(
            by, plan, given, steps=training_run.steps_of(plan), folder=folder, nnodes=asked["nnodes"],
            endpoint=asked["rdzv_endpoint"], checked=asked["preflight"], dry_run=dry_run, as_json=as_json,
        )  # fmt: skip
    del settings_file  # its values are those of the flags that were not given
    plan = training_run.plan_to_run(plan_file, flags, accept_changes=accept_changes)
    endurance = Endurance(**{name: asked.pop(name) for name in options_of(Endurance)})
    run = training_run.run_settings(asked, plan, folder)
    run, texts = with_data(run, plan)
    training_run.check_run(plan, run, texts, endurance.min_gpus)
    if export_hf is not None:
        training_run.check_publishable(plan, export_hf)
    beside = training_run.files_beside(run, plan, endurance, texts)
    if dry_run:
        return training_run.print_command(run, plan, beside, as_json=as_json)
    status = training_run.supervised(run, plan, endurance, beside, prometheus)
    published = None
    if export_hf is not None and status.state != "error":
        published = publish_run(folder, export_hf, run_key=None if run.run_key is None else Path(run.run_key))
    training_run.keep_measured(run, status)
    return emit(training_run.run_answer(run, status, published), as_json=as_json)
