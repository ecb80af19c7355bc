"""Muon on the matrices of layers, AdamW on everything else: the same update whatever the layout.

Momentum is kept by part, as a parameter is. A step puts each matrix of it together, orthogonalises the whole
by Newton–Schulz, and takes this rank's part of the result, so that no factor depends on the layout. Every
rank that has a part of a matrix computes all of it.

    B ← μ·B + (1 − μ)·G,   U = NS(G·(1 − μ) + μ·B),   W ← (1 − η·λ)·W − η·0.2·√max(m, n)·U

Jordan et al. 2024 (kellerjordan.github.io/posts/muon), as torch.optim.Muon has it; the factor, by which one
learning rate serves AdamW too, is Moonlight's (arXiv 2502.16982, eq. 4).
"""

from __future__ import annotations

import math
import re

import torch
from torch import nn

from executor.comm.cuts import take
from executor.comm.tensor_parallel import local
from executor.parallel.parallelize import state_shards_of
from executor.parallel.pipeline import Pipeline
from executor.training.optimizer import OptimizerSettings, ShardedAdamW, Slot

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, Jordan et al. 2024
STEPS, MOMENTUM, EPSILON = 5, 0.95, 1e-7
LIKE_ADAMW = 0.2  # root mean square of AdamW's updates
_TABLES = re.compile(r"(embed_tokens|embed_positions|lm_head)\.weight$")
_EXPERTS = re.compile(r"mlp\.experts\.(gate|up|down)_proj$")


def is_matrix(name: str, dimensions: int) -> bool:
    """Whether Muon updates a parameter: matrices of layers, those of routed experts one by one.

    >>> is_matrix("model.layers.0.self_attn.q_proj.weight", 2), is_matrix("lm_head.weight", 2)
    (True, False)
    """
    if _TABLES.search(name):
        return False
    return bool(_EXPERTS.search(name)) if dimensions > 2 else dimensions == 2 and name.endswith(".weight")


def newton_schulz(matrices: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Orthogonalise (…, m, n) matrices, about: singular values come between 0.7 and 1.2.

    Args:
        matrices: Any number of matrices, each by itself.
        dtype: What products are computed in.
    """
    a, b, c = COEFFICIENTS
    X = matrices.to(dtype).reshape(-1, *matrices.shape[-2:])
    tall = X.shape[-2] > X.shape[-1]
    if tall:
        X = X.mT
    X = X / X.norm(dim=(-2, -1), keepdim=True).clamp(min=EPSILON)
    for _ in range(STEPS):
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return (X.mT if tall else X).reshape(matrices.shape)


def step_of(shape: torch.Size, rate: float) -> float:
    """What the orthogonal matrix of a parameter of this shape is multiplied by."""
    return rate * LIKE_ADAMW * math.sqrt(max(shape[-2:]))


def blended(gradient: torch.Tensor, momentum: torch.Tensor) -> torch.Tensor:
    """Take a gradient into the momentum, and look one step ahead (Nesterov)."""
    momentum.lerp_(gradient, 1 - MOMENTUM)
    return gradient.lerp(momentum, MOMENTUM)


class ShardedMuon(ShardedAdamW):
    """Muon and AdamW over the local parts of a pipeline rank's parameters."""

    def __init__(self, pipeline: Pipeline, settings: OptimizerSettings) -> None:
        super().__init__(pipeline, settings)
        self.meshes = pipeline.meshes
        self.momenta: dict[nn.Parameter, torch.Tensor] = {}

    def is_adam(self, slot: Slot) -> bool:
        """Whether AdamW updates a parameter."""
        return not is_matrix(slot.name, slot.parameter.dim())

    def moments(self, slot: Slot) -> dict[str, torch.Tensor]:
        """What is kept of a parameter between steps, by this rank's part."""
        if self.is_adam(slot):
            return super().moments(slot)
        value = self.momenta.get(slot.part)
        return {"momentum": torch.zeros_like(slot.part) if value is None else value}

    def forget(self, slot: Slot, step: int) -> None:
        """Begin what is kept of a parameter with zeros, after so many steps."""
        if self.is_adam(slot):
            super().forget(slot, step)
        else:
            self.momenta[slot.part] = torch.zeros_like(slot.part)

    def step(self, rate: float) -> None:
        """Update every parameter from its gradient at this learning rate, then forget gradients."""
        with torch.no_grad():
            for slot in self.slots:
                if not self.is_adam(slot) and slot.parameter.grad is not None:
                    self._update(slot, local(slot.parameter.grad), rate)
                    slot.parameter.grad = None
        super().step(rate)

    def _update(self, slot: Slot, gradient: torch.Tensor, rate: float) -> None:
        """Update one parameter's part."""
        if slot.part not in self.momenta:
            self.forget(slot, 0)
        cuts = state_shards_of(slot.name, self.meshes)
        whole = slot.placed(blended(gradient, self.momenta[slot.part])).full_tensor()
        outer = cuts[:1] if slot.parameter.dim() > 2 and cuts and cuts[0][0] == 0 else ()  # its experts alone
        update = newton_schulz(take(whole, outer), self.settings.products)
        slot.part.mul_(1 - rate * self.settings.weight_decay)
        slot.part.sub_(take(update, cuts[len(outer) :]), alpha=step_of(slot.parameter.shape, rate))


def sharded_optimizer(name: str, pipeline: Pipeline, settings: OptimizerSettings) -> ShardedAdamW:
    """The optimizer of a plan's job: ``adamw`` or ``muon``, which are all that its engine admits."""
    return (ShardedMuon if name == "muon" else ShardedAdamW)(pipeline, settings)
