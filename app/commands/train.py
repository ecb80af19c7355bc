"""`plan train`, which is also plain `plan`: the best way to split a training job over a cluster."""

from __future__ import annotations

from app.options import (
    Anchor,
    AsJson,
    ClusterName,
    Deadline,
    GlobalBatchSize,
    GpuName,
    Gpus,
    MemoryHeadroom,
    Model,
    Objective,
    OutputFile,
    OutputFormat,
    Precision,
    SequenceLength,
    Settings,
    Stack,
    Tokens,
    Top,
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
    objective: Objective = None,
    tokens: Tokens = None,
    deadline: Deadline = None,
    settings: Settings = None,
    anchor: Anchor = None,
    memory_headroom: MemoryHeadroom = None,
    top: Top = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Plan a training job (the default command).

    Every axis is decided jointly; the plan is proven optimal under the cost model, or states its gap.
    """
    from app.output import check_destination, emit, note
    from app.plan_report import plan_answer
    from app.request import Flags, understand
    from app.solve import find_plan

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
        objective=objective,
        tokens=tokens,
        deadline=deadline,
        memory_headroom=memory_headroom,
        top=top,
        anchor=anchor,
        settings=tuple(settings or ()),
    )
    understood = understand(flags)
    answer = plan_answer(find_plan(understood.request))
    for text in understood.notes:
        note(text)
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
