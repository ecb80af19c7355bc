"""Bytes that torch's own optimizers keep, against the entries of the file."""

import pytest

from costmodel.updates.optimizers import optimizer

torch = pytest.importorskip("torch")

CASES = {
    "adamw-no-master": ("float32", torch.optim.AdamW),
    "adamw-pure-bf16": ("bfloat16", torch.optim.AdamW),
    "sgd": ("float32", lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd-momentum": ("float32", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "muon": ("float32", torch.optim.Muon),
    "adafactor": ("float32", torch.optim.Adafactor),
}
SIDES = (512, 768)


@pytest.mark.parametrize("name", list(CASES))
def test_state_of_a_matrix_is_what_torch_keeps(name: str) -> None:
    """After one step; what is not of the matrix's order (counts, sums of rows) is less than a hundredth."""
    dtype, make = CASES[name]
    matrix = torch.nn.Parameter(torch.randn(SIDES, dtype=getattr(torch, dtype)))
    made = make([matrix])
    matrix.grad = torch.randn_like(matrix)
    made.step()
    state = [value for value in made.state[matrix].values() if torch.is_tensor(value)]
    held = sum(value.numel() * value.element_size() for value in state) / matrix.numel()
    assert held == pytest.approx(optimizer(name).state_bytes, abs=0.05)
