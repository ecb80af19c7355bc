"""A recorded step beside the prediction of a script: residuals, another layout, recomputation nobody asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import meshplan
from planner.diagnose.diagnosis import Diagnosis, diagnosed
from planner.diagnose.job_files import prediction_of
from planner.plan import to_json
from planner.questions.flags import Flags
from tests.unit.planner.diagnose.simulated import simulate, write_ranks
from tests.unit.planner.traces.micro import host, kernel, write

SCRIPT = """torchrun --nproc-per-node {gpus} pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \\
 --global-batch-size 64 --tensor-model-parallel-size {tp} --pipeline-model-parallel-size 1 --bf16 --swiglu \\
 --ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 --vocab-size 128256 {more}
"""


def beside(tmp_path: Path, traces: list[Path], *, gpus: int, tp: int, more: str = "") -> Diagnosis:
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT.format(gpus=gpus, tp=tp, more=more))
    return diagnosed([*traces, script], Flags(gpu="h100-sxm"))


def test_every_term_stands_beside_its_part(tmp_path: Path) -> None:
    """Recorded terms sum to the step, predicted ones to the prediction; the band decides."""
    job = next(job for job in map(simulate, range(50)) if (job.pp, job.dp) == (1, 8))
    diagnosis = beside(tmp_path, write_ranks(job, tmp_path), gpus=8, tp=1, more="--use-distributed-optimizer")
    assert diagnosis.prediction is not None
    estimate = diagnosis.prediction.estimate
    assert sum(each.recorded_s for each in diagnosis.residuals) == pytest.approx(
        diagnosis.job.step_s, rel=0.01
    )
    assert sum(each.predicted_s for each in diagnosis.residuals) == pytest.approx(
        estimate.step_time_s, rel=0.01
    )
    for each in diagnosis.residuals:
        inside = each.lower_s <= each.recorded_s <= each.upper_s
        assert (each.verdict == "explained") == inside
    assert [finding.cause for finding in diagnosis.findings] == []


def test_another_layout_is_the_first_finding(tmp_path: Path) -> None:
    job = next(job for job in map(simulate, range(50)) if (job.pp, job.dp) == (1, 8))
    first = beside(tmp_path, write_ranks(job, tmp_path), gpus=8, tp=4).findings[0]
    assert first.cause == "layout contradiction"
    assert first.evidence == "dp 8 in the trace and 2 in train.sh; tp 1 in the trace and 4 in train.sh"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", ["unplanned recompute"]),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", []),
    ],
)
def test_recomputation_is_a_finding_where_nobody_asked(
    tmp_path: Path, more: str, expected: list[str]
) -> None:
    trace = write(
        tmp_path / "rank0.json",
        host("ProfilerStep#1", 0.0, 100.0),
        host("torch/utils/checkpoint.py(1500): recompute_fn", 10.0, 20.0, category="python_function"),
        kernel("nvjet_gemm", 5.0, 60.0, 1),
        kernel("nvjet_gemm", 60.0, 99.0, 2, launched_us=12.0),
    )
    findings = beside(tmp_path, [trace], gpus=1, tp=1, more=more).findings
    assert [finding.cause for finding in findings] == expected


NUMBERED = {"Fwd thread id": 0, "Sequence number": 7}
"""What autograd's recorder says of an operation whose gradient it will want."""


@pytest.mark.parametrize(("args", "expected"), [(NUMBERED, ["unplanned recompute"]), ({}, [])])
def test_without_stacks_recomputation_is_an_operation_that_a_backward_numbers(
    tmp_path: Path, args: dict[str, int], expected: list[str]
) -> None:
    """A backward makes no graph: it numbers what it runs only where that is a forward."""
    trace = write(
        tmp_path / "rank0.json",
        host("ProfilerStep#1", 0.0, 100.0),
        host("aten::linear", 2.0, 4.0, category="cpu_op", args=NUMBERED),
        host("autograd::engine::evaluate_function: AddmmBackward0", 8.0, 40.0, category="cpu_op"),
        host("AddmmBackward0", 9.0, 40.0, category="cpu_op", args={**NUMBERED, "Fwd thread id": 1}),
        host("aten::linear", 10.0, 20.0, category="cpu_op", args=args),
        host("aten::mm", 22.0, 30.0, category="cpu_op"),
        kernel("nvjet_gemm", 5.0, 60.0, 1, launched_us=3.0),
        kernel("nvjet_gemm", 60.0, 80.0, 2, launched_us=12.0),
        kernel("nvjet_gemm", 80.0, 99.0, 3, launched_us=24.0),
    )
    findings = beside(tmp_path, [trace], gpus=1, tp=1).findings
    assert [finding.cause for finding in findings] == expected
    assert [finding.seconds for finding in findings] == [pytest.approx(20e-6)] * len(expected)


