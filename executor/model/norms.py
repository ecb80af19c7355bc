"""Norms and the soft cap, each saving for its backward only what a fused kernel would."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from executor.comm.sequence_first import through
from executor.comm.tensor_parallel import local


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
        d_weight = (dy * normal).sum(tuple(range(x.dim() - 1)))
        dn = dy * weight.float()
        dx = (dn - normal * (dn * normal).mean(-1, keepdim=True)) * scale
        return dx.to(x.dtype), d_weight.to(weight.dtype), None


class RmsNorm(nn.Module):
    """Root-mean-square norm of the last dimension (Zhang & Sennrich 2019, eq. 4).

    `offset` 1 is Gemma's, whose weight counts from one and is applied in fp32.
    """

    def __init__(self, size: int, epsilon: float, *, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size) - offset)
        self.epsilon, self.offset = epsilon, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise each row."""
        weight = local(self.weight)
        weight = weight.float() + self.offset if self.offset else weight
        result: torch.Tensor = _RmsNorm.apply(x, weight, self.epsilon)
        return result.to(x.dtype)


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
        bias, size = local(self.bias), (x.shape[-1],)
        return through(lambda rows: functional.layer_norm(rows, size, weight, bias, self.epsilon), x)


class _SoftCap(torch.autograd.Function):
    """c·tanh(x/c) over x, its gradient over what is saved of it: large logits are held once.

    Nothing may read x, or the value after its gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cap: float) -> torch.Tensor:
        value = x.div_(cap).tanh_().mul_(cap)
        ctx.mark_dirty(x)
        ctx.save_for_backward(value)
        ctx.cap = cap
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (value,) = ctx.saved_tensors
        slope = value.div_(ctx.cap).square_().neg_().add_(1)  # read no more
        return slope.mul_(gradients[0]), None


def soft_cap(x: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Keep x within ±cap, in place: c·tanh(x/c) (Gemma 2 §2); None leaves it as it is."""
    if cap is None:
        return x
    result: torch.Tensor = _SoftCap.apply(x, cap)
    return result
