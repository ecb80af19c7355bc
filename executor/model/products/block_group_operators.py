"""Products of groups of rows in blocks of 32 in e4m3, each one operator: a GPU's kernel, or a CPU's.

A GPU's kernel reads the scales of every group in tiles of its own: of rows that are multiplied, whole tiles
of 128 rows; of groups that are summed over, whole tiles of 4 blocks (MSLK's ``mx8mx8bf16_grouped_mm``, which
torch calls). Where tiles begin follows from where groups end, on the device.

Legend: ``n k`` sides of a matrix; ``T`` rows and ``E`` matrices of groups, ``L`` rows of padded groups.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.nn import functional
from torch.nn.functional import ScalingType, SwizzleType

from executor.model.products.block_operators import (
    BLOCK,
    SCALES,
    TILE_COLUMNS,
    TILE_ROWS,
    tiled,
    wide,
)
from executor.model.products.groups import padded
from executor.model.products.registered import register, shape_of_sums


def multiply_block_groups_on_cpu(
    rows: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    offsets: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Rows (T, k/32, 32) of blocks, up to `offsets[e]` times matrix e of (E, n, k/32, 32), scaled: (T, n)."""
    result = torch.zeros(rows.shape[0], weight.shape[1], dtype=dtype)
    for expert, (start, end) in enumerate(pairwise((0, *offsets.tolist()))):
        if end > start:
            matrix = wide(weight[expert], weight_scales[expert], dtype)
            result[start:end] = wide(rows[start:end], scales[start:end], dtype) @ matrix.t()
    return result


def multiply_block_groups_on_gpu(
    rows: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    offsets: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Multiply by one kernel of compute capability 10, which reads the offsets on the device."""
    result = functional.scaled_grouped_mm(  # type: ignore[attr-defined]  # not in torch's stubs
        rows.flatten(1),
        weight.flatten(2).transpose(-1, -2),
        tiled_rows(scales, offsets),
        ScalingType.BlockWise1x32,
        tiled(weight_scales),
        ScalingType.BlockWise1x32,
        swizzle_a=SwizzleType.SWIZZLE_32_4_4,
        swizzle_b=SwizzleType.SWIZZLE_32_4_4,
        offs=offsets,
        output_dtype=torch.bfloat16,
    )
    return result.to(dtype)


def _shape_of_products(
    rows: torch.Tensor,
    _scales: torch.Tensor,
    weight: torch.Tensor,
    _weight_scales: torch.Tensor,
    _offsets: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Their product without values."""
    return rows.new_empty(rows.shape[0], weight.shape[1], dtype=dtype)


def sum_block_groups_on_cpu(
    left: torch.Tensor,
    left_scales: torch.Tensor,
    right: torch.Tensor,
    right_scales: torch.Tensor,
    offsets: torch.Tensor,
    dtype: torch.dtype,
    rows: int,  # noqa: ARG001  # without those that pad: what counts as multiplied
) -> torch.Tensor:
    """Products left (n, L/32, 32) · right (k, L/32, 32)ᵀ of each group's blocks, each scaled: (E, n, k)."""
    result = torch.zeros(len(offsets), left.shape[0], right.shape[0], dtype=dtype)
    for expert, (start, end) in enumerate(pairwise((0, *(offsets // BLOCK).tolist()))):
        if end > start:
            a, b = (
                wide(values[:, start:end], scales[:, start:end], dtype)
                for values, scales in ((left, left_scales), (right, right_scales))
            )
            result[expert] = a @ b.t()
    return result


def sum_block_groups_on_gpu(
    left: torch.Tensor,
    left_scales: torch.Tensor,
    right: torch.Tensor,
    right_scales: torch.Tensor,
    offsets: torch.Tensor,
    dtype: torch.dtype,
    rows: int,  # noqa: ARG001  # as the operator has it
) -> torch.Tensor:
    """Sum by one kernel, which reads the offsets on the device and writes nothing for an empty group."""
    result = functional.scaled_grouped_mm(  # type: ignore[attr-defined]  # not in torch's stubs
        left.flatten(1),
        right.flatten(1).t(),
        tiled_columns(left_scales, offsets // BLOCK),
        ScalingType.BlockWise1x32,
        tiled_columns(right_scales, offsets // BLOCK),
        ScalingType.BlockWise1x32,
        swizzle_a=SwizzleType.SWIZZLE_32_4_4,
        swizzle_b=SwizzleType.SWIZZLE_32_4_4,
        offs=offsets,
        output_dtype=torch.bfloat16,
    )
    empty = offsets == functional.pad(offsets[:-1], (1, 0))
    return result.masked_fill_(empty.view(-1, 1, 1), 0.0).to(dtype)


def tiled_rows(scales: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Scales (T, k/32) of groups of rows, each group in whole tiles, as many as those have."""
    whole = padded(scales, offsets, TILE_ROWS).rows
    return tiled(whole).view(whole.shape[0], -1)


def tiled_columns(scales: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Scales (n, L/32) of groups of columns, each in whole tiles: as many rows and columns as those have.

    A row of tiles is as long as its group, and a group begins after the last row of the one before.
    """
    with_rest = functional.pad(offsets, (0, 1), value=scales.shape[1])  # what is behind the last group
    groups = padded(scales.t(), with_rest, TILE_COLUMNS)
    tiles = tiled(groups.rows.t()).view(-1, groups.rows.shape[0] // TILE_COLUMNS, TILE_ROWS * TILE_COLUMNS)
    height, width = tiles.shape[:2]
    last = functional.pad(groups.offsets // TILE_COLUMNS, (0, 1), value=width)
    column = torch.arange(width, device=scales.device, dtype=last.dtype)
    group = torch.searchsorted(last, column, right=True)
    start = functional.pad(last[:-1], (1, 0))[group]
    row = torch.arange(height, device=scales.device).unsqueeze(1)
    place = start * height + row * (last[group] - start) + column - start
    moved = torch.empty_like(tiles.flatten(0, 1).view(torch.uint8))
    moved.index_copy_(0, place.flatten(), tiles.flatten(0, 1).view(torch.uint8))
    return moved.view(height * TILE_ROWS, -1).view(SCALES)


multiply_block_groups, MULTIPLY_BLOCK_GROUPS = register(
    "multiply_block_groups",
    on_cpu=multiply_block_groups_on_cpu,
    on_gpu=multiply_block_groups_on_gpu,
    shape=_shape_of_products,
)
sum_block_groups, SUM_BLOCK_GROUPS = register(
    "sum_block_groups",
    on_cpu=sum_block_groups_on_cpu,
    on_gpu=sum_block_groups_on_gpu,
    shape=shape_of_sums,
)
