"""`plan export` on the command line: one file, a folder, or a refusal in three lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import run
from costmodel.layout import ParallelLayout
from planner.plan import to_json
from tests.unit.planner.engines.priced import priced

LAYOUT = ParallelLayout(tp=2, pp=2, dp=2, zero_stage=1, sequence_parallel=True)


@pytest.fixture
def plan(tmp_path: Path) -> str:
    """A plan in a file."""
    path = tmp_path / "plan.json"
    path.write_text(to_json(priced(LAYOUT)), encoding="utf-8")
    return str(path)


def test_a_folder_is_written_whole_and_only_where_there_is_none(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Engine settings, scheduler file and the plan; a second time the folder is in the way."""
    folder = tmp_path / "new" / "job"
    words = ["export", plan, "--to", "megatron", "--launcher", "slurm", "--save-dir", str(folder)]
    assert run(words) == 0
    assert {"megatron_args.sh", "train.sbatch", "start.sh", "plan.json"} <= {
        path.name for path in folder.iterdir()
    }
    assert json.loads((folder / "plan.json").read_text(encoding="utf-8"))["layout"]["tp"] == 2
    assert (run(words), "there are files in it" in capsys.readouterr().err) == (2, True)


def test_a_launcher_asks_for_a_folder(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is more than one file."""
    assert run(["export", plan, "--to", "megatron", "--launcher", "slurm"]) == 2
    assert "--save-dir DIR" in capsys.readouterr().err


@pytest.mark.parametrize("launcher", ["kubeflow", "skypilot"])
def test_what_starts_an_engine_is_no_tool_of_its_own(
    launcher: str, plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is one way to it, by `--launcher`, and the refusal says it."""
    for more in ([], ["--save-dir", str(tmp_path / "job")]):
        assert run(["export", plan, "--to", launcher, *more]) == 2
        assert f"--to ENGINE --launcher {launcher} --save-dir DIR" in capsys.readouterr().err


def test_a_plan_for_another_engine_is_an_answer_that_is_no(
    plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, three lines; the nearest is written on demand, with both costs beside it."""
    assert run(["export", plan, "--to", "meshplan"]) == 1
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["error", "cause", "help"]
    assert run(["export", plan, "--to", "meshplan", "--nearest"]) == 0
    assert "the plan takes" in capsys.readouterr().err


def test_an_engine_is_named_with_a_version_that_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    """Others are refused, as is a profile that does not price it."""
    asked = ["--model", "8b", "--gpus", "8", "--json", "--top", "1"]
    assert run([*asked, "--for", "megatron@0.17"]) == 0
    assert json.loads(capsys.readouterr().out)["request"]["engine"] == "megatron"
    assert (run([*asked, "--for", "megatron@0.9"]), run([*asked, "--for", "megatron@many"])) == (2, 2)
    assert run([*asked, "--for", "torchtitan", "--stack", "megatron-core"]) == 2
    assert "--for megatron" in capsys.readouterr().err
