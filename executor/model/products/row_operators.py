"""Products of groups of rows in e4m3, a scale for every row, each one operator: a GPU's kernel, or a CPU's.

Legend: ``n k`` sides of a matrix; ``T`` rows and ``E`` matrices of groups, ``L`` rows of padded groups.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.nn import functional
from torch.nn.functional import ScalingType

from executor.model.products.registered import register, shape_of_sums

UNIT = 16  # numbers of e4m3 that a kernel reads at once; a group that is summed over has whole ones


def multiply_groups_on_cpu(
    rows: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    offsets: torch.Tensor,
    dtype: torch.dtype,
    *,
    fast: bool,  # noqa: ARG001  # as the operator has it
) -> torch.Tensor:
    """Rows (T, k) in e4m3, up to `offsets[e]` times weight e of (E, n, k), a scale for every row: (T, n)."""
    result = torch.zeros(rows.shape[0], weight.shape[1], dtype=dtype)
    for expert, (start, end) in enumerate(pairwise((0, *offsets.tolist()))):
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
    offsets: torch.Tensor,
    dtype: torch.dtype,
    *,
    fast: bool,
) -> torch.Tensor:
    """Multiply by one kernel, which reads the offsets on the device."""
    result = functional.scaled_grouped_mm(  # type: ignore[attr-defined]  # not in torch's stubs
        rows,
        weight.transpose(-1, -2),
        scales.squeeze(-1),
        ScalingType.RowWise,
        weight_scales.squeeze(-1),
        ScalingType.RowWise,
        offs=offsets,
        output_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )
    return result.to(dtype)


def _shape_of_groups(
    rows: torch.Tensor,
    _scales: torch.Tensor,
    weight: torch.Tensor,
    _weight_scales: torch.Tensor,
    _offsets: torch.Tensor,
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
    offsets: torch.Tensor,
    dtype: torch.dtype,
    rows: int,  # noqa: ARG001  # without those that pad: what counts as multiplied
) -> torch.Tensor:
    """Products left (n, L) · right (k, L)ᵀ of each group's columns, scales (E, n) and (E, k): (E, n, k)."""
    result = torch.zeros(len(offsets), left.shape[0], right.shape[0], dtype=dtype)
    for expert, (start, end) in enumerate(pairwise((0, *offsets.tolist()))):
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
    offsets: torch.Tensor,
    dtype: torch.dtype,
    rows: int,  # noqa: ARG001  # as the operator has it
) -> torch.Tensor:
    """Sum by one kernel, which reads the offsets on the device."""
    result = functional.scaled_grouped_mm(  # type: ignore[attr-defined]  # not in torch's stubs
        left,
        right.t(),
        left_scales.flatten(),
        ScalingType.RowWise,
        right_scales.flatten(),
        ScalingType.RowWise,
        offs=offsets,
        output_dtype=torch.bfloat16,
    )
    return result.to(dtype)


multiply_groups, MULTIPLY_GROUPS = register(
    "multiply_groups", on_cpu=multiply_groups_on_cpu, on_gpu=multiply_groups_on_gpu, shape=_shape_of_groups
)
sum_groups, SUM_GROUPS = register(
    "sum_groups", on_cpu=sum_groups_on_cpu, on_gpu=sum_groups_on_gpu, shape=shape_of_sums
)
