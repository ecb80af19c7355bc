"""Products of blocks of 32 in e4m3 with a scale each, as one operator: a GPU's kernel, or a CPU's.

Legend: ``m n`` sides of a result, ``k`` what is summed over.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.nn.functional import ScalingType, SwizzleType

from executor.model.products.registered import register

BLOCK = 32  # numbers that share a scale (OCP Microscaling Formats 1.0, section 5.1)
SCALES = torch.float8_e8m0fnu  # viewed so inside of operators alone: torch's compiler does not know it
TILE_ROWS, TILE_COLUMNS, _TILE_PART = 128, 4, 32  # of scales, as tensor cores read them


def wide(values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What blocks (…, k/32, 32) in e4m3 and their scales, bits of e8m0, stand for, (…, k): exact in bf16."""
    return (values.to(dtype) * scales.view(SCALES).to(dtype).unsqueeze(-1)).flatten(-2)


def tiled(scales: torch.Tensor) -> torch.Tensor:
    """Scales (…, m, k/32), bits of e8m0, in the order in which tensor cores of Blackwell read them: (…, s).

    Tiles of 128 rows by 4 columns, row of tiles after row of tiles; within one, rows 0, 32, 64 and 96 stand
    side by side, then 1, 33, …. What sticks out is filled with zeros (cuBLAS, "1D block scaling factors
    layout").

    >>> tiled(torch.arange(128.0).view(-1, 1).expand(-1, 4).to(torch.uint8)).shape
    torch.Size([512])
    """
    rows, columns = scales.shape[-2:]
    whole = functional.pad(scales, (0, -columns % TILE_COLUMNS, 0, -rows % TILE_ROWS))
    tiles = whole.unflatten(-1, (-1, TILE_COLUMNS)).unflatten(-3, (-1, TILE_ROWS // _TILE_PART, _TILE_PART))
    return tiles.transpose(-4, -2).flatten(-5).view(SCALES)


def multiply_blocks_on_cpu(
    left: torch.Tensor,
    left_scales: torch.Tensor,
    right: torch.Tensor,
    right_scales: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Product of rows of blocks in e4m3, left (m, k/32, 32) · right (n, k/32, 32)ᵀ, each scaled: (m, n)."""
    return wide(left, left_scales, dtype) @ wide(right, right_scales, dtype).t()


def multiply_blocks_on_gpu(
    left: torch.Tensor,
    left_scales: torch.Tensor,
    right: torch.Tensor,
    right_scales: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Multiply by tensor cores of compute capability 10.0 and later, which apply the scales themselves."""
    result = functional.scaled_mm(
        left.flatten(1),
        right.flatten(1).t(),
        tiled(left_scales),
        ScalingType.BlockWise1x32,
        tiled(right_scales),
        ScalingType.BlockWise1x32,
        swizzle_a=SwizzleType.SWIZZLE_32_4_4,
        swizzle_b=SwizzleType.SWIZZLE_32_4_4,
        output_dtype=torch.bfloat16,
    )
    return result.to(dtype)


def _shape_of_blocks(
    left: torch.Tensor, _left: torch.Tensor, right: torch.Tensor, _right: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Their product without values."""
    return left.new_empty(left.shape[0], right.shape[0], dtype=dtype)


multiply_blocks, MULTIPLY_BLOCKS = register(
    "multiply_blocks", on_cpu=multiply_blocks_on_cpu, on_gpu=multiply_blocks_on_gpu, shape=_shape_of_blocks
)
