"""Norms, activations and rotary positions, each saving for its backward only what a fused kernel would.

Legend: ``B`` sequences, ``S`` sequence length, ``H`` hidden size, ``h`` heads, ``d`` head size, ``F``
feed-forward size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from executor.tensor_parallel import local


class _RmsNorm(torch.autograd.Function):
    """x·w/√(mean x² + ε) in fp32, saving x and one scalar per row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        dy = gradients[0].float()
        normal = x.float() * scale
        d_weight = (dy * normal).flatten(0, -2).sum(0)
        dn = dy * weight.float()
        dx = scale * (dn - normal * (dn * normal).mean(-1, keepdim=True))
        return dx.to(x.dtype), d_weight.to(weight.dtype), None


class RmsNorm(nn.Module):
    """Root-mean-square norm of the last dimension (Zhang & Sennrich 2019, eq. 4)."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise each row."""
        result: torch.Tensor = _RmsNorm.apply(x, local(self.weight), self.epsilon)
        return result


class LayerNorm(nn.Module):
    """Layer norm of the last dimension; `offset` 1 is Nemotron's, whose weight counts from one."""

    def __init__(self, size: int, epsilon: float, *, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size) - offset)
        self.bias = nn.Parameter(torch.zeros(size))
        self.epsilon, self.offset = epsilon, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise each row."""
        weight = local(self.weight) + self.offset if self.offset else local(self.weight)
        return functional.layer_norm(x, (x.shape[-1],), weight, local(self.bias), self.epsilon)


class _SwiGlu(torch.autograd.Function):
    """silu(gate)·up, saving gate and up."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        d_gate = gradients[0] * up * (sigmoid + silu * (1 - sigmoid))
        return d_gate, gradients[0] * silu


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Gate `up` by silu (Shazeer 2020): both (…, F)."""
    result: torch.Tensor = _SwiGlu.apply(gate, up)
    return result


class _WeightedSwiGlu(torch.autograd.Function):
    """silu(gate)·up·weight of each row, saving gate, up and weight."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up, weight)
        return (functional.silu(gate) * up).mul_(weight.unsqueeze(-1))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        gate, up, weight = ctx.saved_tensors
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        weighted = gradients[0] * weight.unsqueeze(-1)
        d_weight = (gradients[0] * silu * up).sum(-1, dtype=torch.float32).to(weight.dtype)
        return weighted * up * (sigmoid + silu * (1 - sigmoid)), weighted * silu, d_weight


def weighted_swiglu(gate: torch.Tensor, up: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Gate `up` by silu and scale each row: (T, F), (T, F), (T,)."""
    result: torch.Tensor = _WeightedSwiGlu.apply(gate, up, weight)
    return result


def rotary_tables(
    positions: torch.Tensor, size: int, theta: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, each (S, d), of angles position·θ^(−2i/d), halves repeated (RoFormer §3.2)."""
    exponent = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size
    angles = torch.outer(positions.float(), theta**-exponent)
    angles = torch.cat((angles, angles), -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn each head of x (B, S, h, d) by its position; pairs are across the two halves of d."""
    cosine, sine = (table[None, :, None, :] for table in rope)
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cosine + turned * sine


def deinterleave(x: torch.Tensor) -> torch.Tensor:
    """Reorder pairs (0,1),(2,3)… of the last dimension into halves, as DeepSeek's rotary weights expect."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
