"""`plan run` sums gradients as its plan says, goes on where it was stopped, and refuses what it would not do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.kernels.tables import load_calibration

pytest.importorskip("torch")

from app.cli import run
from costmodel.layout import ParallelLayout
from planner.plan import Plan, problem_of
from planner.search.verify import estimate_anew
from tests.executor.training.test_commands import run_words
from tests.executor.training.test_training import copy_of, losses, run_here, settings_in

RATE = ("--lr-schedule", "constant", "--warmup-steps", "0")


def train(plan: Plan, folder: Path, steps: int, every: int = 0) -> None:
    """Train as `plan run` with `RATE` does, on forked ranks."""
    run_here(
        settings_in(
            folder,
            steps=steps,
            precision="bf16",
            learning_rate=3e-4,
            rate_shape="constant",
            checkpoint_every=every,
        ),
        plan,
    )


def sent_as(plan: Plan, kind: str) -> Plan:
    """The same plan for a job whose replicas send gradients so."""
    request = replace(plan.request, job=replace(plan.request.job, gradient_compression=kind))
    anew = estimate_anew(replace(plan, request=request), problem_of(request, load_calibration()))
    return replace(anew, assumptions=anew.estimate.assumptions)


@pytest.mark.slow
def test_a_run_sums_as_planned_and_resumes(estimated_plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Near the losses of whole gradients, not equal to them; from its checkpoint after two steps it goes on to the same."""
    plan = estimated_plan_of(ParallelLayout(dp=2, zero_stage=0), num_layers=1)
    train(plan, tmp_path / "whole", 4)
    train(sent_as(plan, "bf16"), tmp_path / "narrow", 4, every=2)
    train(sent_as(plan, "bf16"), copy_of(tmp_path / "narrow", tmp_path / "twice", last_step=2), 4)
    whole, narrow, twice = (losses(tmp_path / name) for name in ("whole", "narrow", "twice"))
    assert narrow == pytest.approx(whole, rel=1e-3)
    assert narrow != whole
    assert twice == {step: narrow[step] for step in (3, 4)}


@pytest.mark.slow
def test_what_factors_missed_is_saved_and_goes_on(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On as many replicas to equal losses; on others the mean of it, which is told; without it other losses."""
    two = sent_as(estimated_plan_of(ParallelLayout(dp=2, zero_stage=0), num_layers=1), "powersgd:2")
    four = sent_as(estimated_plan_of(ParallelLayout(dp=4, zero_stage=0), num_layers=1), "powersgd:2")
    through, twice, more = (tmp_path / name for name in ("through", "twice", "more"))
    train(two, through, 6, every=3)
    copy_of(through, twice, last_step=3)
    shutil.copytree(twice, more)
    capfd.readouterr()
    assert run([*run_words(tmp_path, two, twice), "--steps", "6", *RATE]) == 0
    assert "what factors of gradients missed" not in capfd.readouterr().err
    later = {step: loss for step, loss in losses(through).items() if step > 3}
    assert losses(twice) == later
    assert run([*run_words(tmp_path, four, more), "--steps", "6", *RATE]) == 0
    assert "what factors of gradients missed on 2 replicas is averaged for 4" in capfd.readouterr().err
    assert losses(more) == pytest.approx(later, rel=1e-2)
    assert losses(more) != later


@pytest.mark.parametrize(
    ("kind", "layout", "said"),
    [
        ("powersgd:4", ParallelLayout(dp=2, tp=2, zero_stage=0), "gradients as powersgd:4 of ZeRO-0, tp"),
        (
            "int8",
            ParallelLayout(dp=2, zero_stage=1),
            "zero_stage = 1, must be 0: gradients as int8 are summed by",
        ),
    ],
)
def test_what_is_not_summed_so_is_refused(
    kind: str,
    layout: ParallelLayout,
    said: str,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In three lines, before anything is written."""
    words = run_words(tmp_path, sent_as(estimated_plan_of(layout), kind), tmp_path / "run")
    assert run([*words, "--steps", "1"]) == 1
    errors = capsys.readouterr().err
    assert said in errors
    assert [line.split(":")[0] for line in errors.splitlines()][-3:] == ["error", "cause", "help"]
    assert not (tmp_path / "run").exists()
