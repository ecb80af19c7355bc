"""The three products of a projection: its result, and the gradients of its input and of its weight.

In eight bits the operands of each are rounded to e4m3 with one factor for every row along which it sums, a
power of two so that the factor itself rounds nothing: torchao's recipe ``rowwise``. What arrives, what is
kept for the backward pass and what leaves stay in the format of compute; so do embedding, head and router.
Powers of two also make layouts agree: another part of a row has another factor, but rounds to the same
values, unless they are below 2⁻¹⁵ of the row's largest.

Legend: ``T`` tokens, ``k`` input size, ``n`` output size.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import ScalingType

from topology.base.errors import InputError

FORMAT = torch.float8_e4m3fn
LEAST = 1e-12  # largest value of a row that is taken for one of zeros, as torchao does
FIRST_CAPABILITY = (8, 9)  # of GPUs that multiply in eight bits
OTHER_FORMAT = "gfx94"  # of MI300's kind, as torchao knows them
MULTIPLE = 16  # of every side of a product: the kernels read rows of sixteen bytes
_MANTISSA_BITS, _BIAS = 23, 127  # of fp32
_LARGEST_MANTISSA = 0x600000  # 448 = 1.75 · 2⁸
_LARGEST_EXPONENT = 8


class Products:
    """In the format that the operands have."""

    eight_bits = False

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Rows x (…, k) times a weight (n, k): (…, n)."""
        return functional.linear(x, weight)

    def of_input(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Gradient of the rows, (…, k), of that of the result, (…, n)."""
        return gradient @ weight

    def of_weight(self, gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Gradient of the weight, (n, k)."""
        return gradient.flatten(0, -2).t() @ x.flatten(0, -2)


class EightBits(Products):
    """In eight bits, by rows."""

    eight_bits = True

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Rows x (…, k) times a weight (n, k): (…, n); a GPU's sums may be short."""
        return multiply(x.flatten(0, -2), weight, fast=True).unflatten(0, x.shape[:-1])

    def of_input(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Gradient of the rows, (…, k), of that of the result, (…, n)."""
        return multiply(gradient.flatten(0, -2), weight.t()).unflatten(0, gradient.shape[:-1])

    def of_weight(self, gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Gradient of the weight, (n, k)."""
        return multiply(gradient.flatten(0, -2).t(), x.flatten(0, -2).t())


SAME = Products()
EIGHT_BITS = EightBits()


def factors(largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest power of two by which so large a value stays within e4m3, and its inverse, fp32.

    Read off the bits: a quotient and a logarithm would round, and not alike on every device.

    >>> [x.tolist() for x in factors(torch.tensor([448.0, 448.5, 1.0, 0.0]))]
    [[1.0, 0.5, 256.0, 281474976710656.0], [1.0, 2.0, 0.00390625, 3.552713678800501e-15]]
    """
    bits = largest.float().clamp(min=LEAST).view(torch.int32)
    beyond = (bits & ((1 << _MANTISSA_BITS) - 1)) > _LARGEST_MANTISSA
    power = _LARGEST_EXPONENT + _BIAS - (bits >> _MANTISSA_BITS) - beyond.int()
    up, down = ((_BIAS + sign * power) << _MANTISSA_BITS for sign in (1, -1))
    return up.view(torch.float32), down.view(torch.float32)


def rounded(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix (m, k) in e4m3, row after row, and what each row is to be multiplied by, (m, 1)."""
    largest = torch.linalg.vector_norm(matrix, ord=float("inf"), dim=-1, keepdim=True)
    up, down = factors(largest)
    return (matrix * up.to(matrix.dtype)).to(FORMAT).contiguous(), down


def multiply(left: torch.Tensor, right: torch.Tensor, *, fast: bool = False) -> torch.Tensor:
    """Product of rows, left (m, k) · right (n, k)ᵀ, both in eight bits, summed in fp32; `fast` on a GPU."""
    on_gpu = left.is_cuda
    (a, a_scale), (b, b_scale) = rounded(left), rounded(right)
    result = functional.scaled_mm(
        a,
        b.t(),
        a_scale,
        ScalingType.RowWise,
        b_scale.t(),
        ScalingType.RowWise,
        output_dtype=torch.bfloat16 if on_gpu else left.dtype,  # a GPU's kernel of rows has no other
        use_fast_accum=fast and on_gpu,
    )
    return result.to(left.dtype)


def multiply_in_eight_bits(layers: nn.Module) -> None:
    """Have every projection in these layers that may be narrow multiply in eight bits."""
    for module in layers.modules():
        if getattr(module, "may_be_narrow", False):
            module.products = EIGHT_BITS


def require_eight_bits(device: torch.device) -> None:
    """Refuse a GPU without units for eight bits; a CPU computes the same numbers slowly."""
    if device.type != "cuda":
        return
    architecture = getattr(torch.cuda.get_device_properties(device), "gcnArchName", "")
    if architecture.startswith(OTHER_FORMAT):
        raise InputError(
            what="this GPU multiplies another format of eight bits",
            cause=f"{torch.cuda.get_device_name(device)} ({architecture}) takes e4m3fnuz, not e4m3fn",
            fix="plan with --precision bf16, or for other GPUs",
        )
    have = torch.cuda.get_device_capability(device)
    if have < FIRST_CAPABILITY:
        raise InputError(
            what="this GPU does not multiply in eight bits",
            cause=f"{torch.cuda.get_device_name(device)} has compute capability {have[0]}.{have[1]}, "
            f"fp8 needs {FIRST_CAPABILITY[0]}.{FIRST_CAPABILITY[1]}",
            fix="plan with --precision bf16, or for other GPUs",
        )
