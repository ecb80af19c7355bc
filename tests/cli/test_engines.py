"""`plan engines` lists what plans are written for and what prices them, and the switches of one."""

import csv
import io
import json

import pytest

from app.cli import run
from costmodel.stack import stacks
from costmodel.switches.switch import switches
from planner.engines.contracts import CONTRACTS


def test_every_engine_and_preset_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """By the names of --for and --stack."""
    assert run(["engines"]) == 0
    first = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert first >= {*CONTRACTS, *stacks()}


def test_a_program_reads_engines_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    """With releases, dates and sources."""
    assert run(["engines", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {entry["name"]: tuple(entry["releases"]) for entry in document["engines"]} == {
        name: contract.releases for name, contract in CONTRACTS.items()
    }
    assert {entry["name"]: entry["as_of"] for entry in document["presets"]} == {
        name: stack.origin.as_of for name, stack in stacks().items()
    }


def test_the_switches_of_an_engine_are_listed_with_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    """A value, the others, and the flags that say it."""
    assert run(["engines", "megatron", "--json"]) == 0
    listed = {entry["switch"]: entry for entry in json.loads(capsys.readouterr().out)["switches"]}
    assert set(listed) == set(switches())
    dispatcher = listed["dispatcher"]
    assert (dispatcher["value"], "--moe-token-dispatcher-type" in dispatcher["said_by"]) == ("alltoall", True)
    assert "allgather" in dispatcher["values"]
    assert "aiter (not priced)" in listed["attention_kernel"]["values"]
    assert listed["cp_kind"]["set_by"] == "layout.cp_kind"
    assert "--main-params-dtype" in listed["master_dtype"]["said_by"]


def test_a_preset_is_described_by_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Also as rows of a table."""
    assert run(["engines", "pytorch-fsdp1", "--format", "csv"]) == 0
    rows = {row["switch"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert rows["attention_kernel"]["value"] == "triton"


def test_an_unknown_name_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """As everywhere."""
    assert run(["engines", "megatronn"]) == 2
    assert "megatron" in capsys.readouterr().err


def test_a_switch_that_is_set_is_said_under_what_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    """What each switch was taken for stands in the answer, and what was set in the question."""
    words = ["estimate", "--model", "8b", "--gpus", "8", "--set", "layout.tp=8"]
    assert (
        run([*words, "--set", "switch.attention_kernel=fa2", "--set", "switch.cp_kind=ring", "--json"]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["request"]["switches"] == {"attention_kernel": "fa2"}
    assert document["layout"]["cp_kind"] == "ring"
    (assumed,) = (text for text in document["estimate"]["assumptions"] if text.startswith("switches: "))
    assert "attention_kernel fa2" in assumed
    assert "dispatcher" not in assumed  # no experts
    assert run([*words, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["estimate"]["step_time_s"] < document["estimate"]["step_time_s"]


@pytest.mark.parametrize(
    "setting", ["switch.attention=fa2", "switch.loss=tiny", "switch.dispatcher=allgather"]
)
def test_a_switch_that_is_none_is_refused(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In three lines, with exit code 2."""
    assert run(["--model", "8b", "--gpus", "8", "--set", setting]) == 2
    lines = [line.split(":")[0] for line in capsys.readouterr().err.splitlines() if ":" in line]
    assert lines[-3:] == ["error", "cause", "help"]
