"""`plan sweep`: the best plan over GPU counts, GPU kinds, sequence lengths and batches."""

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
    Objective,
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
    objective: Objective = None,
    tokens: Tokens = None,
    deadline: Deadline = None,
    settings: Settings = None,
    anchor: Anchor = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Plan every point of a grid: --gpus 8..256 --gpu h100-sxm,b200-sxm --sequence-length 4k,32k.

    Lists are separated by commas; 8..256 doubles. Points without a plan say why and do not stop the sweep.
    """
    from app.output import check_destination, emit
    from app.request import Flags
    from app.sweep import points_of, run_points, sweep_answer

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
        anchor=anchor,
        settings=tuple(settings or ()),
    )
    answer = sweep_answer(tuple(run_points(points_of(flags))))
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
