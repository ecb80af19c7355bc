"""Products by blocks are those of MXFP8 as it is defined, and torchao's, to the last bit."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from topology.base.errors import InputError

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from executor.model.linear import project
from executor.model.products.block_operators import multiply_blocks_on_gpu, tiled, wide
from executor.model.products.blocks import BLOCKS, in_blocks
from executor.model.products.e4m3 import exponents
from executor.model.products.formats import require_units
from executor.model.products.operators import OPERATORS
from executor.torch_internals.recomputation import selective_checkpoint_contexts

LARGEST = 448.0  # of e4m3
DTYPES = [torch.float32, torch.bfloat16]


class CountedCalls(TorchDispatchMode):
    """How often each operator was run."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[Any] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operation, and run it."""
        del types
        self.of[function] += 1
        return function(*args, **(kwargs or {}))


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows (B, S, k) over all exponents of bf16, a weight (n, k) and a gradient (B, S, n)."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 32, 64, generator=generator) * torch.logspace(-40, 20, 32)[:, None]
    weight, gradient = (
        torch.randn(96, 64, generator=generator),
        torch.randn(2, 32, 96, generator=generator) * torch.logspace(3, -20, 96),
    )
    x[0, 3, :32] = 0
    return x, weight, gradient


def plainly_rounded(matrix: torch.Tensor) -> torch.Tensor:
    """Each block of 32 over the least power of two that fits, rounded, and multiplied by it again."""
    blocks = matrix.double().reshape(*matrix.shape[:-1], -1, 32)
    largest = blocks.abs().amax(-1, keepdim=True)
    blocks = torch.where(largest > LARGEST * 2.0**-127, blocks, 0)  # else the scale has no inverse
    scale = 2.0 ** torch.ceil(torch.log2(largest / LARGEST)).clamp(-126, 127)
    return ((blocks / scale).to(torch.float8_e4m3fn).double() * scale).reshape(matrix.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_those_of_rounded_blocks(dtype: torch.dtype) -> None:
    """Each is the product of what its operands are rounded to, along the side that it sums over."""
    x, weight, gradient = (each.to(dtype) for each in operands())
    q = plainly_rounded
    rows, sums = x.flatten(0, 1), gradient.flatten(0, 1)
    expected = (q(rows) @ q(weight).t(), q(sums) @ q(weight.t()).t(), q(sums.t()) @ q(rows.t()).t())
    found = (BLOCKS.forward(x, weight), BLOCKS.of_input(gradient, weight), BLOCKS.of_weight(gradient, x))
    resolution = torch.finfo(dtype).eps
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert float((one.flatten(0, -2).double() - other).abs().max() / other.abs().max()) <= resolution


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_rounded_is_what_is_defined(dtype: torch.dtype) -> None:
    """Every value, also of blocks that are ten to the sixty apart."""
    x, _, gradient = (each.to(dtype) for each in operands())
    for matrix in (x, gradient.transpose(-1, -2)):
        found = wide(*in_blocks(matrix), dtype)
        assert torch.equal(found.double(), plainly_rounded(matrix))


def test_scales_are_the_least_that_fit() -> None:
    """A power of two over which the largest value is within 448, and over half of which it is not."""
    largest = torch.cat((torch.logspace(-35, 38, 4001), torch.tensor([448.0, 449.0, 2.0**-110])))
    scale = 2.0 ** (exponents(largest).double() - 127)
    assert bool((largest.double() / scale <= LARGEST).all())
    assert bool((largest.double() / scale * 2 > LARGEST).all())


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_stays_none(odd: float) -> None:
    """Its block alone, for the loop to find."""
    matrix = torch.ones(1, 64)
    matrix[0, 5] = odd
    found = wide(*in_blocks(matrix), torch.float32)[0]
    assert bool(found[:32].isnan().all())
    assert bool((found[32:] == 1).all())


def test_products_are_torchao_s(recwarn: pytest.WarningsRecorder) -> None:
    """Its recipe ``mxfp8_rceil``, emulated: result and both gradients equal to the last bit in bf16."""
    del recwarn  # torchao warns of kernels that this machine does not have
    pytest.importorskip("torchao")
    from torchao.prototype.moe_training.mxfp8_linear import mx_mm
    from torchao.prototype.mx_formats import config
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    x, weight, gradient = (each.bfloat16() for each in operands())
    inputs, parameter = x.clone().requires_grad_(), weight.clone().requires_grad_()
    result = mx_mm.apply(
        inputs, parameter, *(torch.float8_e4m3fn,) * 3, 32, KernelPreference.EMULATED,
        config.MXFP8Dim0CastKernelChoice.TORCH, config.MXFP8Dim1CastKernelChoice.TORCH,
        config.ScaleCalculationMode.RCEIL, False,  # noqa: FBT003  # wgrad_with_hp
    )  # fmt: skip
    result.backward(gradient)
    assert torch.equal(BLOCKS.forward(x, weight), result)
    assert torch.equal(BLOCKS.of_input(gradient, weight), inputs.grad)
    assert torch.equal(BLOCKS.of_weight(gradient, x), parameter.grad)


@pytest.mark.parametrize("shape", [(128, 4), (130, 5), (256, 8), (1, 1), (96, 128)])
def test_scales_stand_where_tensor_cores_read_them(shape: tuple[int, int]) -> None:
    """The scale of a row and column is at cuBLAS's offset of it, and what is padded is zero."""
    rows, columns = shape
    values = torch.randint(1, 255, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = tiled(values).view(torch.uint8)
    expected = torch.zeros_like(found)
    for row in range(rows):
        for column in range(columns):
            tile = row // 128 * -(-columns // 4) + column // 4
            expected[tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4] = values[row, column]
    assert torch.equal(found, expected)


def test_a_gpu_s_kernel_takes_what_it_is_given() -> None:
    """Torch's own checks of types, sizes and layout of scales, which need no GPU, pass."""
    x, weight, gradient = (each.bfloat16().to("meta") for each in operands())
    rows, sums = x.flatten(0, 1), gradient.flatten(0, 1)
    for left, right in ((rows, weight), (sums, weight.t()), (sums.t(), rows.t())):
        found = multiply_blocks_on_gpu(*in_blocks(left), *in_blocks(right), torch.bfloat16)
        assert (found.shape, found.dtype) == ((left.shape[0], right.shape[0]), torch.bfloat16)


def test_recomputation_by_operator_keeps_products() -> None:
    """Three products of a projection, as without recomputation; the rounding is done again."""
    x, weight, _ = (each.requires_grad_() for each in operands())
    contexts = selective_checkpoint_contexts(OPERATORS)

    def squared(rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = project(rows, weight, None, BLOCKS)
        return product.square()

    with CountedCalls() as calls:
        checkpoint(squared, x, use_reentrant=False, context_fn=contexts).sum().backward()
    assert calls.of[OPERATORS[0]] == 3


@pytest.mark.parametrize(
    ("name", "capability", "architecture", "words"),
    [
        ("NVIDIA H100", (9, 0), "", r"H100 has compute capability 9.0, mxfp8 needs 10.0"),
        ("AMD Instinct MI355X", (9, 5), "gfx950", r"MI355X is gfx950"),
        ("NVIDIA B200", (10, 0), "", ""),
    ],
)
def test_a_gpu_without_scales_of_blocks_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int], architecture: str, words: str
) -> None:
    """Before anything is built, in three lines."""
    device = torch.device("cuda", 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(gcnArchName=architecture)
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    if not words:
        require_units(device, "mxfp8")
        return
    with pytest.raises(InputError, match=words) as refused:
        require_units(device, "mxfp8")
    assert len(str(refused.value).splitlines()) <= 3
