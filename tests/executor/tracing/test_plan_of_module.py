"""A traced module is planned, verified, and refused where its layers would have to be named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

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


def test_a_module_is_planned_and_its_plan_is_verified(tmp_path: Path) -> None:
    """One GPU a replica and nothing that splits a sample; verify agrees, export says why it does not."""
    plan = tmp_path / "plan.json"
    module = ("--module", "published:resnet50", "--input", "8x3x224x224")
    answered = ask(*module, "--gpus", "4", "--json", "--output", str(plan))
    assert answered.returncode == 0, answered.stderr
    layout = json.loads(plan.read_text(encoding="utf-8"))["layout"]
    assert [layout[axis] for axis in ("tp", "cp", "ep")] == [1, 1, 1]
    assert ask("verify", str(plan)).returncode == 0
    refused = ask("export", str(plan), "--to", "torchtitan")
    assert (refused.returncode, "traced module" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ("--module", "published:resnet50"),
        ("--module", "published:resnet50", "--input", "8x4", "--model", "70b"),
        ("--module", "published:resnet50", "--input", "8x4", "--for", "megatron"),
    ],
)
def test_a_question_about_a_module_that_is_not_whole_is_refused(words: tuple[str, ...]) -> None:
    """Three lines, before anything is traced."""
    answered = ask(*words, "--gpus", "4")
    assert answered.returncode == 2
    assert [line.split(":")[0] for line in answered.stderr.splitlines()[-3:]] == ["error", "cause", "help"]
