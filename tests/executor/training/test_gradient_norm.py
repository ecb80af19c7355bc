"""The gradient's norm, by which it is clipped, is that of the whole model, whoever holds which part of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from executor.bench.local_ranks import run_ranks
from executor.comm.tensor_parallel import local
from executor.launch.supervise import write_run
from executor.parallel.pipeline import Pipeline
from executor.training import loop
from executor.training.settings import METRICS_FILE, RunSettings
from executor.training.trainer import prepare
from planner.plan import Plan
from tests.counts import cases_of_run
from tests.executor.conftest import make_plan
from tests.executor.parallel import test_parity as parity
from tests.executor.training.test_training import run_here, settings_in

DENSE, MOE, TIED = (replace(spec, num_layers=2) for spec in (parity.DENSE, parity.MOE, parity.TIED))
LAYOUTS = {
    "replicas": (DENSE, ParallelLayout(dp=2)),
    "replicas of shards": (DENSE, ParallelLayout(dp=4, zero_stage=3, shard_degree=2)),
    "tensor ranks": (DENSE, ParallelLayout(tp=2, sequence_parallel=True)),
    "a tied embedding on two stages": (TIED, ParallelLayout(pp=2)),
    "experts": (MOE, ParallelLayout(dp=4, ep=2)),
    "cut experts": (MOE, ParallelLayout(dp=2, tp=2, ep=2, expert_tp=2, sequence_parallel=True)),
}


def norm_of(spec: ModelSpec, layout: ParallelLayout, folder: Path) -> float:
    """Of the first step."""
    run_here(settings_in(folder, steps=1), make_plan(layout, spec=spec))
    return float(json.loads((folder / METRICS_FILE).read_text().splitlines()[0])["gradient_norm"])


def _true_norm(_rank: int, settings: RunSettings, plan: Plan) -> float:
    """Of the gradients that one rank has when it asks for their norm."""
    seen = []

    def total_norm(pipeline: Pipeline) -> torch.Tensor:
        (stage,) = pipeline.stages
        seen.append(torch.stack([local(one.grad).norm() for one in stage.module.parameters()]).norm())
        return seen[0]

    loop.total_norm = total_norm
    loop.train(prepare(settings, plan, torch.device("cpu")))
    return float(seen[0])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Of one rank that holds all, by the model's name."""
    norms = {}
    for spec in (DENSE, TIED, MOE):
        settings, plan = (
            settings_in(tmp_path_factory.mktemp("alone"), steps=1),
            make_plan(ParallelLayout(), spec=spec),
        )
        write_run(settings, plan)
        norms[spec.name] = run_ranks(_true_norm, 1, settings, plan)[0]
    return norms


@pytest.mark.parametrize("name", cases_of_run(LAYOUTS, ("replicas", "experts", "replicas of shards")))
def test_every_layout_has_the_norm_of_one_process(name: str, alone: dict[str, float], tmp_path: Path) -> None:
    """Copies count once: of what is replicated, of norms on tensor ranks, of a tied embedding."""
    spec, layout = LAYOUTS[name]
    assert norm_of(spec, layout, tmp_path) == pytest.approx(alone[spec.name], rel=1e-5)
