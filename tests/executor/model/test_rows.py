"""Products in eight bits are those of values rounded to e4m3 by rows, and torchao's, to the last bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from topology.base.errors import InputError

torch = pytest.importorskip("torch")

from executor.model.products.formats import multiply_in, require_units
from executor.model.products.rows import LEAST, ROWS, factors, rounded
from executor.model.transformer import build_model

LARGEST = 448.0  # of e4m3


def plainly_rounded(matrix: torch.Tensor) -> torch.Tensor:
    """Each row over a power of two, rounded to e4m3, and multiplied by it again, as it is defined."""
    rows = []
    for row in matrix.double():
        power = torch.floor(torch.log2(LARGEST / row.abs().max().clamp(min=LEAST)))
        rows.append((row * 2.0**power).to(torch.float8_e4m3fn).double() / 2.0**power)
    return torch.stack(rows)


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows (T, k) over eight decades, a weight (n, k) and a gradient (T, n)."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 64, generator=generator) * torch.logspace(-4, 4, 32)[:, None]
    weight, gradient = (
        torch.randn(48, 64, generator=generator),
        torch.randn(32, 48, generator=generator),
    )
    return x, weight, gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_rounded_rows(dtype: torch.dtype) -> None:
    """Each is the product of what its operands are rounded to, along the side that it sums over."""
    x, weight, gradient = (each.to(dtype) for each in operands())
    q = plainly_rounded
    expected = (q(x) @ q(weight).t(), q(gradient) @ q(weight.t()).t(), q(gradient.t()) @ q(x.t()).t())
    found = (
        ROWS.forward(x, weight),
        ROWS.of_input(gradient, weight),
        ROWS.of_weight(gradient, x),
    )
    resolution = torch.finfo(dtype).eps
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert float((one.double() - other).abs().max() / other.abs().max()) <= resolution


def test_factors_are_the_largest_that_fit() -> None:
    """A power of two by which the largest value of a row is within 448, and twice of which it is not."""
    largest = torch.logspace(-11, 30, 4001)
    up, down = factors(largest)
    assert torch.equal(up * down, torch.ones_like(up))
    assert torch.equal(up, 2 ** torch.log2(up).round())
    assert bool((largest * up <= LARGEST).all())
    assert bool((largest * up * 2 > LARGEST).all())


def test_a_row_of_zeros_and_one_that_is_no_number() -> None:
    """Nothing divides by zero, and what is not a number stays none, for the loop to find."""
    matrix = torch.tensor([[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
    values, factor = rounded(matrix)
    assert (values.float() * factor)[0].tolist() == [0.0, 0.0]
    assert not bool(torch.isfinite((values.float() * factor)[1:]).all(-1).any())


def test_products_are_torchao_s(recwarn: pytest.WarningsRecorder) -> None:
    """The recipe ``rowwise`` of torchao: result and both gradients equal to the last bit in bf16."""
    del recwarn  # torchao warns of kernels that this machine does not have
    float8 = pytest.importorskip("torchao.float8")
    x, weight, gradient = (each.bfloat16() for each in operands())
    linear = torch.nn.Sequential(torch.nn.Linear(64, 48, bias=False, dtype=torch.bfloat16))
    linear[0].weight.data.copy_(weight)
    config = float8.Float8LinearConfig.from_recipe_name("rowwise")
    linear = float8.convert_to_float8_training(linear, config=config)
    inputs = x.clone().requires_grad_()
    result = linear(inputs)
    result.backward(gradient)
    assert torch.equal(ROWS.forward(x, weight), result)
    assert torch.equal(ROWS.of_input(gradient, weight), inputs.grad)
    assert torch.equal(ROWS.of_weight(gradient, x), linear[0].weight.grad)


def test_projections_of_layers_are_narrow_and_nothing_else() -> None:
    """Embedding, norms and head stay in the format of compute, and so does what chooses experts."""
    from costmodel.models.catalog import model

    whole = build_model(model("mixtral-8x7b"), layers=range(1))
    multiply_in(whole, "fp8")
    narrow = {name for name, m in whole.named_modules() if getattr(m, "products", None) is ROWS}
    assert {name.rpartition(".")[2] for name in narrow} == {"q_proj", "k_proj", "v_proj", "o_proj", "experts"}


def test_a_gpu_that_multiplies_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """MI300's units read e4m3fnuz, whatever capability torch gives them; those of MI350 read what we write."""
    device = torch.device("cuda", 0)

    def plays(architecture: str) -> None:
        found = SimpleNamespace(gcnArchName=architecture)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 4))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "AMD Instinct MI300X")
    plays("gfx942:sramecc+:xnack-")
    with pytest.raises(InputError, match=r"MI300X \(gfx942:sramecc\+:xnack-\) takes e4m3fnuz"):
        require_units(device, "fp8")
    plays("gfx950:sramecc+:xnack-")
    require_units(device, "fp8", experts=True)


@pytest.mark.parametrize(
    ("capability", "taken"), [((8, 9), False), ((9, 0), True), ((10, 3), True), ((12, 0), False)]
)
def test_a_gpu_without_grouped_products_takes_no_experts(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], taken: bool
) -> None:
    """Torch's kernel of them is Hopper's and that of Blackwell in datacenters; projections have others."""
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    require_units(device, "fp8")
    if taken:
        require_units(device, "fp8", experts=True)
        return
    with pytest.raises(InputError, match="its grouped products want 9 or 10"):
        require_units(device, "fp8", experts=True)
