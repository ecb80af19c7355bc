"""Runs that train an adapter: what they keep, how they go on, and that PEFT loads what is written of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from app.actions.runs.training_run import require_trained_as_planned
from app.cli import run
from costmodel.layout import ParallelLayout
from costmodel.updates.adapters import parse_adapter
from executor.bench.local_ranks import run_ranks
from executor.launch.supervise import with_plan, write_run
from executor.model.low_rank import add_adapter, is_added
from executor.model.transformer import build_model
from executor.parallel.weights import assemble, initialize, parts
from executor.training import loop
from executor.training.settings import RunSettings
from executor.training.trainer import prepare
from planner.plan import Plan
from tests.executor.conftest import TINY
from topology.base.errors import NoFeasiblePlanError

LORA = parse_adapter("lora:r=4,alpha=8")
LAYOUT = ParallelLayout(pp=2)


def _train(_rank: int, settings: RunSettings, plan: Plan) -> list[dict[str, Any]]:
    trainer = prepare(settings, plan, torch.device("cpu"))
    loop.train(trainer)
    return [dict(parts(stage.module, trainer.pipeline.meshes)) for stage in trainer.pipeline.stages]


def trained(folder: Path, plan: Plan, steps: int) -> dict[str, Any]:
    """Parameters that the ranks hold after so many steps of a run in this folder."""
    base = RunSettings(
        folder="", plan_file="", steps=steps, device="cpu", precision="fp32", checkpoint_every=1
    )
    settings = with_plan(replace(base, learning_rate=1e-2, rate_shape="constant"), folder)
    write_run(settings, plan)
    ranks = run_ranks(_train, plan.layout.num_gpus, settings, plan)
    return assemble([stage for rank in ranks for stage in rank])


@pytest.fixture(scope="module")
def adapted_plan(plan_of: Callable[..., Plan]) -> Plan:
    """The tiny model, with an adapter."""
    plan = plan_of(LAYOUT, spec=replace(TINY, num_layers=2))
    return replace(plan, request=replace(plan.request, job=replace(plan.request.job, adapter=LORA)))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
def test_a_run_goes_on_and_peft_loads_its_adapter(adapted_plan: Plan, tmp_path: Path) -> None:
    """Stopped after two of three steps, another layout, no base in the checkpoint; logits under PEFT equal ours."""
    whole = trained(tmp_path / "whole", adapted_plan, 3)
    trained(tmp_path / "run", adapted_plan, 2)
    other = replace(
        adapted_plan, layout=ParallelLayout(dp=2, zero_stage=3), layers_of_stage=(2,), recompute_of_stage=(0,)
    )
    resumed = trained(tmp_path / "run", other, 3)
    assert set(resumed) == set(whole)
    for name, values in whole.items():
        if is_added(name):
            torch.testing.assert_close(resumed[name], values, rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(resumed[name], values)
    begun = add_adapter(build_model(adapted_plan.request.model), LORA)
    initialize(begun, None, seed=0, device=torch.device("cpu"))
    assert any(
        not torch.equal(whole[name], value) for name, value in begun.named_parameters() if is_added(name)
    )
    kept = (tmp_path / "run" / "checkpoints" / "step-00000003" / ".metadata").read_bytes()
    assert b"lora_A" in kept
    assert b"embed_tokens" not in kept
    _peft_agrees(adapted_plan, tmp_path / "run", tmp_path / "adapter", resumed)


def _peft_agrees(plan: Plan, folder: Path, to: Path, truth: dict[str, Any]) -> None:
    """What `plan convert` writes of the run, over the same base, computes what the executor does."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    assert run(["convert", str(folder), "-o", str(to)]) == 0
    assert json.loads((to / "adapter_config.json").read_text())["r"] == LORA.rank
    spec = plan.request.model
    config = transformers.LlamaConfig(
        vocab_size=spec.vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
        rms_norm_eps=spec.norm_epsilon, rope_theta=spec.rotary.theta, tie_word_embeddings=False,
    )  # fmt: skip
    base = transformers.LlamaForCausalLM(config)
    named = dict(base.named_parameters())
    ours = add_adapter(build_model(spec), LORA)
    initialize(ours, None, seed=0, device=torch.device("cpu"))
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(truth[name])
            if name in named:
                named[name].copy_(truth[name])
    theirs = peft.PeftModel.from_pretrained(base, str(to))
    tokens = torch.arange(32).view(2, 16) % spec.vocab_size
    torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("qlora:r=4", "meshplan-adapter"),
        ("dora:r=4", "meshplan-adapter"),
        ("lora:r=4,dropout=0.1", "meshplan-adapted"),
    ],
)
def test_other_adapters_are_refused(adapted_plan: Plan, words: str, said: str) -> None:
    """What would be trained otherwise is not started."""
    job = replace(adapted_plan.request.job, adapter=parse_adapter(words))
    with pytest.raises(NoFeasiblePlanError, match=said):
        require_trained_as_planned(replace(adapted_plan, request=replace(adapted_plan.request, job=job)))
    require_trained_as_planned(adapted_plan)
