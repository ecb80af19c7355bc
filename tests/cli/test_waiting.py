"""Whoever waits is told so again and again."""

from __future__ import annotations

import time

import pytest

from app.terminal import progress


def test_a_stream_that_is_no_terminal_hears_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line at first, then one with the seconds that have passed."""
    monkeypatch.setattr(progress, "_AGAIN_S", 0.05)
    with progress.waiting("counting", patience_s=0.0):
        time.sleep(0.5)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert (first, second) == ("counting …", "counting … 0 s")


def test_an_answer_that_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a second is nobody's patience."""
    with progress.waiting("counting"):
        pass
    assert capsys.readouterr().err == ""
