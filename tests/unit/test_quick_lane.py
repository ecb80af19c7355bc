"""The quick lane runs the tests that can see a change."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "quick.py"


@pytest.fixture(scope="module")
def quick() -> ModuleType:
    """The tool, from its file."""
    spec = importlib.util.spec_from_file_location(TOOL.stem, TOOL)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("planner/audit/verdict.py", "tests/unit/planner/audit/test_evidence.py"),
        ("app/commands/audit/command.py", "tests/cli/test_audit.py"),
        ("planner/formats/data/step_lines.toml", "tests/unit/planner/formats/test_step_lines.py"),
        ("executor/tracing/worker.py", "tests/executor/tracing/test_lengths.py"),
        ("tests/cli/test_counts.py", "tests/cli/test_counts.py"),
    ],
)
def test_a_change_runs_the_tests_that_see_it(quick: ModuleType, changed: str, test: str) -> None:
    """By imports, by a command's name, by a file of data, by a module that is started by its name."""
    assert (TOOL.parents[1] / changed).exists()
    assert test in quick.nearest_tests([changed])


def test_a_change_of_one_wing_leaves_others_out(quick: ModuleType) -> None:
    """And the nearest come first."""
    tests = quick.nearest_tests(["planner/audit/verdict.py"])
    assert "tests/unit/topology/test_catalog.py" not in tests
    assert tests.index("tests/unit/planner/audit/test_evidence.py") < len(tests) / 3
