"""Every name by which a layout can be dismissed has its meaning, and no meaning is of nothing."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from planner.engines.contracts import CONTRACTS
from planner.rules.check import RULES
from planner.rules.meanings import TABLE, meanings
from tests.cli.commands import plan

PLANNER = Path(__file__).parents[4] / "planner"
BOUND = re.compile(r'(?:by_bound|in_turn)\(\s*"([a-z-]+)"')


def test_the_table_has_the_names_that_exist() -> None:
    """Rules, limits of all engines, and bounds as the search counts them."""
    texts = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    assert set(texts["rules"]) == {law.name for law in RULES}
    assert set(texts["limits"]) == {law.name for contract in CONTRACTS.values() for law in contract.limits}
    folders = (PLANNER / "search", PLANNER / "space")
    sources = [path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")]
    assert set(texts["bounds"]) == {name for text in sources for name in BOUND.findall(text)} | {"memory"}
    for text in (text for table in texts.values() for text in table.values()):
        assert text[0].isupper()
        assert text.endswith(".")
        assert len(text.split()) <= 35


def test_the_names_of_an_answer_can_be_looked_up() -> None:
    """Each name of *dismissed by*; a wrong one is answered with near ones."""
    answer = plan("--model", "8b", "--gpus", "16", "--top", "1", "--full").stdout
    line = re.search(r"dismissed by +(.*?)\n\n", answer, re.DOTALL)
    assert line is not None
    names = re.findall(r"([a-z][a-z-]+) [\d,]+", line[1])
    assert len(names) >= 5
    assert set(names) <= set(meanings())
    shown = plan("rule", names[0])
    assert shown.returncode == 0
    assert " ".join(meanings()[names[0]].text.split()) in " ".join(shown.stdout.split())
    assert plan("rule", "stage-bond").returncode == 2
    assert plan("rule").stdout.count("\n") > len(meanings())
