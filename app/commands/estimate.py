"""`plan estimate`: what one given layout costs."""

from __future__ import annotations

from app.options import (
    Anchor,
    AsJson,
    ClusterName,
    Deadline,
    GlobalBatchSize,
    GpuName,
    Gpus,
    Model,
    OutputFile,
    OutputFormat,
    Precision,
    SequenceLength,
    Settings,
    Stack,
    Tokens,
)


def command(
    *,
    model: Model = None,
    gpus: Gpus = None,
    gpu: GpuName = None,
    cluster: ClusterName = None,
    sequence_length: SequenceLength = None,
    global_batch_size: GlobalBatchSize = None,
    precision: Precision = None,
    stack: Stack = None,
    tokens: Tokens = None,
    deadline: Deadline = None,
    settings: Settings = None,
    anchor: Anchor = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Estimate one layout, given by --set layout.tp=8 --set layout.pp=4 … (dp fills the GPUs).

    Stages are split and recomputation is chosen as the planner would, for exactly this layout.
    """
    from app.estimate_report import estimate_answer
    from app.one_layout import plan_of_layout
    from app.output import check_destination, emit, note
    from app.request import Flags, understand

    check_destination(wanted=output_format, as_json=as_json, output=output)
    flags = Flags(
        model=model,
        gpus=gpus,
        gpu=gpu,
        cluster=cluster,
        sequence_length=sequence_length,
        global_batch_size=global_batch_size,
        precision=precision,
        stack=stack,
        tokens=tokens,
        deadline=deadline,
        anchor=anchor,
        settings=tuple(settings or ()),
    )
    understood = understand(flags)
    answer = estimate_answer(plan_of_layout(understood.request))
    for text in understood.notes:
        note(text)
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
