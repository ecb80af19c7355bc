"""Products in eight bits by blocks: MXFP8 of the OCP Microscaling Formats 1.0.

Both operands of each product are rounded to e4m3 with one e8m0 scale, a power of two, for every 32 numbers
along which it sums. The scale is the least by which a block's largest value stays within 448: the rounding
``RCEIL`` of cuBLAS, Transformer Engine and torchao's recipe ``mxfp8_rceil`` (the specification's own, FLOOR,
lets the largest values saturate). Blocks are the same under every layout whose parts are whole blocks.

Legend: ``T`` tokens, ``k`` input size, ``n`` output size, ``E`` experts, ``L`` rows of padded groups.
"""

from __future__ import annotations

import torch

from executor.comm.sequence_first import from_rows, lies_sequence_first, rows_of
from executor.model.products.block_group_operators import multiply_block_groups, sum_block_groups
from executor.model.products.block_operators import BLOCK, multiply_blocks
from executor.model.products.e4m3 import FORMAT, NOT_A_NUMBER, exponents, inverse
from executor.model.products.groups import padded
from executor.model.products.products import Products


class Blocks(Products):
    """In eight bits, by blocks of 32."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Rows x (…, k) times a weight (n, k): (…, n)."""
        turned = lies_sequence_first(x)
        result = product_of_blocks(rows_of(x, sequence_first=turned), weight)
        return from_rows(result, x, sequence_first=turned)

    def of_input(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Gradient of the rows, (…, k), of that of the result, (…, n)."""
        turned = lies_sequence_first(gradient)
        result = product_of_blocks(rows_of(gradient, sequence_first=turned), weight.t())
        return from_rows(result, gradient, sequence_first=turned)

    def of_weight(self, gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Gradient of the weight, (n, k); blocks are of consecutive tokens of one sequence."""
        return product_of_blocks(gradient.flatten(0, -2).t(), x.flatten(0, -2).t())

    def of_groups(self, rows: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Rows (T, k), those of expert e up to `offsets[e]`, times its matrix of (E, n, k): (T, n)."""
        return multiply_block_groups(*in_blocks(rows), *in_blocks(weight), offsets, rows.dtype)

    def of_group_rows(
        self, gradient: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        """Gradient of the rows of groups, (T, k), of that of the result, (T, n)."""
        matrices = in_blocks(weight.transpose(-1, -2))
        return multiply_block_groups(*in_blocks(gradient), *matrices, offsets, gradient.dtype)

    def of_group_weights(
        self, gradient: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        """Gradients of the matrices, (E, n, k): blocks are of a group's rows, filled up with zeros."""
        left, right = padded(gradient, offsets, BLOCK), padded(rows, offsets, BLOCK)
        a, b = in_blocks_of_rows(left.rows), in_blocks_of_rows(right.rows)
        return sum_block_groups(*a, *b, left.offsets, gradient.dtype, len(rows))


BLOCKS = Blocks()


def in_blocks(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks of matrices (…, k) in e4m3, (…, k/32, 32), and what to multiply them by, bits of e8m0 (…, k/32).

    A block with a value that is not a number is none either. One whose values are all within 1.75 · 2⁻¹¹⁹ is
    of zeros: its scale is the least that there is, of which cuBLAS takes no inverse.
    """
    return _rounded(matrix.contiguous().unflatten(-1, (-1, BLOCK)), -1)


def in_blocks_of_rows(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks of consecutive rows of a matrix (L, n): those of its transpose, (n, L/32, 32) and (n, L/32)."""
    values, power = _rounded(matrix.unflatten(0, (-1, BLOCK)), 1)
    return values.flatten(0, 1).t().contiguous().unflatten(-1, (-1, BLOCK)), power.t().contiguous()


def _rounded(blocks: torch.Tensor, dimension: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks along a dimension in e4m3, and what to multiply them by."""
    power = exponents(torch.linalg.vector_norm(blocks, ord=float("inf"), dim=dimension))
    up = torch.where(power == 0, 1.0, torch.where(power == NOT_A_NUMBER, float("nan"), inverse(power)))
    return (blocks * up.to(blocks.dtype).unsqueeze(dimension)).to(FORMAT), power


def product_of_blocks(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Product of rows, left (m, k) · right (n, k)ᵀ, both in eight bits by blocks of k, summed in fp32."""
    return multiply_blocks(*in_blocks(left), *in_blocks(right), left.dtype)
