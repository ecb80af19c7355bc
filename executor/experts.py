"""Mixture of experts: a router, stacked experts, and the all-to-all that takes tokens to them.

Experts are split over the ``ep`` axis (whole experts) and over ``expert_tp`` (each expert's inner size). No
token is ever dropped: ranks exchange exactly the rows that were routed, so a split run computes what one
process computes.

Legend: ``T`` tokens of a rank, ``H`` hidden size, ``F`` inner size of an expert, ``E`` experts, ``K``
experts per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from costmodel.model import ModelSpec
from executor.activations import swiglu
from executor.collectives import Group, all_gather, all_to_all, reduce_scatter
from executor.linear import DelayedGradients, Linear, grouped
from executor.tensor_parallel import local


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertAxis:
    """This rank's place among the ranks that share one set of experts."""

    group: Group
    size: int
    tensor_group: Group
    tensor_size: int


class _AllToAll(torch.autograd.Function):
    """Exchange rows; the gradient makes the opposite journey."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, received: list[int], sent: list[int], group: Group
    ) -> torch.Tensor:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        return all_to_all(x, received, sent, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return all_to_all(gradients[0], ctx.sent, ctx.received, ctx.group), None, None, None


class _GatherRows(torch.autograd.Function):
    """All-gather rows over expert_tp; gradients are summed and scattered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return all_gather(x, 0, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return reduce_scatter(gradients[0], 0, ctx.group), None


class _ScatterRows(torch.autograd.Function):
    """Sum partial rows over expert_tp and keep this rank's; gradients are gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return reduce_scatter(x, 0, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return all_gather(gradients[0], 0, ctx.group), None


class Router(Linear):
    """Scores tokens by expert: softmax over E, the K best, renormalised to sum to one.

    With `balanced`, tokens go round-robin whatever their scores: shapes are then known without data, as
    tracing and one-rank measurements need (losses mean nothing).
    """

    balanced: bool = False

    def route(self, tokens: torch.Tensor, chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights (T, K) and experts (T, K) of each token (T, H)."""
        probability = functional.softmax(self(tokens).float(), -1)
        if not self.balanced:
            weight, expert = torch.topk(probability, chosen, dim=-1)
        else:
            count = tokens.shape[0] * chosen
            expert = (torch.arange(count, device=tokens.device) % self.out_features).view(-1, chosen)
            weight = probability.gather(-1, expert)
        return weight / weight.sum(-1, keepdim=True), expert


class Experts(nn.Module):
    """The experts of one layer, stacked: gate and up (E, F, H), down (E, H, F), and biases."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        E, H, inner = spec.num_experts, spec.hidden_size, spec.moe_intermediate_size
        self.gate_proj = nn.Parameter(torch.empty(E, inner, H)) if spec.gated_mlp else None
        self.up_proj = nn.Parameter(torch.empty(E, inner, H))
        self.down_proj = nn.Parameter(torch.empty(E, H, inner))
        wide = spec.mlp_bias
        self.gate_proj_bias = nn.Parameter(torch.zeros(E, inner)) if wide and spec.gated_mlp else None
        self.up_proj_bias = nn.Parameter(torch.zeros(E, inner)) if wide else None
        self.down_proj_bias = nn.Parameter(torch.zeros(E, H)) if wide else None
        self.axis: ExpertAxis | None = None
        self.delayed: DelayedGradients | None = None

    def forward(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Apply expert e to its `counts[e]` consecutive rows; with expert_tp the result is a partial sum."""
        share = 1 if self.axis is None else self.axis.tensor_size  # the bias is added once over expert_tp
        inner = self._multiply(rows, counts, self.up_proj, self.up_proj_bias)
        if self.gate_proj is None:
            inner = functional.gelu(inner, approximate="tanh")
        else:
            inner = swiglu(self._multiply(rows, counts, self.gate_proj, self.gate_proj_bias), inner)
        return self._multiply(inner, counts, self.down_proj, self.down_proj_bias, share)

    def _multiply(
        self,
        rows: torch.Tensor,
        counts: list[int],
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        share: int = 1,
    ) -> torch.Tensor:
        """Multiply each expert's rows by its matrix and add its bias (a `share`-th of it)."""
        result = grouped(rows, weight, counts, self.delayed)
        if bias is None:
            return result
        expert = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).to(rows.device)
        return result + (local(bias) / share)[expert]


