"""`plan run` of a plan in eight bits trains in eight bits; what it would not compute is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from app.cli import run
from costmodel.kernels.precisions import TrainingPrecision
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from planner.plan import Plan
from planner.problem import setting_of
from planner.search.verify import estimate_anew
from tests.executor.training.test_commands import run_words
from tests.executor.training.test_training import losses


def in_precision(plan: Plan, precision: TrainingPrecision) -> Plan:
    """The same plan for a job in another precision."""
    request = replace(plan.request, job=replace(plan.request.job, precision=precision))
    anew = replace(plan, request=request)
    anew = estimate_anew(anew, setting_of(request), load_calibration())
    return replace(anew, assumptions=anew.estimate.assumptions)


def test_a_run_in_eight_bits_learns_and_says_other_losses(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Near the losses of sixteen bits, and not equal to them."""
    plan = estimated_plan_of(ParallelLayout(dp=2, zero_stage=3))
    words = run_words(tmp_path, plan, tmp_path / "wide")
    assert run([*words, "--steps", "6"]) == 0
    words = run_words(tmp_path, in_precision(plan, "fp8"), tmp_path / "narrow")
    assert run([*words, "--steps", "6"]) == 0
    wide, narrow = losses(tmp_path / "wide"), losses(tmp_path / "narrow")
    assert narrow == pytest.approx(wide, rel=1e-2)
    assert narrow != wide
