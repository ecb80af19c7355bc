"""`plan memory`: the bytes of a model, before any question of GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from app.flags.completion import model_completion
from app.flags.shared import (
    AdapterFlag,
    AsJson,
    OutputFile,
    OutputFormat,
    PrecisionFlag,
    SequenceLength,
    Stack,
)
from planner.questions.flags import Flags


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A name (70b, deepseek-v3), or the path of a config.json.",
            autocompletion=model_completion,
        ),
    ],
    *,
    sequence_length: SequenceLength = None,
    precision: PrecisionFlag = None,
    stack: Stack = None,
    adapter: AdapterFlag = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Say what a model holds in memory: weights, gradients, optimizer, activations, cache.

    Nothing is planned and nothing has to fit: it is what a layout then divides over its GPUs.
    """
    from app.reports.answer import emit, note
    from app.reports.model_memory import memory_answer, model_memory
    from planner.questions.training import understand

    flags = Flags(
        model=model, gpus="1", sequence_length=sequence_length, precision=precision, stack=stack,
        adapter=adapter, global_batch_size="1",
    )  # fmt: skip
    understood = understand(flags)
    for text in understood.notes:
        note(text)
    answer = memory_answer(model_memory(understood.request))
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