class MoE(nn.Module):
    """Router, routed experts and the shared expert of one layer.

    With sequence parallelism every rank routes its own part of the sequence, so tokens are never computed
    twice.
    """

    def __init__(self, spec: ModelSpec, shared_experts: nn.Module | None) -> None:
        super().__init__()
        self.gate = Router(spec.hidden_size, spec.num_experts, bias=spec.router_bias)
        self.experts = Experts(spec)
        self.shared_experts = shared_experts
        self.chosen = spec.num_experts_per_token

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix the experts of each token of x (B, S, H)."""
        tokens = x.flatten(0, -2)
        axis = self.experts.axis
        weight, expert = self.gate.route(tokens, self.chosen)
        if axis is not None and axis.tensor_size > 1:
            tokens, weight = (_GatherRows.apply(t, axis.tensor_group) for t in (tokens, weight))
            expert = all_gather(expert, 0, axis.tensor_group)
        out = self._routed(tokens, weight.to(x.dtype), expert)
        if axis is not None and axis.tensor_size > 1:
            out = _ScatterRows.apply(out, axis.tensor_group)
        out = out.view_as(x)
        return out if self.shared_experts is None else out + self.shared_experts(x)

    def _routed(self, tokens: torch.Tensor, weight: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        """Sort rows by expert, take them there and back, and sum each token's K weighted results."""
        order = torch.argsort(expert.flatten(), stable=True)
        source = order // self.chosen
        rows = self._visit(tokens[source], self._counts(expert))
        rows = rows * weight.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(tokens).index_add(0, source, rows)

    def _counts(self, expert: torch.Tensor) -> torch.Tensor:
        """Rows for each of the E experts, (E,) on the host when routing is balanced."""
        experts = self.gate.out_features
        if self.gate.balanced:
            rows = expert.numel()
            return torch.tensor(
                [rows // experts + (e < rows % experts) for e in range(experts)], device="cpu"
            )
        return torch.bincount(expert.flatten(), minlength=experts)

    def _visit(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Send rows (sorted by expert) to the ranks that own their experts, compute, and bring them back."""
        axis = self.experts.axis
        if axis is None or axis.size == 1:
            result: torch.Tensor = self.experts(rows, counts.tolist())
            return result
        arriving = counts if self.gate.balanced else all_to_all(counts, None, None, axis.group)
        by_rank = arriving.view(axis.size, -1) if not self.gate.balanced else _balanced_arrivals(counts, axis)
        sent = counts.view(axis.size, -1).sum(1).tolist()
        received = by_rank.sum(1).tolist()
        here: torch.Tensor = _AllToAll.apply(rows, received, sent, axis.group)
        order = _by_expert(by_rank)
        per_expert = by_rank.sum(0).tolist()
        done = self.experts(here[order.to(here.device)], per_expert)
        back = torch.argsort(order).to(here.device)
        returned: torch.Tensor = _AllToAll.apply(done[back], sent, received, axis.group)
        return returned


def _balanced_arrivals(counts: torch.Tensor, axis: ExpertAxis) -> torch.Tensor:
    """Rows that each rank sends to each local expert when every rank's routing is the same round-robin."""
    import torch.distributed as dist

    mine = counts.view(axis.size, -1)[dist.get_rank(axis.group)]
    return mine.unsqueeze(0).expand(axis.size, -1)


def _by_expert(by_rank: torch.Tensor) -> torch.Tensor:
    """Order that turns rows grouped by (source rank, expert) into rows grouped by expert."""
    ranks, experts = by_rank.shape
    label = torch.arange(experts, device=by_rank.device).repeat(ranks).repeat_interleave(by_rank.flatten())
    return torch.argsort(label, stable=True)
