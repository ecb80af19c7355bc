"""Experts in eight bits: each is multiplied as alone, torchao's products over its own rows, to the last bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional

from executor.model.delayed import DelayedGradients
from executor.model.grouped import multiply_groups, offsets_of
from executor.model.products import row_operators
from executor.model.products.groups import padded
from executor.model.products.row_operators import UNIT
from executor.model.products.rows import ROWS, rounded, rounded_groups

COUNTS = [[3, 0, 21, 8], [0, 0, 0, 48], [17, 1, 15, 16], [16, 16, 0, 32]]


def operands(counts: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows (T, k) over eight decades, matrices (E, n, k) and a gradient (T, n), in bf16."""
    generator, total = torch.Generator().manual_seed(2), sum(counts)
    rows = torch.randn(total, 64, generator=generator) * torch.logspace(-4, 4, total)[:, None]
    weight = torch.randn(len(counts), 48, 64, generator=generator) * torch.logspace(-3, 3, 48)[:, None]
    gradient = torch.randn(total, 48, generator=generator) * torch.logspace(3, -3, total)[:, None]
    return rows.bfloat16(), weight.bfloat16(), gradient.bfloat16()


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_expert_is_multiplied_as_alone(counts: list[int], dtype: torch.dtype) -> None:
    """Factors and sums are of its own rows, also where their number is no multiple of sixteen, or none."""
    rows, weight, gradient = (each.to(dtype) for each in operands(counts))
    ends = offsets_of(torch.tensor(counts))
    parts = list(enumerate(pairwise([0, *ends.tolist()])))
    forward = torch.cat([ROWS.forward(rows[a:b], weight[e]) for e, (a, b) in parts])
    of_rows = torch.cat([ROWS.of_input(gradient[a:b], weight[e]) for e, (a, b) in parts])
    assert torch.equal(ROWS.of_groups(rows, weight, ends), forward)
    assert torch.equal(ROWS.of_group_rows(gradient, weight, ends), of_rows)
    found = ROWS.of_group_weights(gradient, rows, ends)
    for e, (a, b) in parts:
        none = torch.zeros_like(weight[e])
        assert torch.equal(found[e], ROWS.of_weight(gradient[a:b], rows[a:b]) if b > a else none)


@pytest.mark.parametrize("put_off", [False, True])
def test_products_and_gradients_are_those_of_torchao(put_off: bool, recwarn: pytest.WarningsRecorder) -> None:
    """A linear layer of its recipe ``rowwise`` for each expert (its own grouped products want a GPU)."""
    del recwarn  # torchao warns of kernels that this machine does not have
    float8 = pytest.importorskip("torchao.float8")
    counts = COUNTS[-1]
    rows, weight, gradient = operands(counts)
    inputs, parameter = rows.clone().requires_grad_(), torch.nn.Parameter(weight)
    delayed = DelayedGradients()
    delayed.recording = put_off
    ends = offsets_of(torch.tensor(counts))
    result = multiply_groups(inputs, parameter, ends, delayed, ROWS)
    result.backward(gradient)
    of_weight = delayed.take()[0]()[0][1] if put_off else parameter.grad
    assert of_weight is not None
    config = float8.Float8LinearConfig.from_recipe_name("rowwise")
    for e, (a, b) in enumerate(pairwise([0, *ends.tolist()])):
        if a == b:
            continue
        linear = torch.nn.Sequential(torch.nn.Linear(64, 48, bias=False, dtype=torch.bfloat16))
        linear[0].weight.data.copy_(weight[e])
        linear = float8.convert_to_float8_training(linear, config=config)
        part = rows[a:b].clone().requires_grad_()
        alone = linear(part)
        alone.backward(gradient[a:b])
        assert torch.equal(result[a:b], alone)
        assert torch.equal(inputs.grad[a:b], part.grad)
        assert torch.equal(of_weight[e], linear[0].weight.grad)


def test_what_is_no_number_stays_with_its_expert() -> None:
    """Of its rows, and of its matrix's gradient."""
    counts = [20, 12]
    rows, weight, gradient = (each.float() for each in operands(counts))
    rows[3, 5] = float("nan")
    ends = offsets_of(torch.tensor(counts))
    assert ROWS.of_groups(rows, weight, ends).isfinite().all(-1).tolist() == [row != 3 for row in range(32)]
    finite = ROWS.of_group_weights(gradient, rows, ends).isfinite()
    assert (bool(finite[0, :, 5].any()), bool(finite[0, :, :5].all()), bool(finite[1].all())) == (
        False,
        True,
        True,
    )


@pytest.mark.parametrize("counts", COUNTS)
def test_padded_groups_hold_their_rows_in_whole_units(counts: list[int]) -> None:
    """Every row once and in order, each group from a multiple of sixteen on, everything else zero."""
    rows, _, _ = operands(counts)
    found = padded(rows, offsets_of(torch.tensor(counts)), UNIT)
    expected, units = torch.zeros_like(found.rows), []
    start = 0
    for e, (count, part) in enumerate(zip(counts, rows.split(counts), strict=True)):
        expected[start : start + count] = part
        whole = -(-count // UNIT)
        units += [e] * whole
        start += whole * UNIT
        assert found.offsets[e] == start
    assert torch.equal(found.rows, expected)
    assert found.expert_of_unit[: len(units)].tolist() == units
    assert len(found.rows) % UNIT == 0


def test_a_gpu_s_kernel_takes_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own checks of types, strides and scales, which its first version of the call makes without a GPU."""

    def first_version(a: Any, b: Any, a_scale: Any, _a: Any, b_scale: Any, _b: Any, **options: Any) -> Any:
        return torch._scaled_grouped_mm(
            a, b, a_scale, b_scale, options["offs"], out_dtype=options["output_dtype"]
        )

    monkeypatch.setattr(functional, "scaled_grouped_mm", first_version)
    counts = COUNTS[0]
    rows, weight, gradient = (each.to("meta") for each in operands(counts))
    ends = offsets_of(torch.tensor(counts)).to("meta")
    for left, right, size in ((rows, weight, 48), (gradient, weight.transpose(-1, -2), 64)):
        found = row_operators.multiply_groups_on_gpu(
            *rounded(left), *rounded(right), ends, torch.bfloat16, fast=True
        )
        assert (found.shape, found.dtype) == ((32, size), torch.bfloat16)
    left, right = padded(gradient, ends, UNIT), padded(rows, ends, UNIT)
    summed = row_operators.sum_groups_on_gpu(
        *rounded_groups(left), *rounded_groups(right), left.offsets, torch.bfloat16, len(rows)
    )
    assert (summed.shape, summed.dtype) == (weight.shape, torch.bfloat16)
