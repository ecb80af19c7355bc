"""Every example of docs/diagnose.md that shows an answer is run, and answers that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.cli import run
from tests.unit.planner.diagnose.simulated import FAULTS, simulate, write_ranks

PAGE = Path(__file__).parents[2] / "docs" / "diagnose.md"
EXAMPLE = re.compile(r"^```console\n\$ plan diagnose ([a-z-]+)/\n(.+)\n```$", re.MULTILINE)
EXAMPLES = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("folder", "verdict"), EXAMPLES)
def test_an_example_is_answered_as_the_page_says(
    folder: str, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder is called after the fault of its simulated steps."""
    (tmp_path / folder).mkdir()
    write_ranks(simulate(0, folder.replace("-", " ")), tmp_path / folder)
    assert run(["diagnose", str(tmp_path / folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == verdict
    assert len(lines) <= 40


def test_the_page_has_examples() -> None:
    assert {folder.replace("-", " ") for folder, _ in EXAMPLES} <= set(FAULTS)
    assert len(EXAMPLES) == 4
