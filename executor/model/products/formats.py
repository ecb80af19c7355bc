"""Which products a precision means, where they go, and which GPUs have units for them.

Projections of layers and routed experts multiply in eight bits; embedding, head and router do not. What
arrives at a product, what is kept for its backward pass and what leaves stay in the format of compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import nn

from executor.model.products.blocks import BLOCKS
from executor.model.products.products import Products
from executor.model.products.rows import ROWS
from topology.base.errors import InputError

EightBits = Literal["fp8", "mxfp8"]
PRODUCTS: Mapping[EightBits, Products] = {"fp8": ROWS, "mxfp8": BLOCKS}
FIRST_CAPABILITY: Mapping[EightBits, tuple[int, int]] = {"fp8": (8, 9), "mxfp8": (10, 0)}
"""Compute capability of the first GPUs with such units: Ada, and Blackwell for scales of blocks."""
EXPERTS_CAPABILITIES: Mapping[EightBits, tuple[int, ...]] = {"fp8": (9, 10), "mxfp8": (10,)}
"""Major numbers of those for which torch has grouped products in eight bits: Hopper, datacenter Blackwell."""
FNUZ, BY_ROWS_ALONE = "gfx94", "gfx95"  # of MI300's and of MI350's kind


def eight_bits_of(precision: str) -> EightBits | None:
    """Format of eight bits in which a job of a precision multiplies; None for sixteen.

    >>> eight_bits_of("mxfp8"), eight_bits_of("bf16")
    ('mxfp8', None)
    """
    return next((name for name in get_args(EightBits) if name == precision), None)


def multiply_in(layers: nn.Module, name: EightBits) -> None:
    """Have every projection in these layers that may be narrow multiply in a format of eight bits."""
    for module in layers.modules():
        if getattr(module, "may_be_narrow", False):
            module.products = PRODUCTS[name]


def require_units(device: torch.device, name: EightBits, *, experts: bool = False) -> None:
    """Refuse a GPU without units for a format, or kernels for experts in it.

    A CPU computes the same numbers slowly.
    """
    if device.type != "cuda":
        return
    gpu = torch.cuda.get_device_name(device)
    architecture = getattr(torch.cuda.get_device_properties(device), "gcnArchName", "")
    if architecture.startswith(FNUZ):
        raise InputError(
            what="this GPU multiplies another format of eight bits",
            cause=f"{gpu} ({architecture}) takes e4m3fnuz, not e4m3fn",
            fix="plan with --precision bf16, or for other GPUs",
        )
    if architecture.startswith(BY_ROWS_ALONE):
        if name == "fp8":
            return
        raise InputError(
            what=f"this GPU's kernels are not those of {name}",
            cause=f"scales of blocks are laid out for compute capability 10.0, {gpu} is {architecture}",
            fix="plan with --precision fp8, or for other GPUs",
        )
    have, needed = torch.cuda.get_device_capability(device), FIRST_CAPABILITY[name]
    if have < needed:
        narrow = " or fp8" if have >= FIRST_CAPABILITY["fp8"] else ""
        raise InputError(
            what=f"this GPU does not multiply in {name}",
            cause=f"{gpu} has compute capability {have[0]}.{have[1]}, {name} needs {needed[0]}.{needed[1]}",
            fix=f"plan with --precision bf16{narrow}, or for other GPUs",
        )
    if experts and have[0] not in EXPERTS_CAPABILITIES[name]:
        wanted = " or ".join(map(str, EXPERTS_CAPABILITIES[name]))
        raise InputError(
            what=f"torch has no kernel for experts in {name} on this GPU",
            cause=f"{gpu} has compute capability {have[0]}.{have[1]}, its grouped products want {wanted}",
            fix="plan with --precision bf16, or for other GPUs",
        )
