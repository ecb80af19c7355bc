"""The auxiliary loss that keeps experts equally busy, the same for every layout.

Switch Transformer (Fedus 2021, eq. 4) with GShard's groups: each sequence of each layer is a group, so that
the loss depends neither on the microbatch nor on who computes it. With f_e the routed copies of expert e per
token and P_e its mean probability, both over one sequence,

    loss = coefficient · mean over layers and sequences of E · Σ_e f_e · P_e

as ``load_balancing_loss_func`` of Hugging Face's Mixtral, which takes the batch for one group. f has no
gradient, so each rank adds the share of its own tokens once the counts of a sequence are summed over the
ranks that split it.

Legend: ``B`` sequences, ``S`` tokens of a whole sequence, ``s`` tokens of it on this rank, ``E`` experts,
``K`` experts per token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from executor.comm.collectives import ProcessGroup, all_reduce
from executor.torch_internals.operators import in_backward


@dataclass(slots=True, kw_only=True)
class Balance:
    """How the routers of a model are balanced, and what the loss came to since it was last taken.

    Attributes:
        weight: Coefficient over layers and sequences of a step.
        sequence_length: S.
        groups: Process groups that split a sequence.
        total: Sum of this rank's shares.
    """

    weight: float
    sequence_length: int
    groups: tuple[ProcessGroup, ...] = ()
    total: float | torch.Tensor = 0.0

    def attach(self, weights: torch.Tensor, probability: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        """Routing weights whose backward adds the loss of (B, s, E) probabilities and (B, s, K) choices."""
        loss = self.weight * balancing_loss(probability, expert, self.sequence_length, self.groups)
        if not in_backward():  # recomputed layers count once
            self.total = self.total + loss.detach()
        result: torch.Tensor = _WithLoss.apply(weights, loss)
        return result

    def take(self) -> float | torch.Tensor:
        """This rank's share since the last call, where it was computed: to read it is to wait for it."""
        total, self.total = self.total, 0.0
        return total


def balancing_loss(
    probability: torch.Tensor, expert: torch.Tensor, sequence_length: int, groups: Iterable[ProcessGroup]
) -> torch.Tensor:
    """This rank's share of Σ_sequences E · Σ_e f_e · P_e; even routing gives K for each sequence.

    Args:
        probability: (B, s, E) of this rank's tokens.
        expert: (B, s, K) chosen experts of the same.
        sequence_length: S.
        groups: Process groups that split a sequence.
    """
    chosen = expert.flatten(1)
    counts = probability.new_zeros(probability.shape[0], probability.shape[-1])
    counts = counts.scatter_add(1, chosen, torch.ones_like(chosen, dtype=counts.dtype))
    for group in groups:
        counts = all_reduce(counts, group)
    f = counts / sequence_length
    P = probability.sum(1) / sequence_length
    return probability.shape[-1] * (f * P).sum()


class _WithLoss(torch.autograd.Function):
    """Identity of the first argument; the second gets the gradient of a loss, one."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor, _loss: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return gradients[0], gradients[0].new_ones(())
