"""AdamW on the parts of parameters that this rank stores, and the learning-rate schedule.

The optimizer sees plain tensors (the local part of each sharded parameter), which is faster than
dispatching every update through DTensor and lets parameters of different meshes share one optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from executor.comm.tensor_parallel import local
from executor.parallel.pipeline import Pipeline
from executor.parallel.weights import state_name

ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")
RateShape = Literal["cosine", "linear", "constant", "wsd"]
"""How the learning rate goes after its warm-up; wsd stays, and falls in the last steps only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW, warm-up and decay.

    `learning_rate` rises linearly for `warmup_steps`, then falls by its shape to `final_fraction` of itself
    at `total_steps`; of wsd in the last `decay_steps`. Weight decay applies to matrices only. `products` is
    what an optimizer that multiplies matrices does so in.
    """

    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    warmup_steps: int = 0
    total_steps: int = 0
    shape: RateShape = "cosine"
    decay_steps: int = 0
    final_fraction: float = 0.1
    clip_norm: float = 1.0
    products: torch.dtype = torch.float32


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """Learning rate of a step (from 0): linear warm-up, then what the shape says.

    The cosine is Loshchilov & Hutter 2017, eq. 5; wsd is warm-up, stable, decay (Hu et al. 2024) with
    a linear decay.

    >>> s = OptimizerSettings(learning_rate=1.0, warmup_steps=2, total_steps=4, final_fraction=0.0)
    >>> [round(learning_rate(s, step), 3) for step in range(5)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    first = settings.warmup_steps
    if settings.shape == "wsd":
        first = max(first, settings.total_steps - settings.decay_steps)
    if settings.shape == "constant" or settings.total_steps <= first or step < first:
        return settings.learning_rate
    done = min(1.0, (step - first) / (settings.total_steps - first))
    left = (1 + math.cos(math.pi * done)) / 2 if settings.shape == "cosine" else 1 - done
    return settings.learning_rate * (settings.final_fraction + (1 - settings.final_fraction) * left)


@dataclass(slots=True, kw_only=True)
class Slot:
    """One parameter as the optimizer sees it, and the plain tensor of this rank's part."""

    name: str
    parameter: nn.Parameter
    part: nn.Parameter

    def placed(self, part: torch.Tensor) -> Any:
        """A tensor of this rank's part, with its place in the whole."""
        parameter = self.parameter
        if not isinstance(parameter, DTensor):
            return part
        return DTensor.from_local(
            part,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )


class ShardedAdamW:
    """AdamW over the local parts of a pipeline rank's parameters."""

    def __init__(self, pipeline: Pipeline, settings: OptimizerSettings) -> None:
        self.settings = settings
        self.slots = tuple(self._slots(pipeline))
        mine = [slot for slot in self.slots if self.is_adam(slot)]
        decayed = [slot.part for slot in mine if slot.parameter.dim() > 1]
        plain = [slot.part for slot in mine if slot.parameter.dim() <= 1]
        groups = [
            {"params": decayed, "weight_decay": settings.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            fused=True,
        )

    @staticmethod
    def _slots(pipeline: Pipeline) -> Iterable[Slot]:
        for stage in pipeline.stages:
            for name, parameter in stage.module.named_parameters():
                if not parameter.requires_grad:
                    continue
                part = nn.Parameter(local(parameter).detach())
                yield Slot(name=state_name(stage.module, name), parameter=parameter, part=part)

    def is_adam(self, slot: Slot) -> bool:  # noqa: ARG002 - others do not take them all
        """Whether AdamW updates a parameter."""
        return True

    def moments(self, slot: Slot) -> dict[str, torch.Tensor]:
        """What is kept of a parameter between steps, by this rank's part; zeros before the first."""
        kept = self.adamw.state.get(slot.part, {})
        return {name: kept[name] if name in kept else torch.zeros_like(slot.part) for name in ADAM_MOMENTS}

    def forget(self, slot: Slot, step: int) -> None:
        """Begin what is kept of a parameter with zeros, after so many steps."""
        self.adamw.state[slot.part] = {
            "step": torch.tensor(float(step), device=slot.part.device),
            **{name: torch.zeros_like(slot.part) for name in ADAM_MOMENTS},
        }

    def step(self, rate: float) -> None:
        """Update every parameter from its gradient at this learning rate, then forget gradients."""
        for group in self.adamw.param_groups:
            group["lr"] = rate
        for slot in self.slots:
            slot.part.grad = None if slot.parameter.grad is None else local(slot.parameter.grad)
        self.adamw.step()
        for slot in self.slots:
            slot.part.grad = slot.parameter.grad = None
