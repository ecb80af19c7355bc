"""A traced module is planned, verified, and refused where its layers would have to be named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from app.cli import run

ROOT, HERE = Path(__file__).parents[3], Path(__file__).parent


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `plan` where the test's modules can be imported."""
    path = {**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}"}
    return subprocess.run(
        [sys.executable, "-m", "meshplan", *words],
        env=path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_module_is_planned_and_its_plan_is_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One GPU a replica and nothing that splits a sample; verify agrees, export says why it does not."""
    plan = tmp_path / "plan.json"
    module = ("--module", "published:resnet50", "--input", "8x3x224x224")
    answered = ask(*module, "--gpus", "4", "--json", "--output", str(plan))
    assert answered.returncode == 0, answered.stderr
    layout = json.loads(plan.read_text(encoding="utf-8"))["layout"]
    assert [layout[axis] for axis in ("tp", "cp", "ep")] == [1, 1, 1]
    assert run(["verify", str(plan)]) == 0
    assert run(["export", str(plan), "--to", "torchtitan"]) == 2
    assert "traced module" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--module", "published:resnet50"),
        ("--module", "published:resnet50", "--input", "8x4", "--model", "70b"),
        ("--module", "published:resnet50", "--input", "8x4", "--for", "megatron"),
    ],
)
def test_a_question_about_a_module_that_is_not_whole_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Three lines, before anything is traced."""
    assert run([*words, "--gpus", "4"]) == 2
    lines = capsys.readouterr().err.splitlines()[-3:]
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "help"]
