"""A first step and a first evaluation that compile kernels are waited for; later on a late rank has hung."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import run_ranks
from executor.launch.supervise import with_plan, write_run
from executor.training import evaluation, loop, trainer
from executor.training.settings import EVALUATIONS_FILE, RunSettings, RunStatus
from planner.plan import Plan

BOUND_S, LATE_S = 2.0, 3.0
SETTINGS = RunSettings(folder="", plan_file="", steps=2, device="cpu", precision="fp32")


def _train_compiling(rank: int, settings: RunSettings, plan: Plan) -> RunStatus:
    """Rank 1 compiles in its first step, and in its first evaluation, for longer than a collective may take."""
    trainer.COLLECTIVE_TIMEOUT = timedelta(seconds=BOUND_S)
    trainer.compiles_at_first = lambda *_: True

    def compiling(program: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        runs = count()

        def run(*arguments: Any) -> torch.Tensor:
            time.sleep(LATE_S if next(runs) == 0 and rank == 1 else 0.0)
            return program(*arguments)

        return run

    loop.run_step = compiling(loop.run_step)
    evaluation.run_forward = compiling(evaluation.run_forward)
    return loop.train(trainer.prepare(settings, plan, torch.device("cpu")))


@pytest.mark.clock
def test_a_rank_that_compiles_for_longer_is_waited_for(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Longer than the bound of a hang, in a step and in an evaluation."""
    plan = plan_of(ParallelLayout(dp=2, zero_stage=1))
    np.save(tmp_path / "held-out.npy", np.arange(129) % plan.request.model.vocab_size)
    evaluated = replace(SETTINGS, eval_data=str(tmp_path / "held-out.npy"), eval_interval=2, eval_batches=1)
    settings = with_plan(evaluated, tmp_path)
    write_run(settings, plan)
    assert {status.state for status in run_ranks(_train_compiling, 2, settings, plan)} == {"finished"}
    assert (tmp_path / EVALUATIONS_FILE).read_text()


def test_which_first_steps_compile() -> None:
    """Those of a GPU, and of layers that are compiled."""
    devices = torch.device("cpu"), torch.device("cuda")
    assert [trainer.compiles_at_first(SETTINGS, device) for device in devices] == [False, True]
    assert trainer.compiles_at_first(replace(SETTINGS, compiles=True), devices[0])


def test_each_program_has_patience_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a first step and a first evaluation, and after both, the bound of a hang holds."""
    bounds: list[timedelta] = []
    monkeypatch.setattr(trainer, "bound_groups", lambda bound, _: bounds.append(bound))
    ready = object.__new__(trainer.Trainer)
    ready.groups, ready.uncompiled = ("pp", "tp"), {"step", "evaluation"}
    for program in ("step", "step", "evaluation", "step", "evaluation"):
        with ready.patience(program):
            pass
    assert bounds == [trainer.PATIENCE, trainer.COLLECTIVE_TIMEOUT] * 2
