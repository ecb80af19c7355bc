"""Products of consecutive groups of rows, each with its own matrix: the experts of a layer in one kernel.

Where groups end is a tensor on the device of the rows, so nothing here waits for the device: neither how many
rows an expert has, nor whether it has any, is ever asked by the host.

Legend: ``T`` rows, ``k`` input size, ``n`` output size, ``E`` experts.
"""

from __future__ import annotations

from typing import Any

import torch

from executor.comm.tensor_parallel import local
from executor.model.delayed import DelayedGradients, Leaf
from executor.model.products.groups import expert_of_row
from executor.model.products.products import SAME, Products


def offsets_of(counts: torch.Tensor) -> torch.Tensor:
    """Where each group of rows offsets, (E,) int32, of how many rows each has.

    >>> offsets_of(torch.tensor([2, 0, 3])).tolist()
    [2, 2, 5]
    """
    return counts.cumsum(0, dtype=torch.int32)


def multiply_groups(
    rows: torch.Tensor,
    parameter: torch.Tensor,
    offsets: torch.Tensor,
    delayed: DelayedGradients | None,
    products: Products = SAME,
) -> torch.Tensor:
    """Multiply the rows (T, k) of each expert by its matrix (n, k) of a parameter (E, n, k): (T, n)."""
    result: torch.Tensor = _Grouped.apply(
        rows.contiguous(), local(parameter), Leaf(parameter), offsets, delayed, products
    )
    return result


class _Grouped(torch.autograd.Function):
    """rows_e · W_eᵀ whose weight gradient may be put off."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        weight: torch.Tensor,
        leaf: Leaf,
        offsets: torch.Tensor,
        delayed: DelayedGradients | None,
        products: Products,
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, weight, offsets)
        ctx.parameter, ctx.delayed, ctx.products = leaf.parameter, delayed, products
        return products.of_groups(rows, weight, offsets)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight, offsets = ctx.saved_tensors
        gradient, parameter, products = gradients[0].contiguous(), ctx.parameter, ctx.products

        def weight_gradient() -> torch.Tensor:
            return products.of_group_weights(gradient, rows, offsets)

        d_rows = products.of_group_rows(gradient, weight, offsets)
        if not ctx.needs_input_grad[1]:  # frozen beside an adapter
            return d_rows, None, None, None, None, None
        if ctx.delayed is None or not ctx.delayed.recording:
            return d_rows, weight_gradient(), None, None, None, None
        ctx.delayed.add(lambda: [(parameter, weight_gradient())])
        return d_rows, None, None, None, None, None


def add_weighted_bias(
    rows: torch.Tensor, bias: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """Rows (T, n) plus their expert's bias (E, n) times their routing weight (T,)."""
    result: torch.Tensor = _WeightedBias.apply(rows, bias, weight, offsets)
    return result


class _WeightedBias(torch.autograd.Function):
    """No row of biases is kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, bias: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(bias, weight, offsets)
        return rows + bias[expert_of_row(offsets, len(rows))] * weight.unsqueeze(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        bias, weight, offsets = ctx.saved_tensors
        gradient = gradients[0]
        expert = expert_of_row(offsets, len(gradient))
        scaled = gradient * weight.to(gradient.dtype).unsqueeze(-1)
        d_bias = torch.zeros_like(bias, dtype=gradient.dtype).index_add_(0, expert, scaled)
        d_weight = torch.linalg.vecdot(gradient, bias.to(gradient.dtype)[expert])
        return gradient, d_bias.to(bias.dtype), d_weight.to(weight.dtype), None
