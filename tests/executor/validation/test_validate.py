"""`plan validate` says what of a plan holds on this machine, and fails when something does not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.case import Case
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout, Recompute
from costmodel.models.catalog import model, models
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from planner.plan import Plan, to_json
from tests.cli.documents import held_to_schema
from topology.builders import build

torch = pytest.importorskip("torch")

from executor.validation import reference
from executor.validation.expected_counts import Term
from executor.validation.layer_times import layer_time
from executor.validation.memory_trace import StageMemory
from executor.validation.report import Check, RankMeasurement, StageTerm, ValidationReport
from executor.validation.shrink import small_layout, small_model
from executor.validation.validate import (
    check_numerics,
    counting_tasks,
    judged_memory,
    scope_of,
    step_time_check,
    task_of,
    validate,
)
from tests.executor.conftest import make_plan
from topology.base.units import GIB, MIB

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
    """A claim that does not hold fails the plan; one that is not checked does not."""
    skipped = Check(name="rank on a GPU", verdict="not checked here", detail="no GPU here")
    failed = Check(name="counts", verdict="does not hold", detail="1 of 1 numbers differ")
    assert ValidationReport(checks=(skipped,)).passed
    assert not ValidationReport(checks=(skipped, failed)).passed


def test_differences_are_listed_and_the_exit_code_is_one() -> None:
    """The table names the term and both numbers."""
    from app.reports.answer import render
    from app.reports.validation import validation_answer

    term = StageTerm(stage=1, term=Term(name="layer forward gemm flop", unit="flop", expected=2, measured=3))
    report = ValidationReport(
        checks=(Check(name="counts", verdict="does not hold", detail="differ"),), terms=(term,)
    )
    answer = validation_answer(report)
    assert answer.exit_code == 1
    assert "layer forward gemm flop" in render(answer, "table")
    assert json.loads(answer.document())["passed"] is False


def test_numerics_of_a_shrunk_plan_match_one_process(plan_of: Callable[..., Plan]) -> None:
    """Loss and gradients within 1e-5 after three steps."""
    check, found = check_numerics(plan_of(ParallelLayout(tp=4, dp=4, zero_stage=1, sequence_parallel=True)))
    assert found is not None
    assert (check.verdict, found.ranks, found.steps) == ("holds", 4, 3)


def test_the_process_that_forks_ranks_computes_nothing(
    plan_of: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of it that has just computed could hold MKL's lock, which ranks that are forked never get."""
    build = reference.build_model

    def built_by(*arguments: Any) -> Any:
        (tmp_path / str(os.getpid())).touch()
        return build(*arguments)

    monkeypatch.setattr(reference, "build_model", built_by)
    (torch.ones(600, 600) @ torch.ones(600, 600)).relu_().sum()  # starts threads, which no fork has
    check, _ = check_numerics(plan_of(ParallelLayout(dp=2)))
    assert check.verdict == "holds"
    assert len(seen := list(tmp_path.iterdir())) == 1
    assert seen[0].name != str(os.getpid())


def traced(plan: Plan, peak_bytes: float) -> StageMemory:
    """A trace of the first pipeline rank, beside an estimate that is not the plan's."""
    twin = replace(plan.estimate.memory_by_stage[0], weights_bytes=1e9)
    purposes = ("weights", "gradients", "optimizer", "activations", "kept_gradients")
    parts = {f"{purpose}_bytes": 0.0 for purpose in purposes}
    return StageMemory(stage=0, peak_bytes=peak_bytes, estimate=twin, extrapolated=False, **parts)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "holds"), (1.04, "holds"), (1.2, "does not hold")])
def test_memory_is_held_against_the_plans_own_estimate(
    estimated_plan_of: Callable[..., Plan], factor: float, verdict: str
) -> None:
    """Within 5 % of what the plan says, whatever is estimated beside it."""
    plan = estimated_plan_of(ParallelLayout(dp=2, zero_stage=1), hidden_size=1024)
    peak_bytes = plan.estimate.memory_by_stage[0].allocated_bytes * factor
    (check,), (found,) = judged_memory(plan, [traced(plan, peak_bytes)], 0.0)
    assert (check.name, check.verdict, found.estimate) == (
        "memory",
        verdict,
        plan.estimate.memory_by_stage[0],
    )
    assert check.value == pytest.approx(1 / factor - 1)


@pytest.mark.parametrize(("more_bytes", "verdict"), [(MIB, "not checked here"), (3 * MIB, "does not hold")])
def test_a_difference_that_an_allocator_rounds_away_is_no_finding(
    estimated_plan_of: Callable[..., Plan], more_bytes: float, verdict: str
) -> None:
    """Of a tiny model 5 % are less than the 2 MiB that torch asks a GPU for at least."""
    plan = estimated_plan_of(ParallelLayout(dp=2, zero_stage=1))
    peak_bytes = plan.estimate.memory_by_stage[0].allocated_bytes + more_bytes
    (check,), _ = judged_memory(plan, [traced(plan, peak_bytes)], 0.0)
    assert check.value is not None
    assert check.value < -0.05
    assert (check.verdict, "smaller than 2 MiB" in check.detail) == (verdict, more_bytes < 2 * MIB)


