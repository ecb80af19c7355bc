"""Layers through torch.compile compute what eager ones do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from app.cli import run
from costmodel.layout import ParallelLayout
from executor.model.linear import Linear
from executor.model.products.formats import EightBits, multiply_in
from executor.training.settings import RUN_FILE, read_settings
from planner.plan import Plan
from tests.counts import cases_of_run
from tests.executor.parallel.test_parity import TOLERANCE
from tests.executor.training.test_commands import run_words
from tests.executor.training.test_training import losses, run_here, settings_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # torch's compiler warns of its own code
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"),
]


def test_a_run_says_the_same_losses(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the command line: the flag reaches the compiler, and is part of what repeats the run."""
    kernels, small = tmp_path / "kernels", estimated_plan_of(ParallelLayout(), num_layers=1)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kernels))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else a pool of processes that import torch
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")  # nor programs that try this CPU's vectors
    run_here(settings_in(tmp_path / "eager", steps=3), small)
    assert not list(kernels.rglob("*.so"))
    words = run_words(tmp_path, small, tmp_path / "compiled")
    words += ["--fp32", "--steps", "3", "--learning-rate", "1e-2", "--warmup-steps", "0"]
    assert run([*words, "--compile"]) == 0
    eager, compiled = losses(tmp_path / "eager"), losses(tmp_path / "compiled")
    assert compiled == pytest.approx(eager, rel=TOLERANCE)
    assert list(kernels.rglob("*.so"))
    assert read_settings(tmp_path / "compiled" / RUN_FILE).compiles


@pytest.mark.parametrize("name", cases_of_run(["fp8", "mxfp8"], ["fp8"]))
def test_products_in_eight_bits_are_compiled_to_the_same(name: EightBits) -> None:
    """What rounds is fused, and rounds alike: result and both gradients are equal."""
    torch.manual_seed(0)
    eager = Linear(64, 96, bias=False).bfloat16()
    multiply_in(eager, name)
    found = []
    for layer in (eager, torch.compile(eager)):
        x = torch.linspace(-3, 5, 4 * 32 * 64).view(4, 32, 64).bfloat16().requires_grad_()
        result = layer(x)
        result.backward(torch.linspace(-1, 1, 4 * 32 * 96).view(4, 32, 96).bfloat16())
        found.append((result, x.grad, eager.weight.grad))
        eager.weight.grad = None
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_cpu_without_a_compiler_is_refused(
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    words = run_words(tmp_path, estimated_plan_of(ParallelLayout()), tmp_path / "run")
    assert run([*words, "--compile", "--steps", "1"]) == 2
    errors = capsys.readouterr().err
    assert "no-such-compiler" in errors
    assert [one.split(":")[0] for one in errors.splitlines()][-3:] == ["error", "cause", "help"]
    assert not (tmp_path / "run").exists()
