"""A first step that compiles kernels is waited for with patience; from the second on a late rank has hung."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import run_ranks
from executor.launch.supervise import with_plan, write_run
from executor.training import loop, trainer
from executor.training.settings import RunSettings, RunStatus
from planner.plan import Plan

BOUND_S, LATE_S = 2.0, 5.0
SETTINGS = RunSettings(folder="", plan_file="", steps=2, device="cpu", precision="fp32")


def _train_compiling(rank: int, settings: RunSettings, plan: Plan) -> RunStatus:
    """Rank 1 compiles in its first step for longer than a collective may take."""
    trainer.COLLECTIVE_TIMEOUT = timedelta(seconds=BOUND_S)
    trainer.compiles_at_first = lambda *_: True
    run_step, steps = loop.run_step, []

    def compiling(*arguments: Any) -> torch.Tensor:
        time.sleep(LATE_S if rank == 1 and not steps else 0.0)
        steps.append(rank)
        return run_step(*arguments)

    loop.run_step = compiling
    return loop.train(trainer.prepare(settings, plan, torch.device("cpu")))


def test_a_rank_that_compiles_for_longer_is_waited_for(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Longer than the bound of a hang."""
    settings, plan = with_plan(SETTINGS, tmp_path), plan_of(ParallelLayout(dp=2, zero_stage=1))
    write_run(settings, plan)
    assert {status.state for status in run_ranks(_train_compiling, 2, settings, plan)} == {"finished"}


def test_which_first_steps_compile() -> None:
    """Those of a GPU, and of layers that are compiled."""
    devices = torch.device("cpu"), torch.device("cuda")
    assert [trainer.compiles_at_first(SETTINGS, device) for device in devices] == [False, True]
    assert trainer.compiles_at_first(replace(SETTINGS, compiles=True), devices[0])


def test_patience_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups get the bound of a hang, and are not told of it after every step."""
    bounds: list[tuple[timedelta, tuple[str, ...]]] = []
    monkeypatch.setattr(trainer, "bound_groups", lambda bound, groups: bounds.append((bound, groups)))
    ready = object.__new__(trainer.Trainer)
    ready.patient = ("pp", "tp")
    ready.end_patience()
    ready.end_patience()
    assert bounds == [(trainer.COLLECTIVE_TIMEOUT, ("pp", "tp")), (trainer.COLLECTIVE_TIMEOUT, ())]
