"""Every question of the skill is answered by the tools of an agent alone, and the score tells right from wrong."""

import json
import runpy
from pathlib import Path

import pytest

from app.mcp.tools import TOOLS, words_of
from tests.cli.commands import plan
from tests.counts import cases_of_run

ROOT = Path(__file__).resolve().parents[3]
TOOL = runpy.run_path(str(ROOT / "tools" / "score_skill.py"))
TASKS = {task.id: task for task in TOOL["tasks"]()}
SAMPLE = ("bytes-01", "bytes-11", "fit-01", "fit-02", "faster-01", "illegal-01", "illegal-04", "flag-01")
"""Questions that cost little."""


def answered(task) -> object:
    """The answer that the tools give, through the schema that an agent has."""
    documents = []
    for name, given in task.calls:
        said = plan(*words_of(name, given, ROOT))
        documents.append(json.loads(said.stdout) if said.stdout.strip() else {"error": said.stderr})
    return task.read(documents)


def test_there_are_sixty_questions_and_the_skill_ships_them():
    """After one changed: `python tools/score_skill.py` without a file."""
    shipped = json.loads((ROOT / "skills" / "meshplan" / "tasks.json").read_text(encoding="utf-8"))
    assert shipped == [{"id": task.id, "question": task.question} for task in TASKS.values()]
    assert len(TASKS) == 60


def test_the_skill_names_tools_that_there_are():
    """Every tool of a question is in its table."""
    text = (ROOT / "skills" / "meshplan" / "SKILL.md").read_text(encoding="utf-8")
    named = {name for task in TASKS.values() for name, _ in task.calls}
    assert named <= set(TOOLS)
    assert all(f"`{name}`" in text for name in named)


@pytest.mark.parametrize("name", cases_of_run(sorted(TASKS), set(TASKS) - {*SAMPLE}))
def test_the_tools_alone_answer_a_question(name):
    """As the oracle has it."""
    assert TOOL["is_right"](TASKS[name], answered(TASKS[name]))


@pytest.mark.parametrize(
    ("name", "wrong"), [("bytes-01", 1), ("fit-02", "perhaps"), ("flag-01", "--bf16"), ("bytes-01", None)]
)
def test_a_wrong_answer_scores_nothing(name, wrong):
    """A number far off, another word, no number at all."""
    assert not TOOL["is_right"](TASKS[name], wrong)


def test_legal_is_as_often_asked_as_illegal():
    """Neither word is always right."""
    words = {TASKS[name].oracle() for name in TASKS if name.startswith("illegal")}
    assert words == {"legal", "illegal"}


def test_a_transcript_is_scored_by_kind(tmp_path, monkeypatch):
    """Of two answers one is right; what is not answered is wrong."""
    monkeypatch.setitem(TOOL["scores"].__globals__, "tasks", lambda: (TASKS["bytes-01"], TASKS["flag-01"]))
    answers = {"bytes-01": TASKS["bytes-01"].oracle(), "flag-01": "--bf16"}
    assert TOOL["scores"](answers) == {"bytes": (1, 1), "flag": (0, 1)}
