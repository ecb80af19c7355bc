"""What the suite tries a share of is whole in the nightly run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import counts
from tests.counts import cases_of_run

ROOT = Path(__file__).resolve().parents[2]
MARKS = ("tests.counts import", "shared_audits import", '"searched_in_nightly"')
"""Words of a file whose tests try less in the suite."""


def nightly_paths() -> tuple[Path, ...]:
    """Files and folders of tests that `make nightly` runs."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if "MESHPLAN_NIGHTLY=1" in line)
    return tuple(ROOT / word for word in line.split() if word.startswith("tests"))


def test_every_test_that_tries_a_share_is_in_the_nightly_run() -> None:
    """By what it imports; helpers are read by tests beside them."""
    paths = nightly_paths()
    sharing = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__).resolve()
        and any(mark in path.read_text(encoding="utf-8") for mark in MARKS)
    ]
    assert len(sharing) > 20
    left_out = [
        str(path.relative_to(ROOT))
        for path in sharing
        if not any(path == other or other in path.parents for other in paths)
    ]
    assert left_out == []


def test_a_schedule_runs_what_the_suite_leaves_out() -> None:
    """The workflow that runs every night calls it; random properties run there with all their cases too."""
    workflow = (ROOT / ".github" / "workflows" / "certify.yml").read_text(encoding="utf-8")
    assert "cron:" in workflow
    assert "run: make nightly" in workflow
    assert "MESHPLAN_NIGHTLY=1 python -m pytest tests/property tests/oracle" in workflow


def test_paths_of_the_nightly_run_exist() -> None:
    assert [path for path in nightly_paths() if not path.exists()] == []


def test_dear_cases_are_of_the_nightly_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite has the others, and a name that no case has is no silent gap."""
    monkeypatch.setattr(counts, "IS_NIGHTLY", False)
    assert cases_of_run("abc", "b") == ["a", "c"]
    monkeypatch.setattr(counts, "IS_NIGHTLY", True)
    assert cases_of_run("abc", "b") == ["a", "b", "c"]
    with pytest.raises(ValueError, match="no such cases"):
        cases_of_run("abc", "d")
