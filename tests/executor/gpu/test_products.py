"""Products in eight bits on a GPU: those of the rounded operands, and never a wait for the host.

What is expected is multiplied in fp32 from what operands are rounded to, so nothing here asks a CPU's kernels
for eight bits. All runs on a CPU too, where it needs no mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional

from executor.model.grouped import multiply_groups, offsets_of
from executor.model.products.block_operators import BLOCK, wide
from executor.model.products.blocks import in_blocks
from executor.model.products.formats import EXPERTS_CAPABILITIES, FIRST_CAPABILITY, PRODUCTS, EightBits
from executor.model.products.products import SAME
from executor.model.products.rows import rounded
from tests.executor.gpu.marks import ON_GPU

DEVICES = ["cpu", pytest.param("cuda", marks=ON_GPU)]
COUNTS = [33, 0, 95, 128]


def require(device: str, name: EightBits, *, experts: bool = False) -> None:
    """Skip on a GPU without units or kernels."""
    if device == "cpu":
        return
    have = torch.cuda.get_device_capability()
    if have < FIRST_CAPABILITY[name] or (experts and have[0] not in EXPERTS_CAPABILITIES[name]):
        pytest.skip(f"compute capability {have[0]}.{have[1]} has no units or torch no kernel for {name}")


def expected(name: EightBits, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Rows times rows, left (m, k) · right (n, k)ᵀ, of what both are rounded to, in fp32."""
    if name == "mxfp8":
        behind = (0, -left.shape[1] % BLOCK)
        a, b = (wide(*in_blocks(functional.pad(x, behind)), torch.float32) for x in (left, right))
        return a @ b.t()
    (a, up), (b, across) = rounded(left), rounded(right)
    return (a.float() * up) @ (b.float() * across).t()


def near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Within what sums of a GPU and a result in bf16 lose."""
    return torch.allclose(
        found.cpu().float(), wanted.float(), rtol=2**-7, atol=1e-2 * float(wanted.abs().max())
    )


def drawn(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Matrices in bf16."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]


@contextmanager
def no_waits(device: str) -> Iterator[None]:
    """Whatever waits for the device is an error."""
    if device == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["fp8", "mxfp8"])
def test_products_are_those_of_rounded_operands(device: str, name: EightBits) -> None:
    """Result and both gradients of a projection."""
    require(device, name)
    narrow = PRODUCTS[name]
    x, weight, gradient = drawn((256, 512), (384, 512), (256, 384))
    for product, operands, wanted in (
        (narrow.forward, (x, weight), expected(name, x, weight)),
        (narrow.of_input, (gradient, weight), expected(name, gradient, weight.t())),
        (narrow.of_weight, (gradient, x), expected(name, gradient.t(), x.t())),
    ):
        assert near(product(*(each.to(device) for each in operands)), wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["fp8", "mxfp8"])
def test_experts_are_those_of_rounded_operands_each_alone(device: str, name: EightBits) -> None:
    """Of groups that are no whole units, one of them without rows, and without asking how long they are."""
    require(device, name, experts=True)
    narrow = PRODUCTS[name]
    rows, weight, gradient = drawn((256, 64), (4, 128, 64), (256, 128))
    ends = offsets_of(torch.tensor(COUNTS))
    parts = [(e, a, b) for e, (a, b) in enumerate(pairwise([0, *ends.tolist()])) if b > a]
    sums = torch.zeros(weight.shape)
    for e, a, b in parts:
        sums[e] = expected(name, gradient[a:b].t(), rows[a:b].t())
    for product, operands, wanted in (
        (
            narrow.of_groups,
            (rows, weight),
            torch.cat([expected(name, rows[a:b], weight[e]) for e, a, b in parts]),
        ),
        (
            narrow.of_group_rows,
            (gradient, weight),
            torch.cat([expected(name, gradient[a:b], weight[e].t()) for e, a, b in parts]),
        ),
        (narrow.of_group_weights, (gradient, rows), sums),
    ):
        here = (*(each.to(device) for each in operands), ends.to(device))
        product(*here)  # what is chosen at first may wait
        with no_waits(device):
            found = product(*here)
        assert near(found, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_experts_in_sixteen_bits_multiply_without_waiting(device: str) -> None:
    """No row count is asked for, forward and backward; equal to one product an expert, none where it has no rows."""
    counts = [32, 0, 96, 128]
    rows, weight, gradient = drawn((256, 64), (4, 128, 64), (256, 128))
    ends = offsets_of(torch.tensor(counts)).to(device)
    parts = list(zip(rows.split(counts), gradient.split(counts), weight, strict=True))
    for multiply, operands, wanted in (
        (
            lambda *given: multiply_groups(*given, None),
            (rows, weight),
            torch.cat([each @ matrix.t() for each, _, matrix in parts]),
        ),
        (
            SAME.of_group_rows,
            (gradient, weight),
            torch.cat([towards @ matrix for _, towards, matrix in parts]),
        ),
        (
            SAME.of_group_weights,
            (gradient, rows),
            torch.stack([towards.t() @ each for each, towards, _ in parts]),
        ),
    ):
        here = (*(each.to(device) for each in operands), ends)
        multiply(*here).fill_(torch.nan)  # what is chosen at first may wait; what is not written shows
        with no_waits(device):
            found = multiply(*here)
        assert near(found, wanted)
