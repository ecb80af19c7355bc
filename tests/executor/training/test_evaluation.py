"""Held-out evaluation: one number for every layout, each sequence once, and training as if it had not been."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import run_ranks
from executor.comm.tensor_parallel import token_losses
from executor.data.held_out import HeldOut, open_held_out
from executor.data.source import open_source
from executor.launch.supervise import write_run
from executor.model.transformer import build_model
from executor.parallel.weights import initialize
from executor.training import loop
from executor.training.evaluation import Evaluation
from executor.training.settings import EVALUATIONS_FILE, RunStatus
from executor.training.trainer import Trainer, prepare
from planner.plan import Plan
from tests.counts import cases_of_run
from tests.executor.conftest import TINY, make_plan
from tests.executor.training.test_training import losses, run_here, settings_in
from topology.base.errors import InputError

SEQUENCE, BATCH, HELD_OUT = 16, 8, 13  # not a multiple of the batch: the last one is short
CPU = torch.device("cpu")
SHALLOW = replace(TINY, num_layers=1)
EXPERTS = replace(
    TINY, name="tiny-moe", num_experts=4, num_experts_per_token=2, moe_intermediate_size=32,
    router_aux_loss_coef=0.1,
)  # fmt: skip
LAYOUTS = {
    "tp2-sequence-parallel": (TINY, ParallelLayout(tp=2, sequence_parallel=True)),
    "dp4-zero3": (TINY, ParallelLayout(dp=4, zero_stage=3)),
    "cp2-ring": (TINY, ParallelLayout(cp=2)),
    "pp2-interleaved": (TINY, ParallelLayout(pp=2, virtual_stages=2, schedule="interleaved")),
    "pp2-zbv": (TINY, ParallelLayout(pp=2, virtual_stages=2, schedule="zbv")),
    "pp2-dp2-zero1": (TINY, ParallelLayout(pp=2, dp=2, zero_stage=1)),
    "dp2-zero3": (TINY, ParallelLayout(dp=2, zero_stage=3)),
    "ep2": (EXPERTS, ParallelLayout(dp=2, ep=2)),
    "ep2-tp2": (EXPERTS, ParallelLayout(dp=2, ep=2, tp=2, sequence_parallel=True)),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Token files to train on and to hold out."""
    folder, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(7)
    names = folder / "train.npy", folder / "held-out.npy"
    for path, sequences in zip(names, (64, HELD_OUT), strict=True):
        np.save(path, generator.integers(0, TINY.vocab_size, sequences * SEQUENCE + 1))
    return names


FOUR_RANKS = ("dp4-zero3", "pp2-dp2-zero1", "ep2-tp2")
"""Of the nightly run: on two ranks the suite has each of their axes."""


