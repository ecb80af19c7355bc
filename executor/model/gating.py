"""Activations of the feed-forward, gated or plain, keeping for the backward pass only their inputs.

Legend: ``T`` rows, ``F`` feed-forward size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from costmodel.models.hf.experts import SWIGLU_ALPHA
from costmodel.models.spec import Activation, ModelSpec

_GELU = {"gelu": "none", "gelu_tanh": "tanh"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """How one half of a gated feed-forward gates the other; `limit` clamps both (gpt-oss), None does not."""

    activation: Activation = "silu"
    limit: float | None = None

    def value(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Gate `up`: both (…, F)."""
        if self.limit is None:
            return activate(gate, self.activation) * up
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(SWIGLU_ALPHA * gate) * (up + 1)

    def gradients(
        self, gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of both halves, given that of the value."""
        if self.limit is None:
            d_gate = _activation_gradient(gradient * up, gate, self.activation)
            return d_gate, gradient * activate(gate, self.activation)
        kept_gate, kept_up = gate <= self.limit, up.abs() <= self.limit
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        sigmoid = torch.sigmoid(SWIGLU_ALPHA * gate)
        slope = sigmoid * (1 + SWIGLU_ALPHA * gate * (1 - sigmoid))
        return gradient * (up + 1) * slope * kept_gate, gradient * gate * sigmoid * kept_up


def gate_of(spec: ModelSpec) -> Gate:
    """Gate of a model's feed-forward."""
    return Gate(activation=spec.activation, limit=spec.swiglu_limit)


def activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Apply an activation to each element."""
    if activation == "silu":
        return functional.silu(x)
    if activation == "relu2":
        return functional.relu(x).square()
    return functional.gelu(x, approximate=_GELU[activation])


def _activation_gradient(gradient: torch.Tensor, x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Gradient of an activation's input, given that of its value."""
    if activation == "silu":
        sigmoid = torch.sigmoid(x)
        return gradient * (sigmoid + x * sigmoid * (1 - sigmoid))
    if activation == "relu2":
        return gradient * 2 * functional.relu(x)
    return torch.ops.aten.gelu_backward(gradient, x, approximate=_GELU[activation])


class _Gated(torch.autograd.Function):
    """A gate's value, saving its two inputs."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor, kind: Gate) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        ctx.kind = kind
        return kind.value(gate, up)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        gate, up = ctx.saved_tensors
        return *ctx.kind.gradients(gradients[0], gate, up), None


def gated(gate: torch.Tensor, up: torch.Tensor, kind: Gate) -> torch.Tensor:
    """Gate `up` (Shazeer 2020): both (…, F)."""
    result: torch.Tensor = _Gated.apply(gate, up, kind)
    return result


class _WeightedGated(torch.autograd.Function):
    """A gate's value times the weight of each row, saving gate, up and weight."""

    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, up: torch.Tensor, weight: torch.Tensor, kind: Gate
    ) -> torch.Tensor:
        ctx.save_for_backward(gate, up, weight)
        ctx.kind = kind
        return kind.value(gate, up).mul_(weight.unsqueeze(-1))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        gate, up, weight = ctx.saved_tensors
        kind, gradient = ctx.kind, gradients[0]
        d_weight = (gradient * kind.value(gate, up)).sum(-1, dtype=torch.float32).to(weight.dtype)
        return *kind.gradients(gradient * weight.unsqueeze(-1), gate, up), d_weight, None


def weighted_gated(gate: torch.Tensor, up: torch.Tensor, weight: torch.Tensor, kind: Gate) -> torch.Tensor:
    """Gate `up` and scale each row: (T, F), (T, F), (T,)."""
    result: torch.Tensor = _WeightedGated.apply(gate, up, weight, kind)
    return result
