"""Mixture of experts: a router, stacked experts, and the all-to-all that takes tokens to them.

Experts are split over the ``ep`` axis (whole experts) and over ``expert_tp`` (each expert's inner size). No
token is ever dropped: ranks exchange exactly the rows that were routed, so a split run computes what one
process computes. A row goes once over ``ep``, to a rank that has a part of its expert, and is gathered there
over ``expert_tp``, whose ranks may have received different numbers of rows.

Legend: ``T`` tokens of a rank, ``H`` hidden size, ``F`` inner size of an expert, ``E`` experts, ``K``
experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from costmodel.models.routing import Routing
from costmodel.models.spec import ModelSpec
from executor.comm.collectives import ProcessGroup, all_gather, all_to_all, reduce_scatter
from executor.comm.tensor_parallel import local
from executor.model.delayed import DelayedGradients
from executor.model.gating import activate, gate_of, weighted_gated
from executor.model.grouped import add_weighted_bias, multiply_groups, offsets_of
from executor.model.linear import Linear
from executor.model.load_balance import Balance
from executor.model.products.groups import expert_of_row
from executor.model.products.products import SAME, Products


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertAxis:
    """This rank's place among the ranks that share one set of experts."""

    group: ProcessGroup
    size: int
    rank: int
    tensor_group: ProcessGroup
    tensor_size: int


