"""A module without weights, traced in this process: tensors of the meta device have shapes and no data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from costmodel.models.traced import TracedModule
from executor.tracing.failure import explain
from executor.tracing.record import record_forward
from executor.tracing.table import traced_table
from topology.base.errors import InputError, shown

DTYPES = ("bfloat16", "long", "int", "bool", "float")
MOST_ELEMENTS = 2**40  # of an input; larger ones are typing errors
MOST_FROZEN = 0.02  # of all parameters; the positions of Whisper-tiny are 1.5 %
_INPUT = re.compile(r"([0-9]+(?:x[0-9]+)*)(?::([a-z0-9]+))?")


def trace_module(module: Any, inputs: Sequence[Any], *, name: str = "") -> TracedModule:
    """Trace a module in bf16 with example inputs; neither is changed where it is on another device.

    Args:
        module: A `torch.nn.Module`; copied to the meta device, which needs no memory for its weights.
        inputs: Tensors that its forward takes, the batch first.
        name: What people call it; the module's class by default.

    Raises:
        InputError: If a parameter is frozen, the inputs have no batch, or its code fails, with the line.
    """
    import copy

    import torch

    if not inputs or any(not tensor.dim() for tensor in inputs):
        raise InputError("the inputs have no batch", "an input has no dimensions", "give the batch first")
    memo = {
        id(p): torch.nn.Parameter(p.to("meta"), requires_grad=p.requires_grad) for p in module.parameters()
    }
    bare = copy.deepcopy(module, memo).to(device="meta", dtype=torch.bfloat16).train()
    _require_trained(bare)
    placed = [tensor.to("meta") for tensor in inputs]
    placed = [tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for tensor in placed]
    called = name or type(module).__name__
    try:
        record = record_forward(bare, placed)
    except Exception as error:
        raise InputError(*explain(error, called)) from error
    shapes = ["x".join(map(str, tensor.shape)) for tensor in placed]
    texts = [tensor.shape[1] for tensor in placed if not tensor.is_floating_point() and tensor.dim() > 1]
    return traced_table(record, called, shapes, int(placed[0].shape[0]), int(next(iter(texts), 0)))


def _require_trained(module: Any) -> None:
    """Refuse frozen weights; tables of positions that were computed once are few, and count as trained."""
    frozen = {name: p.numel() for name, p in module.named_parameters() if not p.requires_grad}
    share = sum(frozen.values()) / max(1, sum(p.numel() for p in module.parameters()))
    if share > MOST_FROZEN:
        raise InputError(
            what="frozen parameters are not planned yet",
            cause=f"{share:.0%} have requires_grad=False, for example {shown(next(iter(frozen)))}",
            fix="trace the module with every parameter trained",
        )


def trace_given(module: Any, inputs: Any, *, name: str = "") -> TracedModule:
    """Trace what a caller holds: one tensor, several, or their sizes as text.

    Raises:
        InputError: As of `trace_module`, or if this is no module.
    """
    import torch

    if not isinstance(module, torch.nn.Module):
        raise InputError(
            what="this is no torch module",
            cause=f"it is a {type(module).__name__}",
            fix="give a torch.nn.Module, not its class or its builder",
        )
    given = example_inputs(inputs) if isinstance(inputs, str) else inputs
    return trace_module(module, [given] if isinstance(given, torch.Tensor) else list(given), name=name)


def example_inputs(text: str) -> list[Any]:
    """Tensors of the meta device: ``8x3x224x224``, ``8x128:long``; several with commas.

    Raises:
        InputError: If the text is not made of those.
    """
    import torch

    result = []
    for word in text.split(","):
        match = _INPUT.fullmatch(word.strip())
        dtype = (match and match[2]) or "bfloat16"
        sizes = [int(size[:16]) for size in match[1].split("x")] if match else []
        elements = 1
        for size in sizes:
            elements *= size
        if not match or dtype not in DTYPES or not 0 < elements <= MOST_ELEMENTS:
            raise InputError(
                what=f"{shown(word)} is not an input",
                cause=f"an input is sizes joined by x, and perhaps one of {', '.join(DTYPES)}",
                fix="give for example --input 8x3x224x224, or --input 8x128:long for tokens",
            )
        result.append(torch.empty(sizes, dtype=getattr(torch, dtype), device="meta"))
    return result