@pytest.mark.parametrize("name", cases_of_run(LAYOUTS, (*FOUR_RANKS, "pp2-interleaved")))
def test_every_layout_has_the_mean_over_each_held_out_sequence_once(
    name: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    """Before any step, and without changing the steps: loss and gradient are those of a run without."""
    spec, layout = LAYOUTS[name]
    spec = replace(spec, num_layers=layout.pp * layout.virtual_stages)
    plan = make_plan(layout, spec=spec, batch=BATCH, sequence=SEQUENCE)
    settings = settings_in(tmp_path, steps=2, data=str(files[0]), eval_data=str(files[1]))
    write_run(settings, plan)
    found = run_ranks(_evaluate_and_train, layout.num_gpus, settings, plan)
    model = build_model(spec)
    initialize(model, None, seed=settings.seed, device=CPU)
    rows = np.load(files[1])
    windows = torch.from_numpy(np.stack([rows[i * SEQUENCE :][: SEQUENCE + 1] for i in range(HELD_OUT)]))
    with torch.no_grad():
        each = token_losses(model(windows[:, :-1]), windows[:, 1:], None, spec.vocab_size)
    assert {evaluation.samples for evaluation, _ in found} == {HELD_OUT}
    for evaluation, steps in found:
        assert evaluation.loss == pytest.approx(float(each.double().mean()), rel=1e-6)
        assert steps[0] == steps[1]


def _evaluate_and_train(
    _rank: int, settings: object, plan: Plan
) -> tuple[Evaluation, list[list[tuple[float, float, float]]]]:
    """The evaluation before the first step; two steps without and with one before each, from the same values."""
    found, steps = [], []
    for with_evaluation in (False, True):
        trainer, seen = prepare(settings, plan, CPU), []  # type: ignore[arg-type]
        for step in range(2):
            if with_evaluation:
                found.append(_evaluation(trainer, step))
            metrics, _ = loop._train_step(trainer, step)
            seen.append((metrics.loss, metrics.gradient_norm, metrics.router_loss))
        steps.append(seen)
    return found[0], steps


def _evaluation(trainer: Trainer, step: int) -> Evaluation:
    job, held_out = trainer.plan.request.job, trainer.held_out
    assert held_out is not None
    found = loop.held_out_loss(
        trainer.pipeline,
        held_out,
        step=step,
        global_batch_size=job.global_batch_size,
        sequence_length=job.sequence_length,
        stop=lambda: False,
    )
    assert found is not None
    return found


def test_evaluations_are_written_when_due_and_after_the_last_step(
    files: tuple[Path, Path], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Every third of seven steps and the last; the losses of training are those of a run without."""
    plan, common = plan_of(ParallelLayout(), spec=SHALLOW), {"steps": 7, "data": str(files[0])}
    run_here(settings_in(tmp_path / "without", **common), plan)
    run_here(settings_in(tmp_path / "with", **common, eval_data=str(files[1]), eval_interval=3), plan)
    rows = [json.loads(line) for line in (tmp_path / "with" / EVALUATIONS_FILE).read_text().splitlines()]
    assert [(row["step"], row["samples"]) for row in rows] == [(3, HELD_OUT), (6, HELD_OUT), (7, HELD_OUT)]
    assert losses(tmp_path / "with") == losses(tmp_path / "without")
    assert not (tmp_path / "without" / EVALUATIONS_FILE).exists()


def test_a_request_to_stop_ends_an_evaluation_on_every_rank(
    plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """One rank is asked during the second batch: no number is reported, and the checkpoint is written."""
    plan = plan_of(ParallelLayout(dp=2, zero_stage=1), spec=SHALLOW)
    settings = settings_in(tmp_path, eval_data="synthetic", eval_batches=1000, eval_interval=2)
    write_run(settings, plan)
    statuses = run_ranks(_train_until_asked, 2, settings, plan)
    assert {(status.state, status.step) for status in statuses} == {("stopped", 2)}
    assert not (tmp_path / EVALUATIONS_FILE).exists()


def _train_until_asked(rank: int, settings: object, plan: Plan) -> RunStatus:
    trainer = prepare(settings, plan, CPU)  # type: ignore[arg-type]
    held_out = trainer.held_out
    assert held_out is not None

    class Asking:
        def sample(self, index: int) -> np.ndarray:
            trainer.stop_requested |= rank == 1 and index >= plan.request.job.global_batch_size
            return held_out.source.sample(index)

    trainer.held_out = HeldOut(source=Asking(), samples=held_out.samples, interval=held_out.interval)
    return loop.train(trainer)


def opened(name: str, *, training: str = "synthetic", batches: int = 0) -> HeldOut | None:
    """Held-out data of a run of the tiny model."""
    return open_held_out(
        name, interval=1, batches=batches, training=training, vocab_size=TINY.vocab_size,
        sequence_length=SEQUENCE, global_batch_size=BATCH, seed=0,
    )  # fmt: skip


def test_held_out_data_that_cannot_serve_is_refused(files: tuple[Path, Path]) -> None:
    """Trained on, also as a part of a blend; without an end and a number; more batches than there are."""
    train, held_out = map(str, files)
    with pytest.raises(InputError, match="the held-out data is trained on") as raised:
        opened(train, training=f"1={held_out}x,2={train}")
    assert train in raised.value.cause
    with pytest.raises(InputError, match="how much of the held-out data"):
        opened("synthetic")
    with pytest.raises(InputError, match="too few sequences for --eval-batches 2") as raised:
        opened(held_out, batches=2)
    assert "13 sequences, 2 batches of 8 are 16" in raised.value.cause
    assert opened(held_out, batches=1).samples == BATCH  # type: ignore[union-attr]


def test_synthetic_held_out_sequences_are_not_those_of_training() -> None:
    """The same walks, from another seed."""
    trained = open_source("synthetic", vocab_size=TINY.vocab_size, sequence_length=SEQUENCE, seed=0)
    held_out = opened("synthetic", batches=1)
    assert held_out is not None
    seen = {tuple(trained.sample(index)) for index in range(200)}
    assert not seen & {tuple(held_out.source.sample(index)) for index in range(200)}
