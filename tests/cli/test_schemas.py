"""Answers of `--json` are what the schemas of docs/schemas say: those of today, and those of older versions."""

import json
import runpy
from pathlib import Path

import pytest

from app.mcp.tools import TOOLS
from tests.cli.commands import plan
from tests.counts import cases_of_run

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "write_schemas.py"))
OLDER = Path(__file__).with_name("older_answers")
OTHERS = {
    "memory": ("405b", "--precision", "fp8"),
    "models": ("qwen3-32b",),
    "gpus": ("a100",),
    "engines": ("deepspeed",),
    "rule": ("equal-chunks",),
    "serve": ("--model", "qwen3-32b", "--gpu", "h200-sxm", "--rate", "3/s", "--tpot", "60ms"),
    "audit": (str(TOOL["FILES"] / "megatron_moe.sh"),),
    "topology": ("--gpus", "64"),
    "estimate": ("--model", "8b", "--gpus", "8", "--set", "layout.dp=8", "--set", "layout.zero_stage=3"),
}
"""Questions that no schema was written from."""
UNWRITTEN = {"accuracy", "diagnose"}
"""Commands whose answers are tables of runs, and of a trace that nobody ships."""


def problems(schema: Path, answer: object) -> list[str]:
    """What of an answer its schema does not say."""
    rules = jsonschema.Draft202012Validator(json.loads(schema.read_text(encoding="utf-8")))
    return [f"{error.json_path}: {error.message[:200]}" for error in rules.iter_errors(answer)]


def test_every_tool_of_an_agent_has_a_schema():
    """A file for each of them."""
    assert set(TOOL["QUESTIONS"]) >= set(TOOLS) - UNWRITTEN
    assert all(TOOL["file_of"](command).is_file() for command in TOOL["QUESTIONS"])


@pytest.mark.parametrize("command", sorted(OTHERS))
def test_an_answer_that_the_schema_was_not_written_from_holds_to_it(command):
    """Another model, GPU, rule, layout."""
    answer = json.loads(plan(command, *OTHERS[command], "--json").stdout)
    assert problems(TOOL["file_of"](command), answer) == []


@pytest.mark.parametrize("path", sorted(OLDER.glob("*.json")), ids=lambda path: path.stem)
def test_an_older_answer_still_holds_to_the_schema_of_its_version(path):
    """Within a version a schema only loosens."""
    assert problems(ROOT / "docs" / "schemas" / path.name, json.loads(path.read_text(encoding="utf-8"))) == []


def test_an_answer_without_a_key_is_refused():
    """A schema that allows everything would say nothing."""
    answer = json.loads(plan("memory", "8b", "--json").stdout)
    del answer["weights_bytes"]
    assert problems(TOOL["file_of"]("memory"), answer) == ["$: 'weights_bytes' is a required property"]


@pytest.mark.parametrize("command", cases_of_run(sorted(OTHERS), {*OTHERS} - {"rule", "memory"}))
def test_the_schemas_are_those_that_the_tool_writes(command):
    """After an answer changed: `python tools/write_schemas.py COMMAND`."""
    answers = [TOOL["answered"](command, words) for words in TOOL["QUESTIONS"][command]]
    written = TOOL["titled"](command, TOOL["schema_of"](answers, is_document=True))
    assert json.loads(TOOL["file_of"](command).read_text(encoding="utf-8")) == written
