"""A model that sees on the command line: planned with its tower, told to who can be, refused elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import run
from planner.engines.contracts import CONTRACTS
from planner.plan import Plan, from_json

CONFIG = {
    "model_type": "qwen2_5_vl", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
    "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
}  # fmt: skip
MOST_LINES = 3


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Its config.json."""
    path = tmp_path / "small-vl.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def planned(config: str, folder: Path, *words: str) -> Plan:
    """Its plan for eight GPUs."""
    path = folder / "plan.json"
    assert run(["--model", config, "--gpus", "8", "--output", str(path), *words]) == 0
    return from_json(path.read_text())


def test_what_it_sees_is_planned(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More images take longer; the plan says how many, and verifies."""
    few_layouts = ("--set", "layout.pp=1", "--set", "layout.cp=1", "--set", "layout.tp=1")
    one = planned(config, tmp_path, *few_layouts)
    many = planned(config, tmp_path, "--set", "job.images=6", *few_layouts)
    assert many.estimate.step_time_s > 1.5 * one.estimate.step_time_s
    assert any(line.startswith("6 images of 1,024 tokens") for line in many.estimate.assumptions)
    assert run(["verify", str(tmp_path / "plan.json")]) == 0
    capsys.readouterr()
    assert run(["explain", str(tmp_path / "plan.json")]) == 0
    told = capsys.readouterr().out
    assert "6 images" in told


@pytest.mark.parametrize("engine", ["megatron", "megatron-bridge", "torchtitan", "meshplan"])
def test_engines_that_are_told_layers_are_refused(
    engine: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One number of layers does not say which of them see."""
    stack = CONTRACTS[engine].stacks[0]
    assert run(["--model", config, "--gpus", "8", "--for", engine, "--stack", stack]) == 1
    assert "32 × vision" in capsys.readouterr().err


def test_programs_that_bring_the_model_take_it(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Accelerate's files say how replicas share it."""
    planned(config, tmp_path, "--for", "accelerate", "--set", "job.images=2")
    capsys.readouterr()
    assert run(["export", str(tmp_path / "plan.json"), "--to", "accelerate"]) == 0
    assert "num_processes: 8" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "validate"])
def test_the_executor_builds_decoders_alone(
    command: str, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused in three lines before anything is started."""
    planned(config, tmp_path)
    capsys.readouterr()
    assert run([command, str(tmp_path / "plan.json")]) == 2
    err = capsys.readouterr().err.strip().splitlines()[-MOST_LINES:]
    assert [line.split(":")[0] for line in err] == ["error", "cause", "help"]
    assert "vision tower" in err[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "job.images=9"], "9 images of 1,024 tokens are 9,216 of 8,192 tokens"),
        (["--set", "job.images=0"], "images"),
        (["--set", "job.image_tokens=9000"], "1 image of 9,000 tokens are 9,000"),
    ],
)
def test_images_that_no_sequence_holds_are_refused(
    words: list[str], said: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the numbers."""
    assert run(["--model", config, "--gpus", "8", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_model_without_eyes_sees_no_images(capsys: pytest.CaptureFixture[str]) -> None:
    """A setting that would change nothing is refused."""
    assert run(["--model", "8b", "--gpus", "8", "--set", "job.images=2"]) == 2
    assert "sees no images" in capsys.readouterr().err


def test_a_tower_that_cannot_be_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes of a known family are read, and what is wrong with them is said."""
    path = tmp_path / "odd.json"
    path.write_text(
        json.dumps({**CONFIG, "vision_config": {"depth": -1, "hidden_size": 1280, "num_heads": 7}})
    )
    assert run(["--model", str(path), "--gpus", "8"]) == 2
    err = capsys.readouterr().err
    assert "depth = -1" in err
    assert "no multiple of 7 heads" in err


def test_serving_says_that_the_tower_is_left_out(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its language model alone is served."""
    words = ["serve", "--model", config, "--gpus", "1", "--gpu", "h100-sxm", "--concurrency", "4"]
    assert run(words) == 0
    assert "without a vision tower of 32 layers" in capsys.readouterr().err
