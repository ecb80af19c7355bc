"""`--deterministic`: torch is told, no operation of the executor is refused, and one that is ends in three lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import run_ranks
from executor.launch.supervise import write_run
from executor.training import loop
from executor.training.determinism import be_deterministic, refusal
from executor.training.settings import METRICS_FILE, RUN_FILE, RunSettings, read_settings
from executor.training.trainer import prepare
from planner.plan import Plan
from tests.executor.conftest import TINY
from tests.executor.training.test_training import settings_in

EXPERTS = replace(TINY, num_layers=2, num_experts=4, num_experts_per_token=2, moe_intermediate_size=32)
CPU = torch.device("cpu")


def _train_twice(_rank: int, runs: list[RunSettings], plan: Plan) -> bool:
    for number, settings in enumerate(runs):
        if number:
            be_deterministic()
        loop.train(prepare(settings, plan, CPU))
    return bool(torch.are_deterministic_algorithms_enabled())


def test_a_run_of_experts_has_the_same_losses(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Forward, backward, optimizer, checkpoint: torch refuses nothing, and on a CPU nothing changes."""
    plan = plan_of(ParallelLayout(), spec=EXPERTS)
    runs = [settings_in(tmp_path / name, steps=2) for name in ("usual", "deterministic")]
    for settings in runs:
        write_run(settings, plan)
    assert run_ranks(_train_twice, 1, runs, plan) == [True]
    usual, other = (
        [json.loads(line)["loss"] for line in (Path(run.folder) / METRICS_FILE).read_text().splitlines()]
        for run in runs
    )
    assert usual == other


def test_it_is_part_of_what_repeats_a_run(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """The setting is in the run's file, off unless given."""
    write_run(settings_in(tmp_path, deterministic=True), plan_of(ParallelLayout()))
    assert read_settings(tmp_path / RUN_FILE).deterministic
    assert not settings_in(tmp_path).deterministic


def _refused(_rank: int) -> tuple[str, str]:
    be_deterministic()
    try:
        torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))
    except RuntimeError as error:
        refused = refusal(error)
        return (refused.what, refused.cause) if refused else ("", str(error))
    return "", "not refused"


def test_an_operation_without_such_a_kernel_is_named() -> None:
    """In three lines; other errors are none of it."""
    ((what, cause),) = run_ranks(_refused, 1)
    assert "repeats to no last bit" in what
    assert cause.startswith("put_")
    assert refusal(RuntimeError("Connection closed by peer")) is None
    assert refusal(ValueError("deterministic implementation use_deterministic_algorithms")) is None
