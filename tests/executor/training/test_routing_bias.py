"""What no optimizer moves, the bias by which experts are chosen, is that of the run: after a restart, and published."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file

from costmodel.layout import ParallelLayout
from costmodel.models.routing import Routing
from executor.bench.local_ranks import run_ranks
from executor.launch.supervise import with_plan, write_run
from executor.model.hf_publish import targets
from executor.model.transformer import build_model
from executor.parallel.weights import initialize
from executor.training import loop
from executor.training.publish import find_checkpoint, publish
from executor.training.settings import CHECKPOINTS, METRICS_FILE, RunSettings
from executor.training.trainer import prepare
from planner.plan import Plan
from tests.executor.conftest import TINY
from tests.executor.training.test_training import copy_of

SPEC = replace(
    TINY, name="chosen", num_layers=2, num_experts=8, num_experts_per_token=2, moe_intermediate_size=16,
    routing=Routing(scoring_func="sigmoid", n_group=2, topk_group=1, bias_selects=True), router_bias=True,
)  # fmt: skip
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


def _train(_rank: int, settings: RunSettings, plan: Plan) -> None:
    torch.use_deterministic_algorithms(mode=True, warn_only=True)  # storage without values is NaN
    loop.train(prepare(settings, plan, torch.device("cpu")))


def losses(folder: Path) -> dict[int, float]:
    """The loss of every step."""
    rows = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights as publishers write them, with a bias that decides who is chosen."""
    model = build_model(SPEC)
    initialize(model, None, seed=3, device=torch.device("cpu"))
    values = {name: value.detach() for name, value in model.named_parameters()}
    for name in values:
        if name.endswith("e_score_correction_bias"):
            values[name] = torch.linspace(0.5, -0.5, SPEC.num_experts).roll(len(name) % 3)
    made: dict[str, Any] = {}
    for target in targets("deepseek_v3", list(values)):
        made |= target.publish([values[ours] for ours in target.parameters])
    folder = tmp_path_factory.mktemp("weights")
    save_file({name: tensor.contiguous() for name, tensor in made.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("first", ["drawn", "pretrained"])
def test_a_resumed_run_chooses_as_it_did(
    first: str, plan_of: Callable[..., Plan], pretrained: Path, tmp_path: Path
) -> None:
    """Four steps at once, and the last two on another layout: the same losses, and the bias is published."""
    base = RunSettings(
        folder="", plan_file="", steps=4, device="cpu", precision="fp32", checkpoint_every=2, learning_rate=1e-2,
        pretrained=str(pretrained) if first == "pretrained" else None, rate_shape="constant",
    )  # fmt: skip
    one, two = (plan_of(layout, spec=SPEC) for layout in (ParallelLayout(), ParallelLayout(dp=2, ep=2)))
    for name, plan in (("whole", one), ("cut", two)):
        if name == "cut":
            copy_of(tmp_path / "whole", tmp_path / "cut", last_step=2)
        settings = with_plan(base, tmp_path / name)
        write_run(settings, plan)
        run_ranks(_train, plan.layout.num_gpus, settings, plan)
    whole = losses(tmp_path / "whole")
    assert losses(tmp_path / "cut") == pytest.approx({step: whole[step] for step in (3, 4)}, rel=1e-6)
    files = publish(
        find_checkpoint(tmp_path / "cut" / CHECKPOINTS, None), SPEC, tmp_path / "out", dtype="fp32"
    )
    published = load_file(next(file for file in files if file.suffix == ".safetensors"))
    wanted = load_file(pretrained / "model.safetensors")[BIAS] if first == "pretrained" else torch.zeros(8)
    assert torch.equal(published[BIAS], wanted)