class _AllToAll(torch.autograd.Function):
    """Exchange rows; the gradient makes the opposite journey."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, received: list[int], sent: list[int], group: ProcessGroup
    ) -> torch.Tensor:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        return all_to_all(x, received, sent, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return all_to_all(gradients[0], ctx.sent, ctx.received, ctx.group), None, None, None


class _GatherRows(torch.autograd.Function):
    """All-gather rows over expert_tp; gradients are summed and scattered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return all_gather(x, 0, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return reduce_scatter(gradients[0], 0, ctx.group), None


class _ScatterRows(torch.autograd.Function):
    """Sum partial rows over expert_tp and keep this rank's; gradients are gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return reduce_scatter(x, 0, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return all_gather(gradients[0], 0, ctx.group), None


class _SumRows(torch.autograd.Function):
    """Sum rows into the tokens they came from, keeping only where they go (torch's own keeps the rows)."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, source: torch.Tensor, tokens: int) -> torch.Tensor:
        ctx.save_for_backward(source)
        return rows.new_zeros(tokens, rows.shape[-1]).index_add_(0, source, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (source,) = ctx.saved_tensors
        return gradients[0].index_select(0, source), None, None


class Router(Linear):
    """Scores tokens by expert and chooses the K best of each (`costmodel.models.routing.Routing`).

    With `balanced`, tokens go round-robin whatever their scores: shapes are then known without data, as
    tracing and one-rank measurements need (losses mean nothing).
    """

    may_be_narrow = False
    balanced: bool = False

    def __init__(self, spec: ModelSpec) -> None:
        selects = spec.routing.bias_selects
        super().__init__(spec.hidden_size, spec.num_experts, bias=spec.router_bias and not selects)
        self.routing = spec.routing
        self.e_score_correction_bias = (
            nn.Parameter(torch.zeros(spec.num_experts), requires_grad=False) if selects else None
        )

    def route(self, tokens: torch.Tensor, chosen: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Weights (T, K) and experts (T, K) of each token (T, H), and its probabilities (T, E)."""
        routing, logits = self.routing, self(tokens).float()
        score = logits.sigmoid() if routing.scoring_func == "sigmoid" else functional.softmax(logits, -1)
        if not self.balanced:
            expert = eligible(score.detach(), self.e_score_correction_bias, routing).topk(chosen, -1).indices
        else:
            count = tokens.shape[0] * chosen
            expert = (torch.arange(count, device=tokens.device) % self.out_features).view(-1, chosen)
        weight = score.gather(-1, expert)
        if routing.norm_topk_prob:
            weight = weight / weight.sum(-1, keepdim=True)
        if routing.routed_scaling_factor != 1.0:
            weight = weight * routing.routed_scaling_factor
        probability = score / score.sum(-1, keepdim=True) if routing.scoring_func == "sigmoid" else score
        return weight, expert, probability


def eligible(score: torch.Tensor, bias: torch.Tensor | None, routing: Routing) -> torch.Tensor:
    """Scores (T, E) to choose by: with the bias, and −∞ outside of each token's best groups.

    >>> groups = Routing(n_group=2, topk_group=1)
    >>> eligible(torch.tensor([[0.1, 0.2, 0.4, 0.3]]), None, groups).tolist()[0][:2]
    [-inf, -inf]
    """
    score = score if bias is None else score + bias
    if routing.topk_group == routing.n_group:
        return score
    groups = score.unflatten(-1, (routing.n_group, -1))
    best = groups.amax(-1) if bias is None else groups.topk(2, -1).values.sum(-1)
    kept = torch.zeros_like(best, dtype=torch.bool)
    kept.scatter_(-1, best.topk(routing.topk_group, -1).indices, value=True)
    return groups.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)


class Experts(nn.Module):
    """The experts of one layer, stacked: gate and up (E, F, H), down (E, H, F), and biases."""

    may_be_narrow = True
    products: Products = SAME

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
        self.gating = gate_of(spec)
        self.axis: ExpertAxis | None = None
        self.delayed: DelayedGradients | None = None

    def forward(self, rows: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Apply expert e to its consecutive rows, up to `offsets[e]`, each weighted by its routing `weight`.

        Weights enter at the activation: applied to the result, that would have to be kept for their
        gradient. With expert_tp the result is a partial sum.
        """
        share = 1 if self.axis is None else self.axis.tensor_size  # the bias is added once over expert_tp
        up = self._multiply(rows, offsets, self.up_proj, self.up_proj_bias)
        if self.gate_proj is None:
            inner = activate(up, self.gating.activation) * weight.unsqueeze(-1)
        else:
            gate = self._multiply(rows, offsets, self.gate_proj, self.gate_proj_bias)
            inner = weighted_gated(gate, up, weight, self.gating)
        out = multiply_groups(inner, self.down_proj, offsets, self.delayed, self.products)
        if self.down_proj_bias is None:
            return out
        return add_weighted_bias(out, local(self.down_proj_bias), weight / share, offsets)

    def _multiply(
        self, rows: torch.Tensor, offsets: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter | None
    ) -> torch.Tensor:
        """Multiply each expert's rows by its matrix and add its bias."""
        result = multiply_groups(rows, weight, offsets, self.delayed, self.products)
        return result if bias is None else result + local(bias)[expert_of_row(offsets, len(rows))]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedRows:
    """Rows this rank sends to each rank of ``ep``, those it gets, and all that its experts see.

    The first two are None where nothing is exchanged: then the host need not know them. `arriving` counts by
    (sender, local expert), those of every rank of ``expert_tp`` after one another; `totals` are the rows that
    each of these receives, None where all receive as many.
    """

    sent: list[int] | None = None
    received: list[int] | None = None
    arriving: torch.Tensor
    totals: list[int] | None = None


class MoE(nn.Module):
    """Router, routed experts and the shared expert of one layer.

    With sequence parallelism every rank routes its own part of the sequence, so tokens are never computed
    twice.
    """

    def __init__(self, spec: ModelSpec, shared_experts: nn.Module | None) -> None:
        super().__init__()
        self.gate = Router(spec)
        self.experts = Experts(spec)
        self.shared_experts = shared_experts
        self.chosen = spec.num_experts_per_token
        self.balance: Balance | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix the experts of each token of x (B, S, H)."""
        tokens = x.flatten(0, -2)
        weight, expert, probability = self.gate.route(tokens, self.chosen)
        if self.balance is not None and not self.gate.balanced:
            by_sequence = (part.unflatten(0, x.shape[:-1]) for part in (probability, expert))
            weight = self.balance.attach(weight, *by_sequence)
        out = self._routed(tokens, weight.to(x.dtype), expert).view_as(x)
        return out if self.shared_experts is None else out + self.shared_experts(x)

    def _routed(self, tokens: torch.Tensor, weight: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        """Sort rows by expert, take them there and back, and sum each token's K weighted results."""
        order = torch.argsort(expert.flatten(), stable=True)
        source = order // self.chosen
        rows = self._visit(tokens[source], weight.flatten()[order], self._traffic(expert))
        result: torch.Tensor = _SumRows.apply(rows, source, tokens.shape[0])
        return result

    def _traffic(self, expert: torch.Tensor) -> RoutedRows:
        """Ask every rank how many rows it sends; balanced routing is known without asking.

        Ranks that exchange rows must know how many on the host: the one time that a layer waits for its
        device.
        """
        axis, experts = self.experts.axis, self.gate.out_features
        ranks = 1 if axis is None else axis.size
        if self.gate.balanced:
            return balanced_traffic(expert.numel(), experts, axis, expert.device)
        flat = expert.flatten()
        counts = flat.new_zeros(experts).scatter_add_(0, flat, torch.ones_like(flat))  # bincount would wait
        if axis is None:
            return RoutedRows(arriving=counts.view(1, -1))
        mine = all_to_all(counts, None, None, axis.group).view(ranks, -1)
        arriving = all_gather(mine, 0, axis.tensor_group)
        if ranks == 1:  # every rank of expert_tp routes as many tokens
            return RoutedRows(arriving=arriving)
        totals = arriving.unflatten(0, (-1, ranks)).sum((1, 2))
        asked = torch.cat((counts.view(ranks, -1).sum(1), mine.sum(1), totals)).tolist()
        return RoutedRows(
            sent=asked[:ranks],
            received=asked[ranks : 2 * ranks],
            arriving=arriving,
            totals=asked[2 * ranks :],
        )

    def _visit(self, rows: torch.Tensor, weight: torch.Tensor, traffic: RoutedRows) -> torch.Tensor:
        """Send rows (sorted by expert) to the ranks that own their experts, compute, and bring them back."""
        axis, sent, received = self.experts.axis, traffic.sent, traffic.received
        if axis is None or sent is None or received is None:
            return self._gathered(rows, weight, traffic)
        here, weight = (_AllToAll.apply(x, received, sent, axis.group) for x in (rows, weight.contiguous()))
        returned: torch.Tensor = _AllToAll.apply(
            self._gathered(here, weight, traffic), sent, received, axis.group
        )
        return returned

    def _gathered(self, rows: torch.Tensor, weight: torch.Tensor, traffic: RoutedRows) -> torch.Tensor:
        """Compute what ranks of expert_tp have between them, each its part of the sums; keep own rows."""
        axis, offsets = self.experts.axis, offsets_of(traffic.arriving.sum(0))
        if len(traffic.arriving) == 1:  # of one sender, by expert already
            result: torch.Tensor = self.experts(rows, weight, offsets)
            return result
        ranks = 1 if axis is None else axis.tensor_size
        totals = [len(rows)] * ranks if traffic.totals is None else traffic.totals
        order, most = _by_expert(traffic.arriving, sum(totals)), max(*totals, 1)
        if axis is None or ranks == 1:
            done: torch.Tensor = self.experts(rows[order], weight[order], offsets)
            return done[torch.argsort(order)]
        whole, weights = (_GatherRows.apply(_with_room(x, most), axis.tensor_group) for x in (rows, weight))
        place = row_places(totals, most, rows.device)[order]
        spread = _SumRows.apply(self.experts(whole[place], weights[place], offsets), place, len(whole))
        scattered: torch.Tensor = _ScatterRows.apply(spread, axis.tensor_group)
        return scattered[: len(rows)]


def _with_room(x: torch.Tensor, most: int) -> torch.Tensor:
    """As many rows of x as it has, and behind them zeros up to `most`."""
    behind = most - len(x)
    return x if behind == 0 else functional.pad(x, (0, 0) * (x.dim() - 1) + (0, behind))


def row_places(totals: Sequence[int], most: int, device: torch.device) -> torch.Tensor:
    """Where rows of several ranks lie when each has room for the most that one of them has.

    >>> row_places((1, 3), 3, torch.device("cpu")).tolist()
    [0, 3, 4, 5]
    """
    parts = [torch.arange(most * i, most * i + total, device=device) for i, total in enumerate(totals)]
    return torch.cat(parts)


def balanced_traffic(rows: int, experts: int, axis: ExpertAxis | None, device: torch.device) -> RoutedRows:
    """Traffic when every rank routes its rows round-robin.

    >>> axis = ExpertAxis(group=None, size=2, rank=0, tensor_group=None, tensor_size=1)
    >>> found = balanced_traffic(10, 4, axis, torch.device("cpu"))
    >>> found.sent, found.received, found.arriving.tolist()
    ([6, 4], [6, 6], [[3, 3], [3, 3]])
    """
    ranks, rank, tensor = (1, 0, 1) if axis is None else (axis.size, axis.rank, axis.tensor_size)
    counts = [rows // experts + (e < rows % experts) for e in range(experts)]
    here = experts // ranks
    by_rank = [counts[r * here : (r + 1) * here] for r in range(ranks)]
    arriving = torch.tensor([by_rank[rank]] * (ranks * tensor), device=device)
    if ranks == 1:
        return RoutedRows(arriving=arriving)
    return RoutedRows(
        sent=[sum(part) for part in by_rank], received=[sum(by_rank[rank])] * ranks, arriving=arriving
    )


def _by_expert(arriving: torch.Tensor, rows: int) -> torch.Tensor:
    """Order that turns so many rows, grouped by (source rank, expert), into rows grouped by expert."""
    ranks, experts = arriving.shape
    label = torch.arange(experts, device=arriving.device).repeat(ranks)
    return torch.argsort(label.repeat_interleave(arriving.flatten(), output_size=rows), stable=True)


def balance_routers(
    model: nn.Module,
    spec: ModelSpec,
    *,
    coefficient: float | None,
    sequence_length: int,
    global_batch_size: int,
    groups: tuple[ProcessGroup, ...] = (),
) -> Balance | None:
    """Balance every router of a model or stage; None without experts or with a coefficient of zero."""
    coefficient = spec.router_aux_loss_coef if coefficient is None else coefficient
    if not spec.is_moe or coefficient == 0:
        return None
    layers = spec.num_layers - spec.num_dense_layers
    balance = Balance(
        weight=coefficient / (layers * global_batch_size), sequence_length=sequence_length, groups=groups
    )
    for module in model.modules():
        if isinstance(module, MoE):
            module.balance = balance
    return balance
