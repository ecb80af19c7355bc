"""Experts in eight bits by blocks: each is multiplied as alone, and as torchao's grouped MXFP8, to the last bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional

from executor.model.delayed import DelayedGradients
from executor.model.grouped import multiply_groups, offsets_of
from executor.model.products import block_group_operators as operators
from executor.model.products.block_operators import BLOCK
from executor.model.products.blocks import BLOCKS, in_blocks, in_blocks_of_rows
from executor.model.products.groups import padded

COUNTS = [[3, 0, 21, 40], [0, 0, 0, 48], [33, 1, 31, 32], [64, 32, 0, 128], [200, 5, 0, 160]]
INNER, OUTER = 64, 96


def operands(counts: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows (T, k) over eight decades, matrices (E, n, k) and a gradient (T, n), in bf16."""
    generator, total = torch.Generator().manual_seed(2), sum(counts)
    rows = torch.randn(total, INNER, generator=generator) * torch.logspace(-4, 4, total)[:, None]
    weight = (
        torch.randn(len(counts), OUTER, INNER, generator=generator) * torch.logspace(-3, 3, OUTER)[:, None]
    )
    gradient = torch.randn(total, OUTER, generator=generator) * torch.logspace(3, -3, total)[:, None]
    return rows.bfloat16(), weight.bfloat16(), gradient.bfloat16()


def filled(rows: torch.Tensor) -> torch.Tensor:
    """Rows and as many of zeros as make whole blocks."""
    return functional.pad(rows, (0, 0, 0, -len(rows) % BLOCK))


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_expert_is_multiplied_as_alone(counts: list[int], dtype: torch.dtype) -> None:
    """Blocks and sums are of its own rows, also where their number is no multiple of 32, or none."""
    rows, weight, gradient = (each.to(dtype) for each in operands(counts))
    ends = offsets_of(torch.tensor(counts))
    parts = [(e, a, b) for e, (a, b) in enumerate(pairwise([0, *ends.tolist()])) if b > a]
    forward = torch.cat([BLOCKS.forward(rows[a:b], weight[e]) for e, a, b in parts])
    of_rows = torch.cat([BLOCKS.of_input(gradient[a:b], weight[e]) for e, a, b in parts])
    assert torch.equal(BLOCKS.of_groups(rows, weight, ends), forward)
    assert torch.equal(BLOCKS.of_group_rows(gradient, weight, ends), of_rows)
    expected = torch.zeros_like(weight)
    for e, a, b in parts:
        expected[e] = BLOCKS.of_weight(filled(gradient[a:b]), filled(rows[a:b]))
    assert torch.equal(BLOCKS.of_group_weights(gradient, rows, ends), expected)


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("put_off", [False, True])
def test_products_and_gradients_are_those_of_torchao(
    counts: list[int], put_off: bool, recwarn: pytest.WarningsRecorder
) -> None:
    """Its grouped products with scales rounded up (RCEIL) and groups padded to blocks, emulated."""
    del recwarn  # torchao warns of kernels that this machine does not have
    pytest.importorskip("torchao")
    from torchao.prototype.moe_training.mxfp8_grouped_mm import _to_mxfp8_then_scaled_grouped_mm
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.quantization.quantize_.common import KernelPreference

    rows, weight, gradient = operands(counts)
    inputs, parameter = rows.clone().requires_grad_(), torch.nn.Parameter(weight)
    delayed = DelayedGradients()
    delayed.recording = put_off
    ends = offsets_of(torch.tensor(counts))
    result = multiply_groups(inputs, parameter, ends, delayed, BLOCKS)
    result.backward(gradient)
    of_weight = delayed.take()[0]()[0][1] if put_off else parameter.grad
    assert of_weight is not None
    their_rows, theirs = rows.clone().requires_grad_(), weight.clone().requires_grad_()
    expected = _to_mxfp8_then_scaled_grouped_mm(
        their_rows,
        theirs.transpose(-2, -1),
        ends,
        kernel_preference=KernelPreference.EMULATED,
        scale_calculation_mode=ScaleCalculationMode.RCEIL,
        pad_token_groups_for_grouped_mm=True,
    )
    expected.backward(gradient)
    assert torch.equal(result, expected)
    assert torch.equal(inputs.grad, their_rows.grad)
    assert torch.equal(of_weight, theirs.grad)


def test_what_is_no_number_stays_with_its_expert() -> None:
    """Of its rows, and of its matrix's gradient."""
    counts = [20, 12]
    rows, weight, gradient = (each.float() for each in operands(counts))
    rows[3, 5] = float("nan")
    ends = offsets_of(torch.tensor(counts))
    assert BLOCKS.of_groups(rows, weight, ends).isfinite().all(-1).tolist() == [row != 3 for row in range(32)]
    finite = BLOCKS.of_group_weights(gradient, rows, ends).isfinite()
    assert not finite[0, :, 5].any()
    assert finite[0, :, :5].all()
    assert finite[1].all()


