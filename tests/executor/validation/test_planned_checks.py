"""What `plan validate` says of a plan before anything of it runs: whether it fits, whether it can be launched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.layout import ParallelLayout
from costmodel.memory.fit import fit_text
from planner.engines.contracts import CONTRACTS
from planner.plan import Plan, to_json

pytest.importorskip("torch")

from app.actions.planned_checks import check_fits, check_launch, parsed_by_engine, planned_checks
from app.cli import run
from planner.parsers import client

LAYOUT = ParallelLayout(dp=2, zero_stage=1)
HUGE = {"hidden_size": 16384, "intermediate_size": 65536, "num_attention_heads": 128, "head_dim": 128}


def with_peak(plan: Plan, share: float) -> Plan:
    """The plan with this share of its memory budget as its peak."""
    peak = plan.problem.memory_budget_bytes * share
    (stage,) = plan.estimate.memory_by_stage
    filled = replace(stage, buffers_bytes=stage.buffers_bytes + peak - stage.total_bytes)
    return replace(plan, estimate=replace(plan.estimate, peak_memory_bytes=peak, memory_by_stage=(filled,)))


@pytest.mark.parametrize(("share", "verdict"), [(0.99, "holds"), (1.0, "holds"), (1.01, "does not hold")])
def test_a_plan_fits_within_its_budget(plan_of: Callable[..., Plan], share: float, verdict: str) -> None:
    """The GPU's memory less the headroom, to the byte."""
    plan = with_peak(plan_of(LAYOUT), share)
    check = check_fits(plan)
    assert (check.verdict, check.value) == (verdict, plan.estimate.peak_memory_bytes)
    assert "h100-sxm" in check.detail


@pytest.mark.parametrize(
    "command", [["validate"], ["run", "--dry-run", "--device", "cpu", "--run-dir", "run"]], ids=lambda c: c[0]
)
def test_a_plan_over_capacity_is_refused_before_anything_starts(
    command: list[str],
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In three lines that name the memory and what the GPU has; nothing is written."""
    monkeypatch.chdir(tmp_path)
    plan = estimated_plan_of(LAYOUT, **HUGE)
    assert plan.estimate.peak_memory_bytes > plan.problem.cluster.gpu.memory_bytes
    (tmp_path / "plan.json").write_text(to_json(plan), encoding="utf-8")
    with pytest.raises(SystemExit) as refused:
        raise SystemExit(run([command[0], "plan.json", *command[1:]]))
    said = capsys.readouterr()
    assert (refused.value.code, said.out) == (1, "")
    lines = [line.split(":")[0] for line in said.err.splitlines()]
    assert lines == ["note", "error", "cause", "help"]  # the note: a plan by hand names no version
    assert fit_text(plan.estimate.out_of_memory_chance) in said.err
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def for_engine(plan: Plan, engine: str) -> Plan:
    """The same plan, asked for an engine."""
    return replace(plan, request=replace(plan.request, engine=engine))


def test_a_plan_of_the_executor_is_read_by_its_own_parser(estimated_plan_of: Callable[..., Plan]) -> None:
    """What it reads back is the plan."""
    check = check_launch(for_engine(estimated_plan_of(LAYOUT), "meshplan"))
    assert (check.verdict, "plan.json for meshplan" in check.detail) == ("holds", True)


def test_a_plan_for_no_engine_has_no_launch(estimated_plan_of: Callable[..., Plan]) -> None:
    """It says which engines there are."""
    check = check_launch(estimated_plan_of(LAYOUT))
    assert (check.verdict, "megatron" in check.detail) == ("not checked here", True)


def test_an_export_that_is_not_the_plan_does_not_hold(estimated_plan_of: Callable[..., Plan]) -> None:
    """A plan priced by the executor is not what DeepSpeed would run."""
    check = check_launch(for_engine(estimated_plan_of(LAYOUT), "deepspeed"))
    assert check.verdict == "does not hold"
    assert "deepspeed cannot" in check.detail


def test_a_launch_is_not_checked_without_the_engine(
    estimated_plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading back is our own word; without the engine's parser it says how to check."""
    monkeypatch.setattr(client, "interpreter", lambda _: None)
    accepted, words = parsed_by_engine(CONTRACTS["accelerate"], {"a.yaml": ""}, estimated_plan_of(LAYOUT))
    assert accepted is None
    assert words == f"accelerate is not installed here: {client.HOW}"


@pytest.mark.parametrize(
    ("answer", "accepted", "words"),
    [
        ({"derived": {"layout.dp": 2, "layout.tp": 1}}, True, "derives 2 of the plan's values"),
        ({"derived": {"layout.dp": 4}}, False, "layout.dp = 2, its own parser derives 4"),
        ({"error": "ValueError: no such field"}, False, "refuses: ValueError: no such field"),
    ],
)
def test_the_engines_own_parser_decides_where_it_is_installed(
    answer: dict[str, Any],
    accepted: bool,
    words: str,
    estimated_plan_of: Callable[..., Plan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it derives must be the plan's, and it says at once whom it asks."""
    heard: list[str] = []
    monkeypatch.setattr(client, "interpreter", lambda _: sys.executable)
    monkeypatch.setattr(client, "answers", lambda *_: [answer])
    found = parsed_by_engine(CONTRACTS["accelerate"], {"a.yaml": ""}, estimated_plan_of(LAYOUT), heard.append)
    assert (found[0], words in found[1]) == (accepted, True)
    assert heard[0].startswith("asking accelerate's own parser: 0 s so far, about ")


def test_a_broken_rule_is_the_only_verdict(estimated_plan_of: Callable[..., Plan]) -> None:
    """Nothing else is asked of a layout that may not run."""
    plan = estimated_plan_of(LAYOUT)
    broken = replace(plan, layout=replace(plan.layout, tp=3))
    assert [(check.name, check.verdict) for check in planned_checks(broken)] == [("rules", "does not hold")]
