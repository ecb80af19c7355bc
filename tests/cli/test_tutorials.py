"""Every command of docs/tutorials is run in its order, and what the pages say of the answers holds."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.commands import plan
from tests.cli.test_scenarios import CLAIM, RELATIONS, at
from tests.counts import IS_NIGHTLY

PAGES = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*-*.md"))
STEP = re.compile(r"^```bash\n(plan .+?)\n```$(.*?)(?=^```bash|\Z)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WRITES = ("--output", "--save-dir")
NARROWED = ("--weights", "bf16", "--mode", "aggregated")
"""What the suite asks of fleets; the nightly run compares every precision and mode, as the pages are written."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_works_as_it_is_written(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an empty folder with the files that the page shows; a claim is of the answer before it."""
    text = page.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, content in FILE.findall(text):
        (tmp_path / name).write_text(content, encoding="utf-8")
    steps = STEP.findall(text)
    assert steps
    for command, after in steps:
        words = shlex.split(command)[1:]
        claims = CLAIM.findall(after)
        narrowed = NARROWED if words[0] == "serve" and not IS_NIGHTLY else ()
        done = plan(*words, *narrowed, *(() if any(flag in words for flag in WRITES) else ("--json",)))
        assert done.returncode == 0, (command, done.stderr)
        for place, relation, value in claims:
            found = at(json.loads(done.stdout), place)
            assert RELATIONS[relation](found, json.loads(value)), (command, place, found)
