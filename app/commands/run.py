"""`plan run`: train with a plan, or plan and then train."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from app.flags.run import (
    AdamBeta1,
    AdamBeta2,
    AdamEps,
    AsyncTP,
    CheckpointEvery,
    ClipNorm,
    Compile,
    Data,
    DecaySteps,
    Device,
    DocumentEnd,
    DryRun,
    Engine,
    Environment,
    EvalBatches,
    EvalData,
    EvalInterval,
    ExportHF,
    Fp32,
    Interface,
    KeepCheckpoints,
    LearningRate,
    MinGpus,
    MinLR,
    Nnodes,
    Notice,
    PlanFile,
    Preflight,
    Pretrained,
    ProfileStep,
    Prometheus,
    RateShape,
    RdzvEndpoint,
    RouterLoss,
    RunFolder,
    RunKey,
    Seed,
    Steps,
    TextField,
    Tokenizer,
    WandB,
    WarmupSteps,
    WeightDecay,
)
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


def command(
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
    data: Data = "synthetic",
    tokenizer: Tokenizer = None,
    text_field: TextField = "text",
    document_end: DocumentEnd = None,
    eval_data: EvalData = None,
    eval_interval: EvalInterval = 1000,
    eval_batches: EvalBatches = 0,
    folder: RunFolder = Path("run"),
    steps: Steps = None,
    pretrained: Pretrained = None,
    export_hf: ExportHF = None,
    device: Device = "auto",
    fp32: Fp32 = False,
    compile: Compile = False,  # noqa: A002 - the name of the flag
    async_tp: AsyncTP = False,
    seed: Seed = 0,
    learning_rate: LearningRate = 3e-4,
    warmup_steps: WarmupSteps = None,
    lr_schedule: RateShape = "cosine",
    decay_steps: DecaySteps = None,
    min_lr: MinLR = None,
    weight_decay: WeightDecay = 0.1,
    adam_beta1: AdamBeta1 = 0.9,
    adam_beta2: AdamBeta2 = 0.95,
    adam_eps: AdamEps = 1e-8,
    clip_norm: ClipNorm = 1.0,
    router_loss: RouterLoss = None,
    checkpoint_every: CheckpointEvery = 0,
    keep_checkpoints: KeepCheckpoints = 3,
    min_gpus: MinGpus = None,
    notice: Notice = 30,
    profile_step: ProfileStep = None,
    wandb: WandB = False,
    prometheus: Prometheus = None,
    interface: Interface = None,
    nnodes: Nnodes = None,
    rdzv_endpoint: RdzvEndpoint = None,
    preflight: Preflight = True,
    env: Environment = None,
    run_key: RunKey = None,
    dry_run: DryRun = False,
    accept_changes: AcceptChanges = False,
    as_json: AsJson = False,
) -> int:
    """Train: plan if need be, start the ranks, restart them after failures, end with a checkpoint."""
    from app.actions.convert import publish_run
    from app.actions.runs import by_engine
    from app.actions.runs import own as training_run
    from app.actions.runs.texts import with_texts
    from app.reports.answer import emit
    from planner.questions.flags import Flags

    by = training_run.STACK if engine is None else by_engine.engine_named(engine)
    own = by == training_run.STACK
    flags = Flags(
        model=model, gpus=gpus, gpu=gpu, cluster=cluster, tokens=tokens,
        stack=by if own else None, engine=None if own else by,
        sequence_length=sequence_length, global_batch_size=global_batch_size,
        settings=tuple(settings or ()),
    )  # fmt: skip
    if not own:
        asked = training_run.asked_plan(plan_file, flags, accept_changes=accept_changes)
        given = _given(context, by_engine.VARIABLE_OF)
        return by_engine.started_by(
            by, asked, given, steps=training_run.steps_of(asked), folder=folder, nnodes=nnodes,
            endpoint=rdzv_endpoint, checked=preflight, dry_run=dry_run, as_json=as_json,
        )  # fmt: skip
    how = training_run.RunFlags(
        folder=folder, data=data, tokenizer=tokenizer, text_field=text_field,
        document_end=document_end, eval_data=eval_data,
        eval_interval=eval_interval, eval_batches=eval_batches, steps=steps, pretrained=pretrained,
        device=device, fp32=fp32, compiles=compile, async_tp=async_tp, seed=seed, learning_rate=learning_rate,
        warmup_steps=warmup_steps, rate_shape=lr_schedule,
        decay_steps=decay_steps, min_lr=min_lr, weight_decay=weight_decay, adam_beta1=adam_beta1,
        adam_beta2=adam_beta2, adam_eps=adam_eps, clip_norm=clip_norm,
        router_loss=router_loss, checkpoint_every=checkpoint_every,
        keep_checkpoints=keep_checkpoints, profile_step=profile_step, wandb=wandb, interface=interface,
        preflight=preflight, nnodes=nnodes, rdzv_endpoint=rdzv_endpoint,
        env=tuple(env or ()), run_key=run_key,
    )  # fmt: skip
    del settings_file  # its values are those of the flags that were not given
    plan = training_run.plan_to_run(plan_file, flags, accept_changes=accept_changes)
    run = training_run.run_settings(how, plan)
    run, texts = with_texts(run, plan)
    training_run.check_run(plan, run, texts, min_gpus)
    if export_hf is not None:
        training_run.check_publishable(plan, export_hf)
    beside = training_run.files_beside(run, plan, min_gpus, notice, texts)
    if dry_run:
        return training_run.print_command(run, plan, beside, as_json=as_json)
    status = training_run.supervised(run, plan, min_gpus, notice, beside, prometheus)
    published = None
    if export_hf is not None and status.state != "error":
        published = publish_run(folder, export_hf, run_key=run_key)
    return emit(training_run.run_answer(run, status, published), as_json=as_json)
