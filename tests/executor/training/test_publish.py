"""What a run has trained is written as Hugging Face publishes models, and computes the same there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.documents import held_to_schema

torch = pytest.importorskip("torch")

from app.cli import run
from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import run_ranks
from executor.launch.supervise import with_plan, write_run
from executor.model.pretrained import pretrained_state
from executor.model.transformer import build_model
from executor.parallel.weights import assemble, load_state_dict, parts
from executor.training import loop
from executor.training.manifest import folder_of_step
from executor.training.publish import INDEX, find_checkpoint, publish
from executor.training.settings import CHECKPOINTS, RunSettings
from executor.training.trainer import prepare
from planner.plan import Plan, to_json
from topology.base.errors import InputError

LAYOUT = ParallelLayout(tp=2, pp=2, sequence_parallel=True)


def _train(_rank: int, settings: RunSettings, plan: Plan) -> list[dict[str, Any]]:
    trainer = prepare(settings, plan, torch.device("cpu"))
    loop.train(trainer)
    return [dict(parts(stage.module, trainer.pipeline.meshes)) for stage in trainer.pipeline.stages]


@pytest.fixture(scope="module")
def trained(
    plan_of: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Plan, dict[str, Any]]:
    """Folder of a run of two steps, its plan, and the whole parameters that its ranks hold in the end."""
    folder, plan = tmp_path_factory.mktemp("run"), plan_of(LAYOUT)
    base = RunSettings(folder="", plan_file="", steps=2, device="cpu", precision="fp32", checkpoint_every=1)
    settings = with_plan(replace(base, learning_rate=1e-2), folder)
    write_run(settings, plan)
    ranks = run_ranks(_train, plan.layout.num_gpus, settings, plan)
    return folder, plan, assemble([stage for rank in ranks for stage in rank])


def test_files_hold_what_the_ranks_held(
    trained: tuple[Path, Plan, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command, in the run's own number format: every parameter, bit by bit; a second time is refused."""
    folder, plan, truth = trained
    to = tmp_path / "published"
    assert run(["convert", str(folder), "-o", str(to), "--json"]) == 0
    said = held_to_schema("convert", capsys.readouterr().out)
    assert run(["convert", str(folder), "-o", str(to / "config.json" / "x")]) == 2
    assert f"error: {to / 'config.json' / 'x'} cannot be written" in capsys.readouterr().err
    assert (said["step"], said["dtype"], said["files"]) == (2, "fp32", ["config.json", "model.safetensors"])
    model = build_model(plan.request.model)
    load_state_dict(model, None, pretrained_state(to, plan.request.model), device=torch.device("cpu"))
    assert all(torch.equal(value, truth[name]) for name, value in model.named_parameters())
    assert run(["convert", str(folder), "-o", str(to)]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_transformers_loads_it_in_several_files(
    trained: tuple[Path, Plan, dict[str, Any]], tmp_path: Path
) -> None:
    """By the index; its logits are those of this executor."""
    import transformers

    folder, plan, truth = trained
    spec, to = plan.request.model, tmp_path / "published"
    size = sum(value.numel() * 4 for value in truth.values())
    files = publish(
        find_checkpoint(folder / CHECKPOINTS, None), spec, to, dtype="fp32", largest_bytes=size // 3
    )
    assert INDEX in [file.name for file in files]
    assert len(files) >= 5
    theirs, loading = transformers.AutoModelForCausalLM.from_pretrained(to, output_loading_info=True)
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ours = build_model(spec)
    load_state_dict(ours, None, truth, device=torch.device("cpu"))
    tokens = torch.arange(24).view(2, 12) % spec.vocab_size
    with torch.no_grad():
        expected = ours(tokens)
        assert (theirs.eval()(tokens).logits - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_damaged_checkpoint_is_not_published(
    trained: tuple[Path, Plan, dict[str, Any]], tmp_path: Path
) -> None:
    """The one before is taken, or, asked by its step, refused."""
    root = tmp_path / CHECKPOINTS
    root.symlink_to(trained[0] / CHECKPOINTS)
    damaged = max(folder_of_step(root, 2).glob("*.distcp"))
    content = damaged.read_bytes()
    try:
        damaged.write_bytes(content[:-1])
        assert find_checkpoint(root, None).manifest.step == 1
        with pytest.raises(InputError, match="no such checkpoint"):
            find_checkpoint(root, None, step=2)
    finally:
        damaged.write_bytes(content)


def test_a_run_publishes_its_result(
    plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--export-hf` refuses before it trains what it could not write."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.json").write_text("{}")
    (tmp_path / "plan.json").write_text(to_json(plan_of(ParallelLayout(dp=2))))
    words = ["run", str(tmp_path / "plan.json"), "--run-dir", str(tmp_path / "run"), "--device", "cpu"]
    words.append("--accept-changes")
    assert run([*words, "--steps", "1", "--export-hf", str(tmp_path / "there")]) == 2
    assert "is there already" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert run([*words, "--steps", "1", "--fp32", "--export-hf", str(tmp_path / "new"), "--json"]) == 0
    assert held_to_schema("run", capsys.readouterr().out)["published"]["folder"] == str(tmp_path / "new")
    assert (tmp_path / "new" / "model.safetensors").is_file()
