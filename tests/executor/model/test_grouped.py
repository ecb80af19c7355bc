"""Experts in one kernel: equal to a loop over experts, and never waiting for the device."""

from __future__ import annotations

import pytest
import torch

from costmodel.models.catalog import model
from executor.model.delayed import DelayedGradients
from executor.model.grouped import add_weighted_bias, multiply_groups, offsets_of
from executor.model.moe import MoE
from executor.model.products.formats import EightBits, multiply_in

COUNTS = [[3, 0, 5, 2], [0, 0, 0, 9], [1, 1, 1, 1], [4, 4, 0, 0]]


def _looped(rows: torch.Tensor, weight: torch.Tensor, counts: list[int]) -> torch.Tensor:
    return torch.cat([part @ weight[e].t() for e, part in enumerate(rows.split(counts))])


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("put_off", [False, True])
def test_products_and_gradients_are_those_of_a_loop(counts: list[int], put_off: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(sum(counts), 16, generator=generator, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(len(counts), 24, 16, generator=generator))
    towards = torch.randn(sum(counts), 24, generator=generator)
    expected = _looped(rows, weight, counts)
    wanted = torch.autograd.grad((expected * towards).sum(), (rows, weight))

    delayed = DelayedGradients()
    delayed.recording = put_off
    found = multiply_groups(rows, weight, offsets_of(torch.tensor(counts)), delayed)
    (found * towards).sum().backward()
    weight_gradient = weight.grad if not put_off else delayed.take()[0]()[0][1]

    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(rows.grad, wanted[0])
    torch.testing.assert_close(weight_gradient, wanted[1])


@pytest.mark.parametrize("counts", COUNTS)
def test_the_bias_of_an_expert_is_that_of_a_loop(counts: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    rows, weight = (
        torch.randn(sum(counts), 8, generator=generator),
        torch.rand(sum(counts), generator=generator),
    )
    bias = torch.randn(len(counts), 8, generator=generator)
    towards = torch.randn(sum(counts), 8, generator=generator)
    leaves = [x.clone().requires_grad_() for x in (rows, bias, weight)]
    expert = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    expected = leaves[0] + leaves[1][expert] * leaves[2].unsqueeze(-1)
    wanted = torch.autograd.grad((expected * towards).sum(), leaves)
    found = add_weighted_bias(*leaves, offsets_of(torch.tensor(counts)))
    gradients = torch.autograd.grad((found * towards).sum(), leaves)
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    ("name", "eight_bits"),
    [
        ("mixtral-8x7b", None),
        ("gpt-oss-20b", None),
        ("deepseek-v3", None),
        ("mixtral-8x7b", "fp8"),
        ("mixtral-8x7b", "mxfp8"),
    ],
)
def test_a_layer_never_asks_the_device(name: str, eight_bits: EightBits | None) -> None:
    """Meta tensors have no values, so whatever needs one on the host fails."""
    with torch.device("meta"):
        layer = MoE(model(name), None).to(torch.bfloat16)
    if eight_bits is not None:
        multiply_in(layer, eight_bits)
    x = torch.empty(2, 8, layer.gate.in_features, device="meta", dtype=torch.bfloat16, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
