"""`plan memory`: the bytes of a model, before any question of GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

from app.flags.completion import model_completion
from app.flags.shared import (
    AdapterFlag,
    AsJson,
    ModelFlag,
    OutputFile,
    OutputFormat,
    PrecisionFlag,
    SequenceLength,
    Stack,
)
from planner.questions.flags import Flags


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A name (70b, deepseek-v3), or a config.json; --model says the same.",
            autocompletion=model_completion,
        ),
    ] = None,
    *,
    model: ModelFlag = None,
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
        model=_model(name, model), gpus="1", sequence_length=sequence_length, precision=precision,
        stack=stack, adapter=adapter, global_batch_size="1",
    )  # fmt: skip
    understood = understand(flags)
    for text in understood.notes:
        note(text)
    answer = memory_answer(model_memory(understood.request))
    return emit(answer, wanted=output_format, as_json=as_json, output=output)


def _model(name: str | None, flag: str | None) -> str:
    """The one model that is named, beside the command or after its flag."""
    from topology.base.errors import InputError

    if name is not None and flag is not None and name != flag:
        raise InputError(
            what="two models were named",
            cause=f"{name} beside the command, {flag} after --model",
            fix=f"write plan memory {name}, or plan memory {flag}",
        )
    model = name or flag
    if model is None:
        raise InputError(
            what="no model was named",
            cause="neither MODEL nor --model was given",
            fix="write plan memory 70b; plan models lists names",
        )
    return model
