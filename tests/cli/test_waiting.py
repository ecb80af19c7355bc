"""Whoever waits is told so again and again."""

from __future__ import annotations

import io
import re
import time

import pytest

from app import cli
from app.actions import plan
from app.cli import COMMANDS
from app.terminal import progress
from tests.patience import wait_for


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """So that the line is written again in its place."""
        return True


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was written to who waits, as it comes."""
    texts, tell = list[str](), progress.tell

    def heard(text: str) -> None:
        texts.append(text)
        tell(text)

    monkeypatch.setattr(progress, "tell", heard)
    return texts


def test_a_stream_that_is_no_terminal_hears_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: list[str]
) -> None:
    """A line at first, then one with the seconds that have passed."""
    monkeypatch.setattr(progress, "_REPEAT_S", 0.05)
    with progress.waiting("counting", patience_s=0.0):
        assert wait_for(lambda: len(told) >= 2)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == "counting …"
    assert re.fullmatch(r"counting … \d+ s", second)


@pytest.mark.clock
def test_an_answer_that_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a second is nobody's patience."""
    with progress.waiting("counting"):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_no_command_is_silent_however_slow_a_step_is(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: list[str]
) -> None:
    """Whatever takes long inside any of them, without a terminal too: a line by the fifth second, and again."""
    assert progress._REPEAT_S + progress._LOOK_S < 5.0
    monkeypatch.setattr(progress, "_REPEAT_S", 0.05)
    monkeypatch.setattr(progress, "_LOOK_S", 0.01)
    monkeypatch.setattr(
        cli, "build_app", lambda _: lambda *_words, **_options: int(not wait_for(lambda: len(told) >= 2))
    )
    assert cli.run([command]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"\d+ s$", "N s", line) for line in lines[:2]] == [f"plan {command} … N s"] * 2


def test_a_slow_estimate_says_that_it_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: list[str]
) -> None:
    """The step that prices a given layout, made slow: the line comes before the answer, which still comes."""
    priced = plan.plan_of_layout
    monkeypatch.setattr(progress, "_REPEAT_S", 0.2)
    monkeypatch.setattr(
        plan, "plan_of_layout", lambda *asked: priced(*asked) if wait_for(lambda: bool(told)) else None
    )
    assert cli.run(["estimate", "--model", "8b", "--gpus", "8", "--set", "tp=8"]) == 0
    out, err = capsys.readouterr()
    assert "plan estimate … " in err
    assert "80 % band" in out


def test_what_lives_on_is_left_in_peace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that runs until it is stopped writes no line every few seconds."""
    monkeypatch.setattr(progress, "_REPEAT_S", 0.05)
    monkeypatch.setattr(progress, "_LOOK_S", 0.01)
    with progress.never_silent("plan dash"):
        progress.lives_on()
        time.sleep(0.3)
    assert capsys.readouterr().err == ""


def test_a_line_on_a_terminal_is_as_long_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    """One that is wider would stay there, line below line, as it is written again."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(progress, "_REFRESH_S", 0.01)
    monkeypatch.setattr(progress.sys, "stderr", Terminal())
    with progress.waiting("comparing " + "fleets " * 20, patience_s=0.0):
        assert wait_for(lambda: len(told) >= 2)
    shown = told[0].removeprefix("\r\033[K")
    assert shown.startswith("comparing fleets")
    assert re.search(r"… \d+\.\d s$", shown)
    assert len(shown) <= 40
