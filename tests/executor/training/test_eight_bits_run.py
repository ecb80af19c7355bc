"""`plan run` of a plan in eight bits trains in eight bits; what it would not compute is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel.kernels.tables import load_calibration

pytest.importorskip("torch")

from costmodel.kernels.precisions import TrainingPrecision
from costmodel.layout import ParallelLayout
from planner.plan import Plan, problem_of
from planner.search.verify import estimate_anew
from tests.counts import tries
from tests.executor.training.test_training import losses, run_here, settings_in
from topology.builders import default_cluster

WHOLE_BLOCKS = {"head_dim": 32}  # of its keys too, and all other sides of products


def in_precision(plan: Plan, precision: TrainingPrecision) -> Plan:
    """The same plan for a job in another precision, of GPUs that have all of them."""
    job = replace(plan.request.job, precision=precision, sequence_length=32)
    request = replace(plan.request, job=job, cluster=default_cluster("b200-sxm", 8).spec)
    anew = replace(plan, request=request)
    anew = estimate_anew(anew, problem_of(request, load_calibration()))
    return replace(anew, assumptions=anew.estimate.assumptions)


def test_a_run_in_eight_bits_learns_and_says_other_losses(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Near the losses of sixteen bits and not equal to them, nor those by blocks to those by rows."""
    plan = estimated_plan_of(ParallelLayout(dp=tries(1, 2), zero_stage=3), **WHOLE_BLOCKS)
    found = {}
    precisions: tuple[TrainingPrecision, ...] = ("bf16", "fp8", "mxfp8")
    for precision in precisions:
        settings = settings_in(tmp_path / precision, steps=3, precision="bf16", learning_rate=3e-4)
        run_here(settings, in_precision(plan, precision))
        found[precision] = losses(tmp_path / precision)
    assert found["fp8"] == pytest.approx(found["bf16"], rel=1e-2)
    assert found["mxfp8"] == pytest.approx(found["bf16"], rel=1e-2)
    assert found["fp8"] != found["bf16"] != found["mxfp8"] != found["fp8"]
