"""`plan explain`: what binds a plan, why the runner-up lost, what would help; or why there is no plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    plan: Annotated[Path | None, typer.Argument(metavar="[PLAN.json]", help="A plan to explain.")] = None,
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
    """Explain a plan from a file, or the plan that the flags ask for.

    Says which memory and links bind, why the runner-up lost and by how much, and which single change would
    help most. Without any possible plan: the rules in the way, and the nearest change that gives one.
    """
    from app.explain_report import explain_answer, infeasible_answer
    from app.output import check_destination, emit, note
    from app.plan_file import read_plan
    from app.request import Flags, understand
    from app.solve import answer_of
    from planner.plan import Plan

    check_destination(wanted=output_format, as_json=as_json, output=output)
    if plan is not None:
        return emit(explain_answer(read_plan(plan)), wanted=output_format, as_json=as_json, output=output)
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
    found = answer_of(understood.request)
    answer = explain_answer(found) if isinstance(found, Plan) else infeasible_answer(found)
    for text in understood.notes:
        note(text)
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
