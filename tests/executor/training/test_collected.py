"""Garbage is collected after the same steps on all ranks: one that pauses when it likes holds up the others."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from executor.bench.local_ranks import run_ranks
from executor.launch.supervise import write_run
from executor.training import loop
from executor.training.settings import RunSettings
from executor.training.trainer import prepare
from planner.plan import Plan
from tests.executor.training.test_training import LAYOUT, settings_in


def test_collections_are_counted_by_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of young objects, and none when Python likes; afterwards it is as it was."""
    generations = list[int]()
    with loop._collected_by_step() as collect:
        assert not gc.isenabled()
        monkeypatch.setattr(gc, "collect", generations.append)
        for step in range(2 * loop.COLLECTED_EVERY + 1):
            before = len(generations)
            collect(step)
            assert len(generations) - before == (step % loop.COLLECTED_EVERY == 0)
    assert set(generations) == {loop.YOUNG}
    assert gc.isenabled()


def test_an_error_of_a_step_leaves_collection_on() -> None:
    """What is frozen before the first step is looked at again, too."""
    with pytest.raises(RuntimeError), loop._collected_by_step():
        raise RuntimeError
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


def test_no_step_of_a_run_is_interrupted(plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """On both ranks, whenever a sample of any step is read."""
    plan, settings = plan_of(LAYOUT), settings_in(tmp_path, steps=2, checkpoint_every=0)
    write_run(settings, plan)
    assert run_ranks(_collects_while_it_reads, 2, settings, plan) == [{False}, {False}]


def _collects_while_it_reads(_rank: int, settings: RunSettings, plan: Plan) -> set[bool]:
    gc.enable()
    trainer, seen = prepare(settings, plan, torch.device("cpu")), set[bool]()
    source = trainer.source

    class Watched:
        def sample(self, index: int) -> np.ndarray:
            seen.add(gc.isenabled())
            return source.sample(index)

    trainer.source = Watched()
    loop.train(trainer)
    return seen
