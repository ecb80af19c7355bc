"""A torch module in place of a named model: traced in its own process, then asked about like others."""

from __future__ import annotations

from app.terminal.progress import waiting
from planner.questions.flags import Flags
from planner.questions.traced import STACK, of_a_module
from planner.questions.training import Understood, understand
from topology.base.errors import InputError


def understood_module(flags: Flags, module: str, inputs: str | None) -> Understood:
    """The request for a module, which no engine's contract describes."""
    from app.extras import require_torch

    if flags.model:
        raise InputError("two models were given", f"--model {flags.model} and --module {module}", "give one")
    if not inputs:
        raise InputError(
            what="the inputs of the module are not known",
            cause="--input is missing",
            fix="add for example --input 8x3x224x224, or --input 8x128:long for tokens",
        )
    asked = of_a_module(flags)
    require_torch("plan --module")
    with waiting(f"tracing {module}"):
        from costmodel.ops.module_spec import spec_of_module
        from executor.tracing.process import traced_by_process

        model = spec_of_module(traced_by_process(module, inputs))
    found = understand(asked, model=model)
    return Understood(request=found.request, notes=(*found.notes, _note(flags)))


def _note(flags: Flags) -> str:
    """What a person should know of the answer."""
    stack = "" if flags.stack else f"; priced as {STACK}, --stack says otherwise"
    return f"a sequence is one sample, tokens count samples; the module's own code was run to trace it{stack}"
