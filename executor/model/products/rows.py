"""Products in eight bits by rows.

The operands of each are rounded to e4m3 with one factor for every row along which it sums, a power of two so
that the factor itself rounds nothing: torchao's recipe ``rowwise``. Powers of two also make layouts agree:
another part of a row has another factor, but rounds to the same values, unless they are below 2⁻¹⁵ of the
row's largest.

Legend: ``T`` tokens, ``k`` input size, ``n`` output size.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.nn.functional import ScalingType

from executor.comm.sequence_first import from_rows, lies_sequence_first, rows_of
from executor.model.products.e4m3 import FORMAT, MANTISSA_BITS, exponents, inverse
from executor.model.products.groups import Padded, padded
from executor.model.products.products import Products
from executor.model.products.row_operators import UNIT, multiply_groups, sum_groups

LEAST = 1e-12  # largest value of a row that is taken for one of zeros, as torchao does


class Rows(Products):
    """In eight bits, by rows."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Rows x (…, k) times a weight (n, k): (…, n); a GPU's sums may be short."""
        turned = lies_sequence_first(x)
        result = multiply_rows(rows_of(x, sequence_first=turned), weight, fast=True)
        return from_rows(result, x, sequence_first=turned)

    def of_input(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Gradient of the rows, (…, k), of that of the result, (…, n)."""
        turned = lies_sequence_first(gradient)
        result = multiply_rows(rows_of(gradient, sequence_first=turned), weight.t())
        return from_rows(result, gradient, sequence_first=turned)

    def of_weight(self, gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Gradient of the weight, (n, k)."""
        turned = lies_sequence_first(gradient) or lies_sequence_first(x)
        return multiply_rows(
            rows_of(gradient, sequence_first=turned).t(), rows_of(x, sequence_first=turned).t()
        )

    def of_groups(self, rows: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Rows (T, k), those of expert e up to `offsets[e]`, times its matrix of (E, n, k): (T, n)."""
        (a, a_scales), (b, b_scales) = rounded(rows), rounded(weight)
        return multiply_groups(a, a_scales, b, b_scales, offsets, rows.dtype, fast=True)

    def of_group_rows(
        self, gradient: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        """Gradient of the rows of groups, (T, k), of that of the result, (T, n)."""
        (a, a_scales), (b, b_scales) = rounded(gradient), rounded(weight.transpose(-1, -2))
        return multiply_groups(a, a_scales, b, b_scales, offsets, gradient.dtype, fast=False)

    def of_group_weights(
        self, gradient: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        """Gradients of the matrices, (E, n, k): factors and sums are of a group's rows alone."""
        left, right = padded(gradient, offsets, UNIT), padded(rows, offsets, UNIT)
        (a, a_scales), (b, b_scales) = rounded_groups(left), rounded_groups(right)
        return sum_groups(a, a_scales, b, b_scales, left.offsets, gradient.dtype, len(rows))


ROWS = Rows()


def factors(largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest power of two by which so large a value stays within e4m3, and its inverse, fp32.

    >>> [x.tolist() for x in factors(torch.tensor([448.0, 448.5, 1.0, 0.0]))]
    [[1.0, 0.5, 256.0, 281474976710656.0], [1.0, 2.0, 0.00390625, 3.552713678800501e-15]]
    """
    power = exponents(largest.float().clamp(min=LEAST))
    return inverse(power), (power.int() << MANTISSA_BITS).view(torch.float32)


def rounded(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix (m, k) in e4m3, row after row, and what each row is to be multiplied by, (m, 1)."""
    largest = torch.linalg.vector_norm(matrix, ord=float("inf"), dim=-1, keepdim=True)
    up, down = factors(largest)
    return (matrix * up.to(matrix.dtype)).to(FORMAT).contiguous(), down


def rounded_groups(groups: Padded) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded groups of rows (L, n) in e4m3, (n, L): a row is what a group sums over, with its own factor.

    The second is what each such row of each group is to be multiplied by, (E, n).
    """
    units, expert = groups.rows.unflatten(0, (-1, UNIT)), groups.expert_of_unit
    of_unit = torch.linalg.vector_norm(units, ord=float("inf"), dim=1)
    largest = of_unit.new_zeros(len(groups.offsets), of_unit.shape[1])
    largest.scatter_reduce_(0, expert.unsqueeze(-1).expand_as(of_unit), of_unit, "amax")
    up, down = factors(largest)
    values = (units * up.to(units.dtype)[expert].unsqueeze(1)).to(FORMAT)
    return values.flatten(0, 1).t().contiguous(), down


def multiply_rows(left: torch.Tensor, right: torch.Tensor, *, fast: bool = False) -> torch.Tensor:
    """Product of rows, left (m, k) · right (n, k)ᵀ, both in eight bits, summed in fp32; `fast` on a GPU."""
    on_gpu = left.is_cuda
    (a, a_scale), (b, b_scale) = rounded(left), rounded(right)
    result = functional.scaled_mm(
        a,
        b.t(),
        a_scale,
        ScalingType.RowWise,
        b_scale.t(),
        ScalingType.RowWise,
        output_dtype=torch.bfloat16 if on_gpu else left.dtype,  # a GPU's kernel of rows has no other
        use_fast_accum=fast and on_gpu,
    )
    return result.to(left.dtype)
