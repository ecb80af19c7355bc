"""`plan validate` says what of a plan holds on this machine, and fails when something does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from costmodel.layout import ParallelLayout
from costmodel.models.catalog import models
from planner.plan import Plan, to_json

pytest.importorskip("torch")

from executor.validation.expected_counts import Term
from executor.validation.report import Check, StageTerm, ValidationReport
from executor.validation.shrink import small_layout, small_model
from executor.validation.validate import check_numerics, counting_tasks, task_of

LAYOUTS = {
    "hybrid": ParallelLayout(tp=8, pp=4, dp=16, zero_stage=1, sequence_parallel=True),
    "long context": ParallelLayout(cp=16, tp=4, dp=2, zero_stage=3, sequence_parallel=True),
    "experts": ParallelLayout(dp=64, ep=32, pp=8, zero_stage=1),
    "interleaved": ParallelLayout(
        tp=8, pp=8, virtual_stages=5, schedule="interleaved", sequence_parallel=True
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_shrunk_layout_fits_and_keeps_the_axes(name: str) -> None:
    """At most eight ranks; every kept axis has degree two."""
    small = small_layout(LAYOUTS[name], 8, experts=name == "experts")
    assert small.num_gpus <= 8
    assert {getattr(small, axis) for axis in ("tp", "pp", "dp", "cp")} <= {1, 2}
    assert (small.schedule, small.virtual_stages > 1) == (LAYOUTS[name].schedule, name == "interleaved")


@pytest.mark.parametrize("name", sorted(models()))
def test_every_catalogued_model_shrinks_to_its_own_kind(name: str) -> None:
    """What a family is (attention, experts, norms, ties) survives; sizes do not."""
    spec = models()[name]
    small = small_model(spec, 4, ParallelLayout(tp=2))
    kinds = ("is_moe", "norm", "gated_mlp", "qk_norm", "tie_word_embeddings", "attention_sinks")
    assert {kind: getattr(small, kind) for kind in kinds} == {kind: getattr(spec, kind) for kind in kinds}
    assert small.attention.name == spec.attention.name
    assert (small.num_layers, small.hidden_size) == (4, 32)


def test_counting_keeps_the_width_and_takes_few_layers(plan_of: Callable[..., Plan]) -> None:
    """Both ends of the pipeline, two layers each."""
    tasks = counting_tasks(task_of(plan_of(ParallelLayout(tp=2, pp=2))))
    assert [(task.stage, task.layers_of_stage, task.spec.hidden_size) for task in tasks] == [
        (0, (2, 2), 32),
        (1, (2, 2), 32),
    ]


def test_one_unequal_number_fails_the_report() -> None:
    """A failed check is a failed plan; a skipped one is not."""
    skipped = Check(name="rank on a GPU", status="skipped", detail="no GPU here")
    failed = Check(name="exact counts", status="failed", detail="1 of 1 numbers differ")
    assert ValidationReport(checks=(skipped,)).passed
    assert not ValidationReport(checks=(skipped, failed)).passed


def test_differences_are_listed_and_the_exit_code_is_one() -> None:
    """The table names the term and both numbers."""
    from app.reports.answer import render
    from app.reports.validation import validation_answer

    term = StageTerm(stage=1, term=Term(name="layer forward gemm flop", unit="flop", expected=2, measured=3))
    report = ValidationReport(
        checks=(Check(name="exact counts", status="failed", detail="differ"),), terms=(term,)
    )
    answer = validation_answer(report)
    assert answer.exit_code == 1
    assert "layer forward gemm flop" in render(answer, "table")
    assert json.loads(answer.document)["passed"] is False


def test_numerics_of_a_shrunk_plan_match_one_process(plan_of: Callable[..., Plan]) -> None:
    """Loss and gradients within 1e-5 after three steps."""
    check, found = check_numerics(plan_of(ParallelLayout(tp=4, dp=4, zero_stage=1, sequence_parallel=True)))
    assert found is not None
    assert (check.status, found.ranks, found.steps) == ("passed", 4, 3)


@pytest.mark.slow
def test_command_validates_a_plan(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a plan file to a JSON report with every check."""
    from app.cli import run

    layout = ParallelLayout(tp=2, pp=2, dp=2, zero_stage=1, sequence_parallel=True)
    wide = {"hidden_size": 64, "vocab_size": 256, "intermediate_size": 128}
    plan = estimated_plan_of(layout, batch=16, **wide)
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan), encoding="utf-8")
    run(["validate", str(path), "--json"])
    report = json.loads(capsys.readouterr().out)
    verdicts = {check["name"]: check["status"] for check in report["checks"]}
    assert (verdicts["rules"], verdicts["exact counts"], verdicts["numerics"]) == ("passed",) * 3
    assert len(report["memory"]) == 2
