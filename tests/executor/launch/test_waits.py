"""The table of waits says what the code waits: every bound by its name, and none is left out."""

from __future__ import annotations

import ast
import importlib
import re
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]
MODULES = {
    "turns": "executor.launch.turns",
    "meeting": "executor.comm.meeting",
    "trainer": "executor.training.trainer",
    "ahead": "executor.data.ahead",
    "agent": "executor.launch.agent",
    "rank_source": "executor.launch.rank_source",
    "membership": "executor.launch.membership",
    "node_state": "executor.launch.node_state",
    "client": "planner.parsers.client",
    "process": "executor.tracing.process",
    "validate": "executor.validation.validate",
    "by_engine": "app.actions.runs.by_engine",
}
SECONDS = {"s": 1, "min": 60}
ROW = re.compile(r"^\| .*?`(\w+)\.([A-Z_]+)`.*?\| ([\d,]+) (s|min)\b.*\|.+\|$", re.MULTILINE)


def rows() -> list[tuple[str, str, float]]:
    """Module, constant and seconds of each row."""
    text = (ROOT / "docs/executor.md").read_text(encoding="utf-8")
    table = text[text.index("**Waits.**") : text.index("Ranks connect once in every group")]
    return [(m[1], m[2], float(m[3].replace(",", "")) * SECONDS[m[4]]) for m in ROW.finditer(table)]


def test_every_row_is_read() -> None:
    """A row that this test cannot read would hold nothing."""
    text = (ROOT / "docs/executor.md").read_text(encoding="utf-8")
    table = text[text.index("**Waits.**") : text.index("Ranks connect once in every group")]
    assert len(rows()) == sum(line.startswith("| ") for line in table.splitlines()) - 1


@pytest.mark.parametrize(("module", "name", "seconds"), rows())
def test_the_table_says_what_the_code_waits(module: str, name: str, seconds: float) -> None:
    """In seconds."""
    value = getattr(importlib.import_module(MODULES[module]), name)
    assert (value.total_seconds() if isinstance(value, timedelta) else value) == seconds


ENDS = ("wait", "communicate", "join", "recv", "select", "accept")
"""Names of calls that may wait for somebody else, where a bound is an argument of theirs."""
BOUNDED_OTHERWISE = {
    "executor/launch/agent.py": "what was killed before",
    "executor/launch/rank_source.py": "a rank that was killed before",
    "planner/parsers/client.py": "what was killed before, or ends with its pipe",
    "executor/bench/local_ranks.py": "ranks that were killed before",
    "executor/data/ahead.py": "a condition that the reader's thread, bounded itself, sets",
    "executor/comm/collectives.py": "collectives, which have the groups' bound",
    "executor/model/attention/attend.py": "messages of a ring, which have the groups' bound",
    "planner/rehearsal": "servers of a rehearsal, which end with its script",
}
"""Files with calls that wait without a bound of their own, and what bounds them."""


def open_ended(path: Path) -> list[str]:
    """Calls of a file that may wait for ever."""
    return [
        f"{path.relative_to(ROOT)}:{call.lineno} {call.func.attr}"
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr in ENDS and not call.args and not call.keywords
    ]


def test_calls_that_wait_are_bounded() -> None:
    """Of a process, a thread, a socket: by an argument, or for the reason that stands above."""
    paths = [
        path
        for path in sorted((ROOT / "executor").rglob("*.py"))
        if not any(path.relative_to(ROOT).as_posix().startswith(known) for known in BOUNDED_OTHERWISE)
    ]
    assert not [call for path in paths for call in open_ended(path)]


@pytest.mark.parametrize("place", BOUNDED_OTHERWISE)
def test_every_reason_is_needed(place: str) -> None:
    """A file without such calls needs none."""
    at = ROOT / place
    assert any(open_ended(path) for path in (at.rglob("*.py") if at.is_dir() else [at]))