@pytest.mark.parametrize(("operand", "expected"), [("float", ["precision"]), ("c10::BFloat16", [])])
def test_operands_of_float32_are_a_finding_where_the_script_says_bf16(
    tmp_path: Path, operand: str, expected: list[str]
) -> None:
    """A product of weights that autocast narrows is of the narrow operands: the operation within it."""
    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    trace = write(
        tmp_path / "rank0.json",
        host("ProfilerStep#1", 0.0, 100.0),
        host("aten::mm", 5.0, 60.0, category="cpu_op", args=shapes),
        host("aten::mm", 6.0, 59.0, category="cpu_op", args={**shapes, "Input type": [operand, operand]}),
    )
    findings = beside(tmp_path, [trace], gpus=1, tp=1).findings
    assert [finding.cause for finding in findings] == expected


def test_a_plan_file_predicts_too(tmp_path: Path) -> None:
    """What `plan --json` writes is told from a trace by its first key."""
    path = tmp_path / "plan.json"
    path.write_text(to_json(meshplan.estimate("8b", gpus=8, seq="4k", batch=64, layout={"zero_stage": 1})))
    job = next(job for job in map(simulate, range(50)) if (job.pp, job.dp) == (1, 8))
    diagnosis = diagnosed([*write_ranks(job, tmp_path), path], Flags())
    assert diagnosis.prediction is not None
    assert diagnosis.prediction.source == "plan.json"


SUMMED = {
    "pg_config": [{"pg_name": "1", "pg_desc": "dp", "ranks": [0, 1], "pg_size": 2}],
    "backend": "gloo",
}


def host_rank(folder: Path, rank: int, *, beside_backward: bool) -> Path:
    """A step of a host: a backward of two nodes, and a sum of gradients beside the second or after it."""
    begins = 20e3 if beside_backward else 60e3
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    return write(
        folder / f"rank{rank}.json",
        host("ProfilerStep#1", 0.0, 100e3),
        host(node, 0.0, 20e3, category="cpu_op"),
        host(node, 30e3, 60e3, category="cpu_op"),
        host("gloo:all_reduce", begins, begins + 38e3, thread=200),
        rank=rank,
        world=2,
        info=SUMMED,
    )


@pytest.mark.parametrize(
    ("overlap", "beside_backward", "expected"),
    [("on", False, ["overlap off"]), ("off", False, []), ("on", True, [])],
)
def test_a_host_hides_gradients_where_its_plan_does(
    tmp_path: Path, overlap: str, beside_backward: bool, expected: list[str]
) -> None:
    """A job that does as its profile is set is accused of nothing."""
    plan = meshplan.estimate("llama-3.2-1b", gpus=2, seq="1k", batch=4, layout={"dp": 2})
    plan = replace(plan, request=replace(plan.request, switches={"gradient_overlap": overlap}))
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan))
    traces = [host_rank(tmp_path, rank, beside_backward=beside_backward) for rank in range(2)]
    assert [each.cause for each in diagnosed([*traces, path], Flags()).findings] == expected


@pytest.mark.parametrize(("more", "expected"), [("--overlap-grad-reduce", True), ("", False)])
def test_a_script_says_whether_gradients_are_hidden(tmp_path: Path, more: str, expected: bool) -> None:
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT.format(gpus=8, tp=1, more=more))
    prediction, _ = prediction_of([script], Flags(gpu="h100-sxm"))
    assert prediction is not None
    assert prediction.gradient_overlap is expected
