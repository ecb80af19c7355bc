"""`plan validate` of compressed gradients: its twin compresses them, and is held to a bound that would see if it did not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.spec import with_layers
from costmodel.updates.compression import parse_compression
from executor.training.optimizer import OptimizerSettings
from executor.validation.fake_rank import RankTask
from executor.validation.memory_trace import traced_memory
from executor.validation.reference import ReferenceJob, outcome_difference, run_reference
from executor.validation.shrink import small_case
from executor.validation.validate import NUMERIC_TOLERANCE, check_numerics, compressed_tolerance
from planner.plan import Plan
from tests.counts import cases_of_run

KINDS = ("fp16", "bf16", "int8", "powersgd:32")
SETTINGS = OptimizerSettings(learning_rate=1e-2, warmup_steps=1, total_steps=10)


def of_kind(plan_of: Callable[..., Plan], kind: str) -> Plan:
    """A plan of four replicas."""
    plan = plan_of(ParallelLayout(dp=4, zero_stage=0))
    job = replace(plan.request.job, gradient_compression=kind)
    return replace(plan, request=replace(plan.request, job=job))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_twin_compresses_as_one_process_does(kind: str, plan_of: Callable[..., Plan]) -> None:
    """Whole gradients first, then compressed ones, each beside one process that plays all replicas."""
    plan = of_kind(plan_of, kind)
    assert small_case(plan).compression == kind.replace("32", "4")
    check, numerics = check_numerics(plan)
    assert (check.verdict, numerics is not None and numerics.gradient < NUMERIC_TOLERANCE) == ("holds", True)
    assert f"; gradients as {kind.replace('32', '4')} loss within" in check.detail


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_left_whole_would_be_seen(kind: str, plan_of: Callable[..., Plan]) -> None:
    """What compression does to the twin's gradients is more than twice what it may differ by."""
    case = small_case(of_kind(plan_of, kind))
    whole = run_reference(replace(case, compression=None), SETTINGS)
    lost = outcome_difference(whole, run_reference(case, SETTINGS)).together
    assert lost > 2 * compressed_tolerance(parse_compression(kind), lost)


def test_one_process_plays_replicas_whose_gradients_are_whole(plan_of: Callable[..., Plan]) -> None:
    """As factors of full rank nothing is lost but rounding: the sum over replicas is that of the batch."""
    case: ReferenceJob = small_case(of_kind(plan_of, "bf16"))
    whole = run_reference(replace(case, compression=None), SETTINGS)
    played = run_reference(replace(case, compression="powersgd:128"), SETTINGS)  # no matrix is worth it
    assert outcome_difference(whole, played).gradient < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases_of_run(["int8", "powersgd:32"], ["int8"]))
def test_memory_is_within_five_percent_of_the_trace(kind: str) -> None:
    """Errors are state of every parameter, as torch's hook keeps them; sums in eight bits go piece by piece."""
    spec = with_layers(model("llama-3.1-8b"), 4, 0)
    task = RankTask(
        spec=spec, layout=ParallelLayout(dp=8, zero_stage=0), sequence_length=2048, num_microbatches=4,
        layers_of_stage=(4,), recompute_of_stage=(0,), stage=0, compression=kind,
    )  # fmt: skip
    (found,) = traced_memory(task, 32, (0,))
    assert found.estimate.allocated_bytes == pytest.approx(found.peak_bytes, rel=0.05)
    assert found.optimizer_bytes == pytest.approx(found.estimate.optimizer_bytes, rel=1e-3)
