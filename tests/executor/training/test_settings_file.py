"""`settings.toml` repeats a run: every flag that decides anything is in it, and losses are the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

pytest.importorskip("torch")

import app.commands.run as command_module
from app.actions.runs.numbers import check_rates
from app.cli import run
from app.flags.run import annotated_options
from app.store.run_settings import ASKED_PLAN_FILE, SETTINGS_FILE, RunFile, keys_of
from costmodel.layout import ParallelLayout
from executor.training.option import Range, options_of, says
from executor.training.settings import RUN_FILE, RunSettings, read_settings
from planner.plan import Plan
from tests.executor.training.test_commands import LEGAL, run_words
from tests.executor.training.test_training import losses
from topology.base.errors import InputError

QUESTION = {"model", "gpus", "gpu", "cluster", "sequence_length", "global_batch_size", "tokens", "settings"}
NOT_OF_THE_NUMBERS = {
    "settings_file",
    "engine",
    "folder",
    "export_hf",
    "dry_run",
    "prometheus",
    "accept_changes",
    "as_json",
}


def test_every_flag_is_in_the_file_or_asks_for_a_plan_or_says_where() -> None:
    """A new flag of `plan run` is part of what repeats it."""
    flags = set(inspect.signature(command_module.command).parameters) - {"context"}
    kept = {"plan_file" if one.name == "plan" else one.name for one in fields(RunFile)} - {
        "versions",
        "checksums",
    }
    assert flags == kept | QUESTION | NOT_OF_THE_NUMBERS


def test_a_setting_is_declared_once() -> None:
    """One more field with its words is a flag of that type and default, a key of the file, and refused by range."""
    toy = make_dataclass(
        "Toy",
        [("z_loss", float, field(default=0.5, metadata=says("--z-loss", "A toy.", "G", range=Range(least=0))))],
        bases=(RunSettings,), frozen=True, kw_only=True,
    )  # fmt: skip
    option, default = annotated_options(toy)["z_loss"]
    assert (get_args(option)[0], default, get_args(option)[1].default) == (float, 0.5, "--z-loss")
    assert ("z_loss", float | None, None) in keys_of(toy)
    run_ = toy(folder="", plan_file="", steps=1, z_loss=-1.0)
    with pytest.raises(InputError, match="--z-loss is no number"):
        check_rates(run_)
    assert {one.name for one in fields(RunSettings)} - options_of(RunSettings).keys() == {
        "folder",
        "plan_file",
        "checksums",
    }


@pytest.mark.slow
def test_a_run_is_repeated_by_its_file(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd values of every kind, from another working directory: the same settings, and losses to the last bit."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "a.npy", rng.integers(0, 259, 3000))
    np.save(tmp_path / "b.npy", rng.integers(0, 259, 333))
    monkeypatch.chdir(tmp_path)
    words = run_words(tmp_path, estimated_plan_of(ParallelLayout()), tmp_path / "first")
    odd = [
        "--fp32", "--steps", "5", "--seed", "11", "--data", "a.npy", "--eval-data", "b.npy", "--eval-interval",
        "2", "--learning-rate", "0.00123", "--lr-schedule", "wsd", "--warmup-steps", "1", "--weight-decay",
        "0.03", "--min-lr", "0.0004", "--adam-beta1", "0.85", "--adam-beta2", "0.97", "--adam-eps", "1e-7",
        "--clip-norm", "0.7", "--checkpoint-every", "4", "--notice", "44",
    ]  # fmt: skip
    assert run([*words, *odd]) == 0
    monkeypatch.chdir("/")
    assert (
        run(
            [
                "run",
                "--settings",
                str(tmp_path / "first" / SETTINGS_FILE),
                "--run-dir",
                str(tmp_path / "second"),
            ]
        )
        == 0
    )
    first, second = tmp_path / "first", tmp_path / "second"
    assert losses(second) == losses(first)
    assert (second / SETTINGS_FILE).read_text() == (first / SETTINGS_FILE).read_text()
    assert (second / ASKED_PLAN_FILE).read_text() == (first / ASKED_PLAN_FILE).read_text()
    ranks_read = [(folder / RUN_FILE).read_text().replace(str(folder), "") for folder in (first, second)]
    assert ranks_read[0] == ranks_read[1]


def written(tmp_path: Path, plan: Plan, *lines: str) -> list[str]:
    """A dry run by a file of these lines and a plan."""
    words = run_words(tmp_path, plan, tmp_path / "run")
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    return [*words, "--dry-run", "--settings", str(tmp_path / "mine.toml")]


def test_a_flag_wins_over_the_file(estimated_plan_of: Callable[..., Plan], tmp_path: Path) -> None:
    """Also one that says what would be the default; the rest comes from the file."""
    words = written(tmp_path, estimated_plan_of(LEGAL), "seed = 7", "clip_norm = 2", "env = ['PATH']")
    assert run([*words, "--seed", "0"]) == 0
    found = read_settings(tmp_path / "run" / RUN_FILE)
    assert (found.seed, found.clip_norm, found.env) == (0, 2.0, ("PATH",))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("learnin_rate = 1.0", "learnin_rate (did you mean learning_rate?)"),
        ("folder = 'x'", "unknown key folder"),
        ("steps = 'many'", "steps"),
        ("steps = 0", "greater than or equal to 1"),
        ("wandb = 3", "wandb"),
        ("lr_schedule = 'zigzag'", "zigzag"),
        ("steps = ", "not valid TOML"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    line: str,
    said: str,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In three lines, before anything is written."""
    assert run(written(tmp_path, estimated_plan_of(LEGAL), line)) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert [one.split(":")[0] for one in errors.splitlines()][-3:] == ["error", "cause", "help"]
    assert not (tmp_path / "run").exists()


def test_other_versions_are_told(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may round otherwise."""
    assert run(written(tmp_path, estimated_plan_of(LEGAL), "[versions]", "torch = '1.0'")) == 0
    assert "torch 1.0 there" in capsys.readouterr().err
