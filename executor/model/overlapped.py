"""Both ends of a split region whose messages run under their products: asynchronous tensor parallelism.

A gathered sequence is multiplied part by part as the parts arrive, and a summed result is sent part by part
as it is computed, through memory that the GPUs of a node map into each other (torch's symmetric memory; Wang
et al. 2023, "Overlap communication with dependent computation via decomposition"). The same numbers are
computed and the same bytes sent. On a CPU, where nothing is mapped, torch's own fallback does one after the
other: that is what tests run.

Legend: ``k`` input size, ``n`` output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from executor.comm.collectives import all_gather
from executor.comm.tensor_parallel import SEQUENCE_DIM, TensorAxis, local
from executor.model.delayed import DelayedGradients, Leaf, now_or_later
from executor.model.products.products import SAME
from executor.torch_internals.operators import fused_gather_multiply, fused_multiply_scatter


def gather_multiply(
    x: torch.Tensor, weights: Sequence[torch.Tensor], axis: TensorAxis
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The whole sequence of parts x (B, S/t, k), and it times each weight (n, k)."""
    transposed = [weight.t() for weight in weights]
    whole, results = fused_gather_multiply(x, transposed, SEQUENCE_DIM, axis.group)
    return whole, list(results)


def multiply_scatter(x: torch.Tensor, matrix: torch.Tensor, axis: TensorAxis) -> torch.Tensor:
    """This rank's part of the sequence of x (B, S, k) times a matrix (k, n), summed over the axis."""
    return fused_multiply_scatter(x, matrix, SEQUENCE_DIM, axis.group)


class _GatheredProjections(torch.autograd.Function):
    """Projections of a sequence whose parts are gathered; keeps this rank's part and gathers it again."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        leaves: tuple[Leaf, ...],
        axis: TensorAxis,
        delayed: DelayedGradients | None,
        *weights: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        ctx.leaves, ctx.axis, ctx.delayed = leaves, axis, delayed
        return tuple(gather_multiply(x, weights, axis)[1])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.saved_tensors
        leaves, axis, delayed = ctx.leaves, ctx.axis, ctx.delayed
        rows = gradients[0] if len(gradients) == 1 else torch.cat(gradients, -1)
        matrix = weights[0] if len(weights) == 1 else torch.cat(weights)
        d_x = multiply_scatter(rows, matrix, axis)

        def weight_gradients(places: Sequence[int]) -> list[torch.Tensor]:
            whole = all_gather(x, SEQUENCE_DIM, axis.group)
            return [SAME.of_weight(gradients[place], whole) for place in places]

        return (d_x, None, None, None, *now_or_later(leaves, weight_gradients, delayed))


class _ScatteredProjection(torch.autograd.Function):
    """x·Wᵀ summed over the axis, of which this rank keeps its part of the sequence, as of the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        leaf: Leaf,
        axis: TensorAxis,
        delayed: DelayedGradients | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameter, ctx.axis, ctx.delayed = leaf.parameter, axis, delayed
        return multiply_scatter(x, weight.t(), axis)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        part, axis, parameter = gradients[0], ctx.axis, ctx.parameter
        whole, (d_x,) = gather_multiply(part, (weight.t(),), axis)

        def weight_gradient(gradient: torch.Tensor) -> torch.Tensor:
            return SAME.of_weight(gradient, x)

        if ctx.delayed is None or not ctx.delayed.recording:
            return d_x, weight_gradient(whole), None, None, None
        ctx.delayed.add(lambda: [(parameter, weight_gradient(all_gather(part, SEQUENCE_DIM, axis.group)))])
        return d_x, None, None, None, None


def project_gathered(
    x: torch.Tensor,
    parameters: Sequence[torch.Tensor],
    leaves: tuple[Leaf, ...],
    axis: TensorAxis,
    delayed: DelayedGradients | None,
) -> tuple[torch.Tensor, ...]:
    """Projections by several weights (n, k) of the sequence of which x is this rank's part."""
    results: tuple[torch.Tensor, ...] = _GatheredProjections.apply(
        x, leaves, axis, delayed, *map(local, parameters)
    )
    return results


def project_scattered(
    x: torch.Tensor,
    parameter: torch.Tensor,
    leaf: Leaf,
    axis: TensorAxis,
    delayed: DelayedGradients | None,
) -> torch.Tensor:
    """This rank's part of the sequence of the summed projection of x by a weight (n, k)."""
    result: torch.Tensor = _ScatteredProjection.apply(x, local(parameter), leaf, axis, delayed)
    return result
