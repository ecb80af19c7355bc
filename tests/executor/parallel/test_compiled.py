"""Layers through torch.compile compute what eager ones do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from app.cli import run
from costmodel.layout import ParallelLayout
from executor.training.settings import RUN_FILE, read_settings
from planner.plan import Plan
from tests.executor.parallel.test_parity import TOLERANCE
from tests.executor.training.test_commands import run_words
from tests.executor.training.test_training import losses

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # torch's compiler warns of its own code
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"),
]


def test_a_run_says_the_same_losses(estimated_plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Through the command line: the flag reaches the ranks, and is part of what repeats the run."""
    words = run_words(tmp_path, estimated_plan_of(ParallelLayout()), tmp_path / "eager")
    assert run([*words, "--fp32", "--steps", "3"]) == 0
    words = run_words(tmp_path, estimated_plan_of(ParallelLayout()), tmp_path / "compiled")
    assert run([*words, "--fp32", "--steps", "3", "--compile"]) == 0
    eager, compiled = losses(tmp_path / "eager"), losses(tmp_path / "compiled")
    assert compiled == pytest.approx(eager, rel=TOLERANCE)
    assert compiled != eager  # other kernels round otherwise
    assert read_settings(tmp_path / "compiled" / RUN_FILE).compiles


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
