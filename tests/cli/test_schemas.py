"""Answers of `--json` are what the schemas of docs/schemas say: those of today, and those of older versions."""

import json
import runpy
from pathlib import Path

import pytest

from app.flags.program import COMMANDS, parameters_of
from app.mcp.tools import TOOLS
from tests.cli.commands import plan
from tests.cli.documents import held_to_schema, problems, schema_file
from tests.counts import cases_of_run

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "write_schemas.py"))
FORMS = TOOL["forms"]()
DEAR = {
    "train",
    "serve",
    "explain",
    "verify",
    "diff",
    "sweep",
    "ladder",
    "audit",
    "models",
    "topology",
    "estimate",
}
"""Commands whose questions take long, or need plans."""
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
REFUSED = {
    "train": ("--model", "70b", "--gpus", "8"),
    "estimate": ("--model", "70b", "--gpus", "8", "--set", "layout.tp=16"),
    "explain": ("--model", "70b", "--gpus", "8"),
    "serve": ("--model", "405b", "--gpus", "1", "--rate", "1"),
    "ladder": ("--model", "70b"),
    "sweep": ("--model", "8b", "--gpus", "0"),
    "run": ("--model", "8b", "--gpus", "8", "--steps", "few"),
    "audit": ("no-such.sh",),
    "calibrate": ("--serving", "no-such.json", "--gpu", "h100"),
    "accuracy": ("no-such.csv",),
    "bench": ("--ranks", "0"),
    "models": ("no-such-model",),
    "gpus": ("no-such-gpu",),
    "rule": ("no-such-rule",),
    "topology": ("--gpu", "no-such-gpu"),
}
"""Questions without an answer."""


def test_every_tool_of_an_agent_has_a_schema():
    """A file for each of them."""
    assert set(FORMS) >= set(TOOLS)
    assert set(FORMS) >= set(TOOL["QUESTIONS"])
    assert all(TOOL["file_of"](command).is_file() for command in FORMS)
    assert all(TOOL["file_of"](command) == schema_file(command) for command in FORMS)


def test_every_command_that_writes_a_document_has_a_schema():
    """And no schema is of a command that writes none; `refusal` is of all of them."""
    writing = {
        name for name in COMMANDS if any("--json" in parameter.opts for parameter in parameters_of(name))
    }
    assert set(FORMS) - {"refusal"} == writing


@pytest.mark.parametrize("command", sorted(REFUSED))
def test_a_question_without_an_answer_has_a_document_too(command):
    """What is wrong, why and what mends it, as on stderr, beside the exit code."""
    done = plan(command, *REFUSED[command], "--json")
    document = held_to_schema("serve" if command == "serve" else "refusal", done.stdout)
    three = f"error: {document['error']}\ncause: {document['cause']}\nhelp:  {document['help']}\n"
    assert document["exit_code"] == done.returncode > 0
    assert (command == "explain") != done.stderr.endswith(three)
    assert (document["status"] == "infeasible") == (done.returncode == 1)
    assert plan(command, *REFUSED[command]).stdout == "" or command == "explain"


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


def test_an_answer_with_a_key_that_nobody_listed_is_refused():
    """Objects are closed, those inside too; a number that is a text is none."""
    answer = json.loads(plan("memory", "8b", "--json").stdout)
    file = TOOL["file_of"]("memory")
    assert len(problems(file, {**answer, "colour": "red"})) == 1
    assert len(problems(file, {**answer, "layers": [{**answer["layers"][0], "colour": "red"}]})) == 1
    assert len(problems(file, {**answer, "parameters": "8e9"})) == 1
    assert len(problems(file, {**answer, "parameters": 0.5})) == 1


@pytest.mark.parametrize("command", cases_of_run(sorted(TOOL["QUESTIONS"]), DEAR))
def test_answers_hold_to_the_schema(command, tmp_path):
    """Of unlike questions, two saved plans among them."""
    files = TOOL["saved_files"](tmp_path) if DEAR & {command} else {}
    for words in TOOL["QUESTIONS"][command]:
        answer = TOOL["answered"](command, [files.get(word, word) for word in words])
        assert problems(TOOL["file_of"](command), answer) == [], words


def test_the_schemas_are_those_that_the_tool_writes():
    """After a type changed: `python tools/write_schemas.py`."""
    for command in FORMS:
        written = json.loads(TOOL["file_of"](command).read_text(encoding="utf-8"))
        assert written == TOOL["schema_of"](command), command


def test_no_field_that_was_shipped_is_gone_or_has_another_type():
    """Within a version fields are only added: after one was, `python tools/write_schemas.py`."""
    shipped = json.loads(TOOL["SHIPPED"].read_text(encoding="utf-8"))
    assert shipped.keys() >= TOOL["shipped_fields"]().keys()
    for name, now in TOOL["shipped_fields"]().items():
        assert {path: now.get(path) for path in shipped[name]} == shipped[name], name
        assert now.keys() == shipped[name].keys(), f"{name} has fields that are not among those shipped"


def test_every_quantity_says_its_unit():
    """Seconds, bytes, dollars: in the description of every field whose name ends with one."""
    silent = [
        f"{command}: {name}"
        for command in FORMS
        for name, field in properties(TOOL["schema_of"](command))
        if name.endswith(("_s", "_bytes", "_usd", "_gib")) and "Unit: " not in field.get("description", "")
    ]
    assert silent == []


def properties(schema):
    """Every property of a schema, those inside too."""
    for key, value in schema.items():
        if key == "properties":
            yield from value.items()
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from properties(each)
