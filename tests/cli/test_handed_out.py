"""Every command line that a message hands out is read by its command, and is not refused in its turn."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from app import cli
from app.entry.handed_out import handed_out
from app.entry.other_words import _table
from app.flags.program import COMMANDS, chosen_command, given_to, known_flags
from tests.counts import tries
from topology.base.errors import InputError

TYPED = Path(__file__).with_name("typed_lines.txt").read_text(encoding="utf-8").splitlines()
"""What people type whose first line is refused, of every command."""
HANDED_OUT = re.compile(r"help:  write (plan\b.*?)(?:, with(?:out)? .*|; plan .*)?")
STARTS = ("bench", "dash", "mcp", "run", "topology", "watch")
"""Commands that open or measure what is here: their flags are parsed alone."""


class AskedError(Exception):
    """The question was understood, and a search would begin."""


def ends_before_searching(patch: pytest.MonkeyPatch) -> None:
    """End a command where it has understood its question."""
    from app.actions import plan
    from planner.questions.serving import understand

    def searches(*_: Any, **__: Any) -> Any:
        raise AskedError

    for name in ("find_plan", "searched_plan", "finished_plan", "given_plan"):
        patch.setattr(plan, name, searches)
    understood = understand.understand_serving
    patch.setattr(understand, "understand_serving", lambda flags, **more: searches(understood(flags, **more)))


def refusal(line: str, capfd: pytest.CaptureFixture[str]) -> str:
    """What a command says of a line that it does not answer; "" where it answers or begins a search."""
    words = shlex.split(line)[1:]
    chosen = chosen_command(words)
    if chosen in STARTS:
        given_to(chosen, words[1:])
        return ""
    try:
        with pytest.MonkeyPatch.context() as patch:
            ends_before_searching(patch)
            code = cli._dispatch(words)
    except AskedError:
        return ""
    except InputError as error:
        return "" if "does not exist" in error.what or "no such" in error.cause.lower() else str(error)
    finally:
        capfd.readouterr()
    return "" if code == 0 else f"exit code {code}"


@pytest.mark.parametrize("typed", TYPED[:: tries(12, 1)])
def test_a_line_that_is_handed_out_is_read(
    typed: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The whole list is of the nightly run."""
    monkeypatch.chdir(tmp_path)
    assert cli.run(shlex.split(typed)) == 2
    told = capfd.readouterr().err.splitlines()[-1]
    matched = HANDED_OUT.fullmatch(told)
    for line in matched[1].split(" && ") if matched else ():
        placed = line.replace("FILE…", "a.json").replace("FILE...", "a.txt")
        assert refusal(placed, capfd) == "", (typed, line)


def test_most_lines_are_given_a_command(capfd: pytest.CaptureFixture[str]) -> None:
    """Of what has a meaning here, nine of ten are; others are told what helps."""
    tried = TYPED[:: tries(24, 1)]
    given = 0
    for typed in tried:
        cli.run(shlex.split(typed))
        given += bool(HANDED_OUT.fullmatch(capfd.readouterr().err.splitlines()[-1]))
    assert len(TYPED) >= 150
    assert given >= 0.7 * len(tried)


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        ("plan --model 70b", "plan --model 70b --gpus 32, with 32 GPUs for example"),
        ("plan --model 13b --gpus 8", "plan --model llama-2-13b --gpus 8, with llama-2-13b for example"),
        ("plan --model 70b --gpus 8, without x", "plan --model 70b --gpus 8, without x"),
        (
            "plan --model 13b --gpus 32, with 32 GPUs for example",
            "plan --model llama-2-13b --gpus 32, with llama-2-13b and 32 GPUs for example",
        ),
    ],
)
def test_a_line_is_made_whole(line: str, whole: str) -> None:
    """What a question lacks, and a name that several models have, are filled in and said."""
    assert handed_out(line) == whole


@pytest.mark.parametrize(
    "line",
    [
        "plan bench nccl",
        "plan gpus hours 70b",
        "plan --model 70b --gpus 32 --tp 8",
        "plan --model 71c --gpus 32",
        "plan --model 70b --gpus 32 --for lmdeploy",
        "plan --model 70b --gpus 32 --set layout.nothing=1",
        "plan explain slow",
        "plan models h100",
        "plan audit torchrun train.py",
        "plan export plan.json --to vllm",
        "plan --model 70b --model 8b --gpus 8",
    ],
)
def test_a_line_that_would_be_refused_is_not_handed_out(line: str) -> None:
    """By its parser, by a name that is none, by a setting, or by a word in a file's place."""
    with pytest.raises(InputError):
        handed_out(line)


def test_flags_that_advice_names_exist() -> None:
    """What is told in place of a flag names flags and commands of ours alone."""
    for table in ("train-instead", "serve-instead"):
        known = {*known_flags(table.removesuffix("-instead")), "--machines"}
        for text in _table()[table]:
            assert {*re.findall(r"--[a-z][\w-]*", text)} <= known, text
            assert {*re.findall(r"\bplan ([a-z]+)", text)} <= {*COMMANDS}, text


@pytest.mark.parametrize("word", ["x" * 5000, "9" * 400, "org/nothing-here", "at req/s", "\\x00"])
def test_no_word_is_asked_of_the_hub_or_breaks_a_path(
    word: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is too long is no file, and one with a slash is no download."""
    from costmodel.models import catalog

    monkeypatch.setattr(catalog, "_of_repository", lambda name: pytest.fail(f"the hub was asked of {name}"))
    for line in (["audit", word, "--tp", "4"], [*word.split(), "on", "32", "h100"], ["profile", word]):
        assert cli.run(line) == 2
    capfd.readouterr()
