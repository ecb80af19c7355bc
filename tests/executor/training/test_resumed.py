"""A folder's run goes on as it began: other data, numbers or samples are refused, and nothing is overwritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from app.cli import run
from costmodel.updates.adapters import Adapter
from executor.training.manifest import MANIFEST, Manifest, folder_of_step
from executor.training.settings import CHECKPOINTS, RUN_FILE, write_json
from planner.plan import Plan
from tests.executor.training.test_commands import LEGAL, run_words

LENGTH = 3000


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Tokens that TINY has."""
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 259, LENGTH))
    return tmp_path / "a.npy"


def adapted(plan: Plan) -> Plan:
    """The plan, of an adapter."""
    return replace(
        plan,
        request=replace(plan.request, job=replace(plan.request.job, adapter=Adapter(rank=4))),
    )


def checkpointed(folder: Path, step: int) -> None:
    """Leave what says that a run has reached a step."""
    made = folder_of_step(folder / CHECKPOINTS, step)
    made.mkdir(parents=True)
    write_json(made / MANIFEST, Manifest(step=step, samples=8 * step, files=(), torch_version="2"))


def state_of(folder: Path) -> dict[str, bytes]:
    """Every file of a run's folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The three lines of a start that is refused and leaves the folder as it is."""
    before = state_of(folder)
    capsys.readouterr()
    assert run([*words, "--dry-run"]) == 2
    assert state_of(folder) == before
    said = capsys.readouterr().err.splitlines()[-3:]
    assert [line.partition(":")[0] for line in said] == ["error", "cause", "help"]
    return said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--data is not what"),  # forgotten: random tokens would be trained on
        (("--data", "OTHER"), "--data is not what"),
        (("--data", "DATA", "--seed", "7"), "--seed is not what"),
        (("--data", "DATA", "--fp32"), "the precision (--fp32) is not what"),
        (("--data", "DATA", "--document-end", "3"), "--document-end is not what"),
        (("--data", "DATA", "--steps", "3"), "further than --steps"),
    ],
)
def test_a_run_goes_on_with_what_it_began_with(
    flags: tuple[str, ...],
    said: str,
    tokens: Path,
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Once there is a checkpoint; rates and a greater number of steps may change, which is told."""
    folder = tmp_path / "run"
    words = run_words(tmp_path, estimated_plan_of(LEGAL), folder)
    assert run([*words, "--data", str(tokens), "--steps", "4", "--dry-run"]) == 0
    checkpointed(folder, 4)
    np.save(tmp_path / "b.npy", np.load(tokens))
    names = {"DATA": str(tokens), "OTHER": str(tmp_path / "b.npy")}
    assert said in refused([*words, *(names.get(flag, flag) for flag in flags)], folder, capsys)[0]
    longer = ("--data", str(tokens), "--steps", "6", "--learning-rate", "1e-3")
    assert run([*words, *longer, "--dry-run"]) == 0
    assert "goes on with steps 6 (4 before), learning_rate 0.001 (0.0003 before)" in capsys.readouterr().err


def test_before_there_is_a_checkpoint_all_may_change(
    tokens: Path, estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Nothing would be lost or mixed."""
    words = run_words(tmp_path, estimated_plan_of(LEGAL), tmp_path / "run")
    assert run([*words, "--data", str(tokens), "--dry-run"]) == 0
    assert run([*words, "--seed", "3", "--dry-run"]) == 0


def test_data_that_have_moved_are_the_same(
    tokens: Path, estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By their name, and gone from where they were; which is told."""
    words = run_words(tmp_path, estimated_plan_of(LEGAL), tmp_path / "run")
    assert run([*words, "--data", str(tokens), "--dry-run"]) == 0
    checkpointed(tmp_path / "run", 4)
    (tmp_path / "there").mkdir()
    moved = tokens.rename(tmp_path / "there" / "a.npy")
    assert run([*words, "--data", str(moved), "--dry-run"]) == 0
    assert f"--data was {tokens} when the run began, which is gone" in capsys.readouterr().err


def test_another_global_batch_is_refused(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step's samples are counted from its number: some would be left out."""
    folder = tmp_path / "run"
    assert run([*run_words(tmp_path, estimated_plan_of(LEGAL), folder), "--dry-run"]) == 0
    checkpointed(folder, 4)
    words = run_words(tmp_path, estimated_plan_of(LEGAL, batch=16), folder)
    assert f"{folder} began with 8, 16 now" in refused(words, folder, capsys)[1]


def test_an_adapter_goes_on_upon_its_own_base(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checkpoints hold its matrices alone; full training has all values in them."""
    plan = estimated_plan_of(LEGAL)
    (tmp_path / "base").mkdir()
    for one, differs in ((adapted(plan), True), (plan, False)):
        folder = tmp_path / f"run{differs}"
        words = [*run_words(tmp_path, one, folder), "--accept-changes"]
        assert run([*words, "--pretrained", str(tmp_path / "base"), "--dry-run"]) == 0
        checkpointed(folder, 4)
        if differs:
            assert "--pretrained is not what" in refused(words, folder, capsys)[0]
        else:
            assert run([*words, "--dry-run"]) == 0


def test_full_training_does_not_overwrite_an_adapter(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its plan is what says how its checkpoints are read."""
    plan, folder = estimated_plan_of(LEGAL), tmp_path / "run"
    assert run([*run_words(tmp_path, adapted(plan), folder), "--accept-changes", "--dry-run"]) == 0
    assert (folder / RUN_FILE).exists()
    said = refused(run_words(tmp_path, plan, folder), folder, capsys)
    assert ("run of another adapter" in said[0], "lora of rank 4 there, none here" in said[1]) == (True, True)
