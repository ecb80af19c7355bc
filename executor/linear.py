"""Projections by the part of a weight that this rank holds, able to put their weight gradients off.

Zero-bubble schedules compute the gradient of the input at once (``I``) and those of the weights when the
pipeline would idle (``W``). A stage owns one `DelayedGradients`; while it is recording, the backward of a
projection returns the input's gradient and leaves the product for the weight in its list (Qi 2023 §2).

Legend: ``T`` rows, ``k`` input size, ``n`` output size, ``E`` experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from executor.tensor_parallel import TensorAxis, leave, local


class DelayedGradients:
    """Weight-gradient products of a stage that wait; `recording` says whether to add to them."""

    def __init__(self) -> None:
        self.recording = False
        self._products: list[Callable[[], None]] = []

    def add(self, product: Callable[[], None]) -> None:
        """Put one product off."""
        self._products.append(product)

    def take(self) -> list[Callable[[], None]]:
        """Hand over what has been put off so far."""
        products, self._products = self._products, []
        return products


def _accumulate(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add a gradient of this rank's part to the parameter's gradient."""
    with torch.no_grad():
        if isinstance(parameter, DTensor):
            gradient = DTensor.from_local(
                gradient,
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad += gradient


class _Leaf(NamedTuple):
    """A parameter that autograd shall not see as an input."""

    parameter: torch.Tensor


class _DelayedLinear(torch.autograd.Function):
    """x·Wᵀ whose weight gradient may be put off."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, leaf: _Leaf, delayed: DelayedGradients
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameter, ctx.delayed = leaf.parameter, delayed
        return functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0]

        def product() -> torch.Tensor:
            return gradient.flatten(0, -2).t() @ x.flatten(0, -2)

        if not ctx.delayed.recording:
            return gradient @ weight, product(), None, None
        parameter = ctx.parameter
        ctx.delayed.add(lambda: _accumulate(parameter, product()))
        return gradient @ weight, None, None, None


def project(x: torch.Tensor, parameter: torch.Tensor, delayed: DelayedGradients | None) -> torch.Tensor:
    """Multiply rows x (…, k) by a weight parameter (n, k)."""
    if delayed is None:
        return functional.linear(x, local(parameter))
    result: torch.Tensor = _DelayedLinear.apply(x, local(parameter), _Leaf(parameter), delayed)
    return result


class Linear(nn.Linear):
    """A projection by the rows of its weight that this rank holds (column-parallel when split)."""

    delayed: DelayedGradients | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project the last dimension."""
        if self.delayed is None:
            return functional.linear(x, local(self.weight), None if self.bias is None else local(self.bias))
        y = project(x, self.weight, self.delayed)
        return y if self.bias is None else y + local(self.bias)


class RowLinear(nn.Linear):
    """A projection by the columns of its weight that this rank holds, summed before the bias."""

    axis: TensorAxis | None = None
    delayed: DelayedGradients | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project the last dimension and leave the split region."""
        y = leave(project(x, self.weight, self.delayed), self.axis)
        return y if self.bias is None else y + local(self.bias)


class _Grouped(torch.autograd.Function):
    """Products of consecutive groups of rows, each with its own matrix."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, leaf: _Leaf, counts: list[int], delayed: Any
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.parameter, ctx.counts, ctx.delayed = leaf.parameter, counts, delayed
        return _group_products(rows, weight.transpose(-1, -2), counts)

    @staticmethod
    def backward(
        ctx: Any, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, None, None]:
        rows, weight = ctx.saved_tensors
        gradient, counts = gradients[0].contiguous(), ctx.counts

        def product() -> torch.Tensor:
            return _group_weights(rows, gradient, counts)

        d_rows = _group_products(gradient, weight, counts)
        if ctx.delayed is None or not ctx.delayed.recording:
            return d_rows, product(), None, None, None
        parameter = ctx.parameter
        ctx.delayed.add(lambda: _accumulate(parameter, product()))
        return d_rows, None, None, None, None


def _group_products(rows: torch.Tensor, matrices: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Rows of group e times matrix e: (Σ counts, k), (E, k, n) → (Σ counts, n)."""
    if _equal(counts):
        result = rows.new_empty(rows.shape[0], matrices.shape[-1])
        shape = (len(counts), counts[0], -1)
        torch.bmm(rows.view(shape), matrices, out=result.view(shape))
        return result
    return torch.cat([part @ matrices[e] for e, part in enumerate(rows.split(counts))])


def _equal(counts: list[int]) -> bool:
    """Whether all groups have the same number of rows, at least one."""
    return counts[0] > 0 and len(set(counts)) == 1


def _group_weights(rows: torch.Tensor, gradient: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Gradient of each group's matrix: (Σ counts, k), (Σ counts, n) → (E, n, k)."""
    if _equal(counts):
        shape = (len(counts), counts[0], -1)
        return torch.bmm(gradient.view(shape).transpose(-1, -2), rows.view(shape))
    pairs = zip(gradient.split(counts), rows.split(counts), strict=True)
    return torch.stack([g.t() @ r for g, r in pairs])


def grouped(
    rows: torch.Tensor, parameter: torch.Tensor, counts: list[int], delayed: DelayedGradients | None
) -> torch.Tensor:
    """Multiply the `counts[e]` consecutive rows of each expert by its matrix (n, k): (Σ counts, n)."""
    result: torch.Tensor = _Grouped.apply(
        rows.contiguous(), local(parameter), _Leaf(parameter), counts, delayed
    )
    return result
