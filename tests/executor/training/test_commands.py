"""`plan run` and `plan export` refuse before they write; a dry run leaves an earlier run as it stands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cli.documents import held_to_schema

pytest.importorskip("torch")

from app.cli import run
from costmodel.layout import ParallelLayout
from executor.launch import supervise
from executor.launch.run_lock import run_lock
from executor.launch.supervise import begin_run
from executor.training import worker
from executor.training.settings import RUN_FILE, STATUS_FILE, read_status
from executor.training.worker import RANKS_FOLDER
from planner.plan import Plan, to_json

LEGAL = ParallelLayout(dp=2, zero_stage=1)
ILLEGAL = ParallelLayout(tp=3)


def plan_file(folder: Path, plan: Plan) -> str:
    """Write a plan as `plan --json` does; its path."""
    path = folder / "wanted.json"
    path.write_text(to_json(plan), encoding="utf-8")
    return str(path)


def run_words(tmp_path: Path, plan: Plan, folder: Path) -> list[str]:
    """`plan run` of a plan on this machine's CPU, in a folder."""
    return ["run", plan_file(tmp_path, plan), "--run-dir", str(folder), "--device", "cpu"]


@pytest.mark.parametrize("command", [("run", "--device", "cpu", "--dry-run"), ("export", "--to", "slurm")])
def test_a_plan_that_breaks_a_rule_is_refused(
    command: tuple[str, ...],
    plan_of: Callable[..., Plan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In three lines with the rule's own numbers; nothing is written."""
    monkeypatch.chdir(tmp_path)
    name, *flags = command
    assert run([name, plan_file(tmp_path, plan_of(ILLEGAL)), *flags]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.split(":")[0] for line in said.err.splitlines()] == ["error", "cause", "help"]
    assert "rule attention-heads" in said.err
    assert "num_attention_heads % tp = 4 % 3 = 1, must be 0" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["wanted.json"]


def test_data_that_cannot_be_read_is_refused_before_the_run_is_written(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by a dry run."""
    absent, folder = tmp_path / "absent.npy", tmp_path / "run"
    words = run_words(tmp_path, estimated_plan_of(LEGAL), folder)
    assert run([*words, "--data", str(absent), "--dry-run"]) == 2
    assert f"error: training data {absent} cannot be read" in capsys.readouterr().err
    assert not folder.exists()
    np.save(absent, np.zeros(1000, dtype=np.int64))
    assert run([*words, "--data", str(absent), "--dry-run"]) == 0


def test_a_dry_run_leaves_how_an_earlier_run_stands(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Its status and the marks of its living ranks."""
    status, mark = tmp_path / STATUS_FILE, tmp_path / RANKS_FOLDER / "0"
    status.write_text('{"state": "finished", "step": 7}', encoding="utf-8")
    mark.parent.mkdir()
    mark.touch()
    words = run_words(tmp_path, estimated_plan_of(LEGAL), tmp_path)
    assert run([*words, "--dry-run"]) == 0
    assert status.read_text(encoding="utf-8") == '{"state": "finished", "step": 7}'
    assert mark.exists()


def test_a_run_of_another_optimizer_is_not_resumed(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checkpoints keep other things of a parameter."""
    plan = estimated_plan_of(LEGAL)
    assert run([*run_words(tmp_path, plan, tmp_path / "run"), "--dry-run"]) == 0
    muon = replace(plan, request=replace(plan.request, job=replace(plan.request.job, optimizer="muon")))
    words = run_words(tmp_path, muon, tmp_path / "run")
    assert run([*words, "--accept-changes", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert ("holds a run of another optimizer" in said, "adamw there, muon here" in said) == (True, True), (
        said
    )


def test_a_dry_run_prints_a_command_that_opens_no_door(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our own launcher, with the working directory on no path; it answers wrong input in three lines."""
    words = run_words(tmp_path, estimated_plan_of(LEGAL), tmp_path)
    assert run([*words, "--dry-run", "--json"]) == 0
    command = held_to_schema("run", capsys.readouterr().out)["command"]
    assert command == [sys.executable, "-P", "-m", "executor.launch.supervise", str(tmp_path / RUN_FILE)]
    (tmp_path / "plan.json").write_text("{}", encoding="utf-8")
    assert supervise.main(command[-1:]) == 2
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "error",
        "cause",
        "help",
    ]


def test_a_dry_run_does_not_write_into_a_run_under_way(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks that are started again would read another plan."""
    words = run_words(tmp_path, estimated_plan_of(LEGAL), tmp_path)
    with run_lock(tmp_path, pytest.fail):
        assert run([*words, "--dry-run"]) == 2
    assert f"process {os.getpid()} on" in capsys.readouterr().err
    assert not (tmp_path / RUN_FILE).exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--run-key", "absent"), "absent is no file"),
        (("--env", "TOKEN=secret"), "--env takes the name of a variable"),
        (("--env", "NOT_SET_ANYWHERE"), "not set: NOT_SET_ANYWHERE"),
        (("--export-hf", "/dev/null/x"), "/dev/null/x cannot be written"),
    ],
)
def test_a_door_that_cannot_be_opened_is_refused_before_the_run_is_written(
    flags: tuple[str, str],
    said: str,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A key that is not there, a value on the command line, a variable that is not set, weights into a file."""
    folder = tmp_path / "run"
    words = [
        "run",
        plan_file(tmp_path, estimated_plan_of(LEGAL)),
        "--run-dir",
        str(folder),
        "--device",
        "cpu",
        "--dry-run",
    ]
    assert run([*words, *flags]) == 2
    assert said in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--seed", "-5"), "-5"),
        (("--seed", "9" * 23), "--seed is more than any run counts"),
        (("--steps", "9" * 20), "--steps is more than any run counts"),
        (("--checkpoint-every", "9" * 20), "--checkpoint-every is more than any run counts"),
    ],
)
def test_numbers_that_no_rank_counts_to_are_refused(
    flags: tuple[str, str],
    said: str,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is written: ranks could not read them, or draw from them."""
    folder = tmp_path / "run"
    assert run([*run_words(tmp_path, estimated_plan_of(LEGAL), folder), *flags, "--dry-run"]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert [line.split(":")[0] for line in errors.splitlines()][-3:] == ["error", "cause", "help"]
    assert not folder.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--warmup-steps", "50"), "50 steps of warm-up, the run has 3 steps"),
        (("--lr-schedule", "wsd", "--decay-steps", "50"), "50 steps of decay, the run has 3 steps"),
        (("--profile-step", "4"), "step 4, the run has 3 steps"),
        (("--min-gpus", "3"), "at least 3 GPUs, the plan has 2"),
        (("--lr-schedule", "constant", "--min-lr", "1e-5"), "that stays at 0.0003"),
        (("--adam-eps", "0"), "give above 0"),
    ],
)
def test_flags_that_mean_nothing_here_are_refused(
    flags: tuple[str, ...],
    said: str,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They were meant to do something; an epsilon of 0 divides 0 by 0 where a gradient is none."""
    words = [*run_words(tmp_path, estimated_plan_of(LEGAL), tmp_path / "run"), "--steps", "3", "--dry-run"]
    assert run([*words, *flags]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert run([*words, "--profile-step", "3", "--warmup-steps", "3", "--min-gpus", "2"]) == 0


def test_settings_that_a_rank_cannot_read_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its launcher finds the three lines in the run's status; ranks that are started again end at once."""
    monkeypatch.delenv("MESHPLAN_LAUNCHER", raising=False)
    run_file = tmp_path / RUN_FILE
    text = json.dumps({"folder": str(tmp_path), "plan_file": "", "steps": 10**25})
    run_file.write_text(text, encoding="utf-8")
    assert worker.main([str(run_file)]) == 1
    status = read_status(tmp_path)
    assert status is not None
    assert (status.state, status.cause) == ("error", f"steps: {10**25} is too large")
    assert "steps" in capsys.readouterr().err
    assert worker.main([str(run_file)]) == 0


def test_a_run_folder_that_cannot_be_written_names_its_flag(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The help is a flag that exists."""
    taken = tmp_path / "taken"
    taken.touch()
    words = run_words(tmp_path, estimated_plan_of(LEGAL), taken)
    assert run([*words, "--dry-run"]) == 2
    assert "give --run-dir another folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["plan.json", "metrics.jsonl", ".ranks"])
def test_nothing_is_written_through_a_link_in_a_run_folder(
    name: str, estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder from somebody else may point anywhere; checkpoints alone may lie on another disk."""
    folder, precious = tmp_path / "run", tmp_path / "precious"
    folder.mkdir()
    precious.write_text(to_json(estimated_plan_of(LEGAL)), encoding="utf-8")
    before = precious.read_bytes()
    (folder / "checkpoints").symlink_to(tmp_path)
    words = [
        "run",
        plan_file(tmp_path, estimated_plan_of(LEGAL)),
        "--run-dir",
        str(folder),
        "--device",
        "cpu",
        "--dry-run",
    ]
    assert run(words) == 0
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(precious)
    assert run([*words, "--steps", "7"]) == 2
    assert f"{folder / name} is a link" in capsys.readouterr().err
    assert precious.read_bytes() == before


def test_a_real_start_forgets_the_ranks_of_an_earlier_attempt(tmp_path: Path) -> None:
    """Marks left behind would read as ranks that are lost."""
    (tmp_path / RANKS_FOLDER).mkdir()
    (tmp_path / RANKS_FOLDER / "1").touch()
    begin_run(tmp_path)
    assert not (tmp_path / RANKS_FOLDER).exists()
    assert '"running"' in (tmp_path / STATUS_FILE).read_text(encoding="utf-8")
