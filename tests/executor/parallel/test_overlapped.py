"""Tensor parallelism whose messages run under its products computes what one process computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import run
from costmodel.layout import ParallelLayout
from costmodel.updates.adapters import parse_adapter
from planner.plan import Plan
from topology.base.errors import InputError

torch = pytest.importorskip("torch")

from executor.launch.overlaps import check_overlaps
from executor.parallel.device import require_nvlink
from executor.validation.reference import ReferenceJob, outcome_difference, run_layout, run_reference
from tests.counts import cases_of_run
from tests.executor.parallel.test_parity import DENSE, GPT, MOE, SETTINGS, TOLERANCE, shallow
from tests.executor.training.test_commands import plan_file

SP = {"sequence_parallel": True}
CASES = {
    "tp2": ReferenceJob(spec=DENSE, layout=ParallelLayout(tp=2, **SP)),
    "tp2-dp2-zero3": ReferenceJob(
        spec=DENSE, layout=ParallelLayout(tp=2, dp=2, zero_stage=3, microbatch_size=2, **SP)
    ),
    "zb-h1": ReferenceJob(spec=DENSE, layout=ParallelLayout(tp=2, pp=2, schedule="zb-h1", **SP)),
    "biases-cp2": ReferenceJob(spec=GPT, layout=ParallelLayout(tp=2, cp=2, **SP)),
    "experts": ReferenceJob(spec=MOE, layout=ParallelLayout(ep=2, tp=2, dp=2, zero_stage=1, **SP)),
}


@pytest.mark.parametrize("name", cases_of_run(CASES, ["tp2-dp2-zero3", "experts"]))
def test_overlapped_layout_computes_what_one_process_computes(name: str) -> None:
    """Loss of three steps and every gradient of the first within 1e-5: torch's fallback, on gloo ranks."""
    case = dataclasses.replace(shallow(CASES[name]), steps=3, overlaps=True)
    difference = outcome_difference(run_reference(case, SETTINGS), run_layout(case, SETTINGS))
    assert (difference.loss <= TOLERANCE, difference.gradient <= TOLERANCE) == (True, True), difference


@pytest.mark.parametrize(
    ("layout", "device", "cause"),
    [
        (ParallelLayout(dp=2), "auto", "the plan has tp = 1: no tensor-parallel messages"),
        (ParallelLayout(tp=2), "auto", "the plan has no sequence parallelism"),
        (ParallelLayout(tp=2, **SP), "cpu", "ranks on a CPU map no memory into each other"),
        (ParallelLayout(tp=2, **SP), "auto", "this rank is on a cpu"),
    ],
)
def test_nothing_is_overlapped_without_gpus(
    layout: ParallelLayout,
    device: str,
    cause: str,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Three lines: by the launcher where it can know, otherwise by the ranks."""
    if torch.cuda.is_available() and device == "auto":
        pytest.skip("this machine has GPUs")
    words = ["run", plan_file(tmp_path, estimated_plan_of(layout)), "--run-dir", str(tmp_path / "run")]
    assert run([*words, "--device", device, "--async-tp", "--steps", "1"]) == 2
    errors = capfd.readouterr().err
    assert cause in errors
    assert [line.split(":")[0] for line in errors.splitlines()][-3:] == ["error", "cause", "help"]


def test_what_else_has_no_such_messages_is_named(plan_of: Callable[..., Plan]) -> None:
    """Products in another format, and adapted projections: told before anything is started."""
    plan = plan_of(ParallelLayout(tp=2, **SP))
    check_overlaps(plan, "cuda")
    asked = plan.request
    eight = dataclasses.replace(
        plan, request=dataclasses.replace(asked, job=dataclasses.replace(asked.job, precision="fp8"))
    )
    adapter = dataclasses.replace(asked.job, adapter=parse_adapter("lora:r=4"))
    adapted = dataclasses.replace(plan, request=dataclasses.replace(asked, job=adapter))
    for refused, fp32, cause in (
        (eight, False, "the plan multiplies in fp8: such products are not overlapped"),
        (plan, True, "the plan multiplies in fp32: such products are not overlapped"),
        (adapted, False, "the plan trains an adapter: its projections are not overlapped"),
    ):
        with pytest.raises(InputError) as raised:
            check_overlaps(refused, "cuda", fp32=fp32)
        assert (raised.value.what, raised.value.cause) == ("--async-tp would overlap nothing", cause)


def test_gpus_without_links_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs under two PCIe switches, as torch tells NVLink: within a pair only."""
    pairs = [[0, 4, 0, 0], [4, 0, 0, 0], [0, 0, 0, 4], [0, 0, 4, 0]]
    monkeypatch.setattr("executor.parallel.device.nvlinks", lambda: pairs)
    require_nvlink(torch.device("cuda", 2), [2, 3])
    with pytest.raises(InputError, match="GPUs 1 and 2 have no NVLink to each other"):
        require_nvlink(torch.device("cuda", 1), [1, 2])
    with pytest.raises(InputError, match="on several nodes"):
        require_nvlink(torch.device("cuda", 0), [0, -1])
