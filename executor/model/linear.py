"""Projections by the part of a weight that this rank holds, able to put their weight gradients off.

Zero-bubble schedules compute the gradient of the input at once (``I``) and those of the weights when the
pipeline would idle (``W``). A stage owns one `DelayedGradients`; while it is recording, the backward of a
projection returns the input's gradient and leaves the product for the weight in its list (Qi 2023 §2). What
waits is no larger than the activations it replaces: with sequence parallelism both the inputs and the output
gradients of a region wait as this rank's part of the sequence, and are gathered again for the product.

Legend: ``k`` input size, ``n`` output size, ``t`` ranks of the tensor axis.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from executor.comm.collectives import all_gather, begin_all_gather, begin_reduce_scatter, reduce_scatter
from executor.comm.sequence_first import from_rows, laid_sequence_first, rows_of, through
from executor.comm.tensor_parallel import SEQUENCE_DIM, TensorAxis, enter, leave_region, local
from executor.model import overlapped
from executor.model.delayed import DelayedGradients, Leaf, now_or_later
from executor.model.products.products import SAME, Products


class _DelayedLinear(torch.autograd.Function):
    """x·Wᵀ whose weight gradient may be put off."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        leaf: Leaf,
        delayed: DelayedGradients | None,
        products: Products,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameter, ctx.delayed, ctx.products = leaf.parameter, delayed, products
        return products.forward(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient, products, parameter = gradients[0], ctx.products, ctx.parameter
        d_x = products.of_input(gradient, weight) if ctx.needs_input_grad[0] else None
        if ctx.delayed is None or not ctx.delayed.recording:
            return d_x, products.of_weight(gradient, x), None, None, None
        ctx.delayed.add(lambda: [(parameter, products.of_weight(gradient, x))])
        return d_x, None, None, None, None


def project(
    x: torch.Tensor,
    parameter: torch.Tensor,
    delayed: DelayedGradients | None,
    products: Products = SAME,
) -> torch.Tensor:
    """Multiply rows x (…, k) by a weight parameter (n, k)."""
    if products is SAME and (delayed is None or not parameter.requires_grad):
        return SAME.forward(x, local(parameter))
    result: torch.Tensor = _DelayedLinear.apply(x, local(parameter), Leaf(parameter), delayed, products)
    return result


class Linear(nn.Linear):
    """A projection by the rows of its weight that this rank holds (column-parallel when split).

    `lora_A` and `lora_B` are the matrices of an adapter, `scale` the factor of their product
    (`executor.model.low_rank`); `products` is what it multiplies in.
    """

    may_be_narrow = True
    products: Products = SAME
    delayed: DelayedGradients | None = None
    scale: float = 1.0

    def __init__(self, inputs: int, outputs: int, **options: Any) -> None:
        super().__init__(inputs, outputs, **options)
        self.lora_A: Linear | None = None
        self.lora_B: Linear | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project the last dimension."""
        y = self.alone(x)
        return y if self.lora_A is None else self.adapted(y, self.lora_A.alone(x))

    def alone(self, x: torch.Tensor) -> torch.Tensor:
        """Project the last dimension by the weight itself."""
        if self.delayed is None and self.products is SAME:
            weight, bias = local(self.weight), None if self.bias is None else local(self.bias)
            return through(lambda rows: functional.linear(rows, weight, bias), x)
        y = project(x, self.weight, self.delayed, self.products)
        return y if self.bias is None else y + local(self.bias)

    def adapted(self, y: torch.Tensor, narrow: torch.Tensor) -> torch.Tensor:
        """The result y with what the adapter makes of its inner product `narrow` (…, r)."""
        return y if self.lora_B is None else y + self.scale * self.lora_B.alone(narrow)


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
        products: Products,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameter, ctx.axis, ctx.delayed, ctx.products = leaf.parameter, axis, delayed, products
        return reduce_scatter(_sequence_first(x, weight, products), SEQUENCE_DIM, axis.group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        part, axis, parameter, products = gradients[0], ctx.axis, ctx.parameter, ctx.products
        whole = all_gather(part, SEQUENCE_DIM, axis.group)
        d_x = products.of_input(whole, weight)

        def weight_gradient(gradient: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
            return [(parameter, products.of_weight(gradient, x))]

        if ctx.delayed is None or not ctx.delayed.recording:
            return d_x, weight_gradient(whole)[0][1], None, None, None, None
        ctx.delayed.add(lambda: weight_gradient(all_gather(part, SEQUENCE_DIM, axis.group)))
        return d_x, None, None, None, None, None


def _sequence_first(x: torch.Tensor, weight: torch.Tensor, products: Products) -> torch.Tensor:
    """Rows x (B, S, k/t) times a weight (n, k/t), laid out as its parts are sent; may copy x."""
    result = products.forward(rows_of(x, sequence_first=True), weight)
    return from_rows(result, x, sequence_first=True)


class RowLinear(nn.Linear):
    """A projection by the columns of its weight that this rank holds, summed before the bias."""

    axis: TensorAxis | None = None
    may_be_narrow = True
    products: Products = SAME
    delayed: DelayedGradients | None = None
    scale: float = 1.0

    def __init__(self, inputs: int, outputs: int, **options: Any) -> None:
        super().__init__(inputs, outputs, **options)
        self.lora_A: Linear | None = None
        self.lora_B: Linear | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project the last dimension and leave the split region; an adapter's part leaves with it."""
        axis, delayed = self.axis, self.delayed
        scatters = axis is not None and axis.size > 1 and axis.sequence_parallel
        if axis is not None and overlaps(axis, self.products, (self,)):
            y = overlapped.project_scattered(x, self.weight, Leaf(self.weight), axis, delayed)
        elif axis is not None and scatters and self.weight.requires_grad:
            y = _ScatteredProjection.apply(
                x, local(self.weight), Leaf(self.weight), axis, delayed, self.products
            )
        else:
            if scatters and self.products is SAME:  # a frozen weight
                y = _sequence_first(x, local(self.weight), self.products)
            else:
                y = project(x, self.weight, delayed, self.products)
            if self.lora_A is not None and self.lora_B is not None:
                y = y + self.scale * self.lora_B.alone(self.lora_A.alone(x))
            y = leave_region(y, axis)
        return y if self.bias is None else y + local(self.bias)


class _GatheredProjections(torch.autograd.Function):
    """Projections of a sequence whose parts are gathered; keeps this rank's part and gathers it again.

    The second gather, for the weights' gradients, is the price of keeping S/t instead of S rows (Korthikanti
    2022 §4.2.2). It runs under the product of the input's gradient, whose sum runs under those of weights.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        leaves: tuple[Leaf, ...],
        axis: TensorAxis,
        delayed: DelayedGradients | None,
        products: Products,
        *weights: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        ctx.leaves, ctx.axis, ctx.delayed, ctx.products = leaves, axis, delayed, products
        whole = all_gather(x, SEQUENCE_DIM, axis.group)
        return tuple(products.forward(whole, weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.saved_tensors
        leaves, axis, delayed, products = ctx.leaves, ctx.axis, ctx.delayed, ctx.products
        gradients = tuple(map(laid_sequence_first, gradients))  # both products read them so
        gather = functools.partial(begin_all_gather, x, SEQUENCE_DIM, axis.group)
        later = delayed is not None and delayed.recording
        trains = any(leaf.parameter.requires_grad for leaf in leaves)
        begun = gather() if trains and not later else None
        d_x = None
        if ctx.needs_input_grad[0]:  # not below the first adapter
            partial = _sum_of_gemms(gradients, weights, products)
            d_x = begin_reduce_scatter(partial, SEQUENCE_DIM, axis.group)

        def weight_gradients(places: Sequence[int]) -> list[torch.Tensor]:
            whole = (gather() if begun is None else begun)()
            return [products.of_weight(gradients[place], whole) for place in places]

        of_weights = now_or_later(leaves, weight_gradients, delayed)
        return (None if d_x is None else d_x(), None, None, None, None, *of_weights)


def _sum_of_gemms(
    rows: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor], products: Products
) -> torch.Tensor:
    """Σ rows_i (…, n_i) times matrix_i (n_i, k), accumulated in place."""
    if products is not SAME:
        total = products.of_input(rows[0], matrices[0])
        for row, matrix in zip(rows[1:], matrices[1:], strict=True):
            total += products.of_input(row, matrix)
        return total
    total = rows_of(rows[0], sequence_first=True) @ matrices[0]
    for row, matrix in zip(rows[1:], matrices[1:], strict=True):
        total.addmm_(rows_of(row, sequence_first=True), matrix)
    return from_rows(total, rows[0], sequence_first=True)


def overlaps(axis: TensorAxis, products: Products, linears: Sequence[Linear | RowLinear]) -> bool:
    """Whether messages of a split region run under its products: of whole weights that are trained."""
    plain = all(linear.lora_A is None and linear.weight.requires_grad for linear in linears)
    return axis.overlaps and products is SAME and plain


def project_together(
    x: torch.Tensor, linears: Sequence[Linear], axis: TensorAxis | None
) -> list[torch.Tensor]:
    """Begin a split region with several projections of the same rows x (B, S, k)."""
    if axis is None or axis.size == 1 or not axis.sequence_parallel:
        x = enter(x, axis)
        return [Linear.forward(linear, x) for linear in linears]
    if overlaps(axis, linears[0].products, linears):
        shards = [linear.weight for linear in linears]
        whole = overlapped.project_gathered(x, shards, tuple(map(Leaf, shards)), axis, linears[0].delayed)
        pairs = zip(whole, linears, strict=True)
        return [y if linear.bias is None else y + local(linear.bias) for y, linear in pairs]
    narrow = [linear.lora_A for linear in linears if linear.lora_A is not None]
    weights = [linear.weight for linear in (*linears, *narrow)]
    results = _GatheredProjections.apply(
        x,
        tuple(Leaf(w) for w in weights),
        axis,
        linears[0].delayed,
        linears[0].products,
        *(local(w) for w in weights),
    )
    inner = iter(results[len(linears) :])
    result = []
    for y, linear in zip(results, linears, strict=False):
        biased = y if linear.bias is None else y + local(linear.bias)
        result.append(biased if linear.lora_A is None else linear.adapted(biased, next(inner)))
    return result


class Head(Linear):
    """The projection onto the vocabulary: a split region of its own, left with logits still split."""

    may_be_narrow = False
    axis: TensorAxis | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (B, S, V/t) of hidden states."""
        (logits,) = project_together(x, (self,), self.axis)
        return logits
