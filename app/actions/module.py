"""A torch module in place of a named model: traced in its own process, then asked about like others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.terminal.progress import waiting
from planner.questions.flags import Flags
from planner.questions.traced import (
    STACK,
    length_asked,
    length_note,
    of_a_module,
    of_samples,
    traced_name,
)
from planner.questions.training import Understood, understand
from topology.base.errors import InputError


def is_traced(flags: Flags, module: str | None, inputs: str | None) -> bool:
    """Whether a question is about what is traced: a module, a model of a library, a family not described."""
    return module is not None or inputs is not None or bool(traced_name(flags.model))


def understood_question(flags: Flags, module: str | None = None, inputs: str | None = None) -> Understood:
    """The request of flags, whose model is traced where the catalog does not describe it."""
    if not is_traced(flags, module, inputs):
        return understand(flags)
    return understood_modules((flags,), module or "", inputs)[0]


def understood_modules(asked: Sequence[Flags], module: str, inputs: str | None) -> tuple[Understood, ...]:
    """Several questions about one module, or one model of a library, which is traced once."""
    from app.extras import require_library, require_torch

    flags = asked[0]
    named = traced_name(flags.model)
    library = named.partition(":")[0]
    if library and not module:
        require_library(library, f"--model {flags.model}")
        module, asked = named, [replace(flags, model=None) for flags in asked]
    elif flags.model:
        raise InputError("two models were given", f"--model {flags.model} and --module {module}", "give one")
    if not (inputs or library):
        raise InputError(
            what="the inputs of the module are not known",
            cause="--input is missing",
            fix="add for example --input 8x3x224x224, or --input 8x128:long for tokens",
        )
    whole = [of_a_module(flags) for flags in asked]
    require_torch("plan --module")
    with waiting(f"tracing {module}"):
        from costmodel.ops.module_spec import spec_of_module
        from executor.tracing.process import traced_by_process

        lengths = {length_asked(flags) if library else 0 for flags in whole}
        traced = {length: traced_by_process(module, inputs or "", length=length) for length in lengths}
    result = []
    for item in whole:
        table = traced[length_asked(item) if library else 0]
        understood = understand(of_samples(item, table), model=spec_of_module(table))
        notes = (*understood.notes, *length_note(table), _note(flags))
        result.append(Understood(request=understood.request, notes=notes))
    return tuple(result)


def _note(flags: Flags) -> str:
    """What a person should know of the answer."""
    stack = "" if flags.stack else f"; priced as {STACK}, --stack says otherwise"
    return f"tokens of a document count samples; the module's own code was run to trace it{stack}"
