"""Products of operands in eight bits, each one operator of torch: a GPU's kernel, or the same on a CPU.

As operators they are traced without values and counted like torch's own, with what a GPU allocates: what a
CPU needs to play one stays inside of them.

Legend: ``m n`` sides of a result, ``k`` what is summed over; ``T`` rows and ``E`` matrices of groups,
``L`` rows of padded groups.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch.nn import functional
from torch.nn.functional import ScalingType, SwizzleType

Product: TypeAlias = Callable[..., torch.Tensor]
UNIT = 16  # numbers of e4m3 that a kernel reads at once; a group that is summed over has whole ones
BLOCK = 32  # numbers that share a scale (OCP Microscaling Formats 1.0, section 5.1)
SCALES = torch.float8_e8m0fnu  # viewed so inside of operators alone: torch's compiler does not know it
_TILE_ROWS, _TILE_COLUMNS, _TILE_PART = 128, 4, 32  # of scales, as tensor cores read them


def wide(values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What blocks (m, k/32, 32) in e4m3 and their scales, bits of e8m0, stand for, (m, k): exact in bf16."""
    return (values.to(dtype) * scales.view(SCALES).to(dtype).unsqueeze(-1)).flatten(-2)


def tiled(scales: torch.Tensor) -> torch.Tensor:
    """Scales (m, k/32), bits of e8m0, in the order in which tensor cores of Blackwell read them, flat.

    Tiles of 128 rows by 4 columns, row of tiles after row of tiles; within one, rows 0, 32, 64 and 96 stand
    side by side, then 1, 33, …. What sticks out is filled with zeros (cuBLAS, "1D block scaling factors
    layout").

    >>> tiled(torch.arange(128.0).view(-1, 1).expand(-1, 4).to(torch.uint8)).shape
    torch.Size([512])
    """
    rows, columns = scales.shape
    padding = (0, -columns % _TILE_COLUMNS, 0, -rows % _TILE_ROWS)
    whole = functional.pad(scales, padding)
    tiles = whole.unflatten(1, (-1, _TILE_COLUMNS)).unflatten(0, (-1, _TILE_ROWS // _TILE_PART, _TILE_PART))
    return tiles.permute(0, 3, 2, 1, 4).flatten().view(SCALES)


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


def _operator(name: str, *, on_cpu: Product, on_gpu: Product, shape: Product) -> tuple[Product, Any]:
    """One operator with a kernel for each device, and torch's name of it."""
    whole = f"meshplan::{name}"
    run = torch.library.custom_op(whole, on_cpu, mutates_args=(), device_types="cpu")
    run.register_kernel("cuda")(on_gpu)
    run.register_fake(shape)
    return run, getattr(torch.ops.meshplan, name).default


multiply_blocks, _blocks = _operator(
    "multiply_blocks", on_cpu=multiply_blocks_on_cpu, on_gpu=multiply_blocks_on_gpu, shape=_shape_of_blocks
)


def multiply_groups_on_cpu(
    rows: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    ends: torch.Tensor,
    dtype: torch.dtype,
    *,
    fast: bool,  # noqa: ARG001  # as the operator has it
) -> torch.Tensor:
    """Rows (T, k) in e4m3, up to `ends[e]` times weight e of (E, n, k), a scale for every row: (T, n)."""
    result = torch.zeros(rows.shape[0], weight.shape[1], dtype=dtype)
    for expert, (start, end) in enumerate(pairwise((0, *ends.tolist()))):
        if end > start:
            result[start:end] = functional.scaled_mm(
                rows[start:end],
                weight[expert].t(),
                scales[start:end],
                ScalingType.RowWise,
                weight_scales[expert].t(),
                ScalingType.RowWise,
                output_dtype=dtype,
            )
    return result


def multiply_groups_on_gpu(
    rows: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    ends: torch.Tensor,
    dtype: torch.dtype,
    *,
    fast: bool,
) -> torch.Tensor:
    """Multiply by one kernel, which reads the ends on the device."""
    result = functional.scaled_grouped_mm(  # type: ignore[attr-defined]  # not in torch's stubs
        rows,
        weight.transpose(-1, -2),
        scales.squeeze(-1),
        ScalingType.RowWise,
        weight_scales.squeeze(-1),
        ScalingType.RowWise,
        offs=ends,
        output_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )
    return result.to(dtype)


def _shape_of_groups(
    rows: torch.Tensor,
    _scales: torch.Tensor,
    weight: torch.Tensor,
    _weight_scales: torch.Tensor,
    _ends: torch.Tensor,
    dtype: torch.dtype,
    *,
    fast: bool,  # noqa: ARG001  # as the operator has it
) -> torch.Tensor:
    """Their product without values."""
    return rows.new_empty(rows.shape[0], weight.shape[1], dtype=dtype)


def sum_groups_on_cpu(
    left: torch.Tensor,
    left_scales: torch.Tensor,
    right: torch.Tensor,
    right_scales: torch.Tensor,
    ends: torch.Tensor,
    dtype: torch.dtype,
    rows: int,  # noqa: ARG001  # without those that pad: what counts as multiplied
) -> torch.Tensor:
    """Products left (n, L) · right (k, L)ᵀ of each group's columns, scales (E, n) and (E, k): (E, n, k)."""
    result = torch.zeros(len(ends), left.shape[0], right.shape[0], dtype=dtype)
    for expert, (start, end) in enumerate(pairwise((0, *ends.tolist()))):
        if end > start:
            result[expert] = functional.scaled_mm(
                left[:, start:end].contiguous(),
                right[:, start:end].contiguous().t(),
                left_scales[expert].unsqueeze(1),
                ScalingType.RowWise,
                right_scales[expert].unsqueeze(0),
                ScalingType.RowWise,
                output_dtype=dtype,
            )
    return result


def sum_groups_on_gpu(
    left: torch.Tensor,
    left_scales: torch.Tensor,
    right: torch.Tensor,
    right_scales: torch.Tensor,
    ends: torch.Tensor,
    dtype: torch.dtype,
    rows: int,  # noqa: ARG001  # as the operator has it
) -> torch.Tensor:
    """Sum by one kernel, which reads the ends on the device."""
    result = functional.scaled_grouped_mm(  # type: ignore[attr-defined]  # not in torch's stubs
        left,
        right.t(),
        left_scales.flatten(),
        ScalingType.RowWise,
        right_scales.flatten(),
        ScalingType.RowWise,
        offs=ends,
        output_dtype=torch.bfloat16,
    )
    return result.to(dtype)


def _shape_of_sums(
    left: torch.Tensor,
    _left_scales: torch.Tensor,
    right: torch.Tensor,
    _right_scales: torch.Tensor,
    ends: torch.Tensor,
    dtype: torch.dtype,
    _rows: int,
) -> torch.Tensor:
    """Their sums without values."""
    return left.new_empty(ends.shape[0], left.shape[0], right.shape[0], dtype=dtype)


multiply_groups, _groups = _operator(
    "multiply_groups", on_cpu=multiply_groups_on_cpu, on_gpu=multiply_groups_on_gpu, shape=_shape_of_groups
)
sum_groups, _sums = _operator(
    "sum_groups", on_cpu=sum_groups_on_cpu, on_gpu=sum_groups_on_gpu, shape=_shape_of_sums
)
OPERATORS = (_blocks, _groups, _sums)
"""As modes of torch know them: what operator-wise recomputation keeps."""