@pytest.mark.parametrize("size", [INNER, 160])
@pytest.mark.parametrize("counts", COUNTS)
def test_scales_of_groups_of_rows_stand_where_the_kernel_reads_them(counts: list[int], size: int) -> None:
    """Each group begins after whole tiles of 128 rows of those before it; within one as of one matrix."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.randint(1, 255, (sum(counts), size // 32), dtype=torch.uint8, generator=generator)
    ends = offsets_of(torch.tensor(counts))
    found = operators.tiled_rows(scales, ends).view(torch.uint8)
    width = -(-scales.shape[1] // 4)
    expected, before = torch.zeros_like(found).flatten(), 0
    for a, b in pairwise([0, *ends.tolist()]):
        for row in range(b - a):
            for column in range(scales.shape[1]):
                tile = row // 128 * width + column // 4
                place = before + tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
                expected[place] = scales[a + row, column]
        before += -(-(b - a) // 128) * width * 512
    assert torch.equal(found.flatten(), expected)
    assert found.shape[0] >= scales.shape[0]


@pytest.mark.parametrize("side", [96, 130, 256])
@pytest.mark.parametrize("blocks", [[1, 0, 3, 4], [0, 0, 0, 5], [2, 7, 1, 1], [9, 4, 0, 2]])
def test_scales_of_groups_of_columns_stand_where_the_kernel_reads_them(blocks: list[int], side: int) -> None:
    """Each group begins after whole tiles of 4 columns of those before it, and has rows of tiles of its own."""
    generator = torch.Generator().manual_seed(0)
    behind = 2  # columns of zeros that belong to no group
    scales = torch.randint(1, 255, (side, sum(blocks)), dtype=torch.uint8, generator=generator)
    ends = offsets_of(torch.tensor(blocks))
    found = operators.tiled_columns(functional.pad(scales, (0, behind)), ends).view(torch.uint8)
    height = -(-side // 128)
    expected, before = torch.zeros_like(found).flatten(), 0
    for a, b in pairwise([0, *ends.tolist()]):
        width = -(-(b - a) // 4)
        for row in range(side):
            for column in range(b - a):
                tile = row // 128 * width + column // 4
                place = before + tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
                expected[place] = scales[row, a + column]
        before += height * width * 512
    assert torch.equal(found.flatten(), expected)
    assert found.shape[0] == height * 128


@pytest.mark.parametrize("counts", COUNTS)
def test_a_gpu_s_kernel_takes_what_it_is_given(monkeypatch: pytest.MonkeyPatch, counts: list[int]) -> None:
    """Torch's own checks of types, strides and scales, which its first version of the call makes without a GPU."""
    told: list[Any] = []

    def first_version(a: Any, b: Any, a_scale: Any, _a: Any, b_scale: Any, _b: Any, **options: Any) -> Any:
        told.append((options["swizzle_a"], options["swizzle_b"]))
        return torch._scaled_grouped_mm(
            a, b, a_scale, b_scale, options["offs"], out_dtype=options["output_dtype"]
        )

    monkeypatch.setattr(functional, "scaled_grouped_mm", first_version)
    rows, weight, gradient = (each.to("meta") for each in operands(counts))
    ends = offsets_of(torch.tensor(counts)).to("meta")
    for left, right, size in ((rows, weight, OUTER), (gradient, weight.transpose(-1, -2), INNER)):
        found = operators.multiply_block_groups_on_gpu(
            *in_blocks(left), *in_blocks(right), ends, torch.bfloat16
        )
        assert (found.shape, found.dtype) == ((sum(counts), size), torch.bfloat16)
    left, right = padded(gradient, ends, BLOCK), padded(rows, ends, BLOCK)
    summed = operators.sum_block_groups_on_gpu(
        *in_blocks_of_rows(left.rows), *in_blocks_of_rows(right.rows), left.offsets, torch.bfloat16, len(rows)
    )
    assert (summed.shape, summed.dtype) == (weight.shape, torch.bfloat16)
    assert told == [(functional.SwizzleType.SWIZZLE_32_4_4,) * 2] * 3


def test_a_kernel_that_leaves_groups_without_rows_unwritten_gives_them_zeros(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MSLK's does: what stands there before must not become a gradient."""
    monkeypatch.setattr(
        functional,
        "scaled_grouped_mm",
        lambda *_, **__: torch.full((3, 2, 2), float("nan")).index_fill_(0, torch.tensor([0, 2]), 1.0),
    )
    ends = torch.tensor([32, 32, 64], dtype=torch.int32)
    values, scales = torch.zeros(2, 2, 32).to(torch.float8_e4m3fn), torch.zeros(2, 2, dtype=torch.uint8)
    found = operators.sum_block_groups_on_gpu(values, scales, values, scales, ends, torch.bfloat16, 64)
    assert found[:, 0, 0].tolist() == [1.0, 0.0, 1.0]
