"""What the parsers of servers share: the words of a command, and which of them are on their way out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def command_words(case: Mapping[str, Any]) -> list[str]:
    """The words after the command's name, from the case's only file."""
    words: list[str] = json.loads(Path(next(iter(case["files"]))).read_text(encoding="utf-8"))
    return words


def refuse_deprecated(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Raise a ValueError that names the words whose action, or its help, says that it is deprecated.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--old", help="Deprecated: use --new.")
    >>> refuse_deprecated(parser, ["--new"])
    >>> refuse_deprecated(parser, ["--old"])
    Traceback (most recent call last):
    ValueError: deprecated: --old
    """
    actions: list[argparse.Action] = vars(parser)["_actions"]
    old = [
        word
        for action in actions
        if "deprecated" in f"{type(action).__name__} {(action.help or '')[:40]}".lower()
        for word in action.option_strings
        if word in words
    ]
    if old:
        raise ValueError(f"deprecated: {', '.join(old)}")