def of_engine(plan: Plan, engine: str, stack: str) -> Plan:
    """The same plan, asked for another engine."""
    return replace(plan, request=replace(plan.request, engine=engine, stack=stack))


def test_a_plan_of_another_engine_says_what_its_twin_proves(estimated_plan_of: Callable[..., Plan]) -> None:
    """Its own memory is not checked here, that of the twin is; its own plan has no twin."""
    own = estimated_plan_of(ParallelLayout(dp=2, zero_stage=1))
    plan = of_engine(own, "megatron", "megatron-core")
    memory = traced(plan, 1.0)
    checks, _ = judged_memory(plan, [replace(memory, peak_bytes=memory.estimate.allocated_bytes)], 0.0)
    assert [(check.name, check.verdict) for check in checks] == [
        ("memory", "not checked here"),
        ("memory of the twin", "holds"),
    ]
    assert "megatron (megatron-core)" in scope_of(plan)
    assert "Not proven: the engine's own memory" in scope_of(plan)
    assert scope_of(own) == ""


H100 = RankMeasurement(
    stage=0,
    gpu="NVIDIA H100 80GB HBM3",
    gpu_memory_bytes=79.2 * GIB,
    peak_bytes=1.0,
    estimated_bytes=1.0,
    forward_s=1e-9,
    backward_s=1e-9,
)


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        ([], "not checked here"),
        ([H100], "not checked here"),  # computation alone proves no step
        ([replace(H100, backward_s=1e3)], "does not hold"),
        ([replace(H100, backward_s=1e3, gpu="NVIDIA A100-SXM4-80GB")], "not checked here"),
    ],
)
def test_a_step_time_is_judged_on_the_plans_gpu_alone(
    plan_of: Callable[..., Plan], measured: list[RankMeasurement], verdict: str
) -> None:
    """Computation that is longer than the step refutes it; nothing else was measured."""
    assert step_time_check(plan_of(ParallelLayout(dp=2)), measured).verdict == verdict


def layer_s(recompute: Recompute = "none") -> tuple[Plan, float]:
    """A plan of eight GPUs, and what a layer of it is estimated to take: what one layer more adds to a step."""
    layout = ParallelLayout(dp=8, zero_stage=3, recompute=recompute)
    plan = make_plan(layout, spec=model("llama-3.1-8b"), batch=64, sequence=4096)
    if recompute == "full":
        plan = replace(plan, recompute_of_stage=plan.layers_of_stage)
    steps = []
    for layers in (31, 30):
        fewer = replace(plan.request.model, num_layers=layers)
        found = estimate(
            Case(
                model=fewer,
                cluster=build(plan.request.cluster),
                job=plan.request.job,
                stack=stack("meshplan"),
                cal=load_calibration(),
            ),
            plan.layout,
        ).time
        steps.append((found.compute_s + found.recompute_s) / 8)
    return plan, steps[0] - steps[1]


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    ("share", "verdict"), [(1.0, "holds"), (1.08, "holds"), (1.2, "does not hold"), (0.8, "does not hold")]
)
def test_a_layers_time_is_held_against_its_estimate(recompute: Recompute, share: float, verdict: str) -> None:
    """Forward and backward together within a tenth, recomputation included, where the plan's GPU ran it."""
    plan, expected_s = layer_s(recompute)
    each_s = share * expected_s / 2
    ran = replace(H100, layer_forward_s=each_s, layer_backward_s=each_s)
    check = layer_time(plan, task_of(plan), [ran])
    assert (check.verdict, check.value) == (verdict, pytest.approx(1 / share - 1, abs=1e-6))


def test_a_layers_time_is_not_judged_where_it_cannot_be_seen(plan_of: Callable[..., Plan]) -> None:
    """Without such a GPU, or where weight gradients are computed apart."""
    plan = plan_of(ParallelLayout(dp=2))
    assert layer_time(plan, task_of(plan), []).verdict == "not checked here"
    split = plan_of(ParallelLayout(pp=2, schedule="zb-h1"))
    assert "zb-h1 splits the backward" in layer_time(split, task_of(split), [H100]).detail


def test_another_engines_step_is_never_judged_by_the_twin(plan_of: Callable[..., Plan]) -> None:
    """Its kernels and overlap are not those that ran."""
    plan = of_engine(plan_of(ParallelLayout(dp=2)), "megatron", "megatron-core")
    assert step_time_check(plan, [replace(H100, backward_s=1e3)]).verdict == "not checked here"


def test_a_broken_rule_ends_the_validation(plan_of: Callable[..., Plan]) -> None:
    """Nothing is traced of a plan that may not run."""
    rules = Check(name="rules", verdict="does not hold", detail="broken")
    said: list[str] = []
    assert validate(plan_of(ParallelLayout()), [rules], said.append).checks == (rules,)
    assert said == []


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
    report = held_to_schema("validate", capsys.readouterr().out)
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    held = ("rules", "counts", "headroom", "numerics")
    assert {name: verdicts[name] for name in held} == dict.fromkeys(held, "holds")
    assert (verdicts["launch"], verdicts["step time"]) == ("not checked here",) * 2
    assert len(report["memory"]) == 2
