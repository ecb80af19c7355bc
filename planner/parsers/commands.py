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


ASKS_FLAGS = "flags"
"""What a case of a server asks instead of what its command means: the flags that its parser knows."""


def flags_of(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Every flag that a parser knows, without hyphens, by what follows it: nothing, one value, several.

    >>> parser = argparse.ArgumentParser(add_help=False)
    >>> for words in (("--tp-size",), ("--names",)):
    ...     _ = parser.add_argument(*words, nargs={"--names": "+"}.get(words[0]))
    >>> _ = parser.add_argument("--eager", action="store_true")
    >>> flags_of(parser)
    {'switches': ['eager'], 'valued': ['tp-size'], 'many': ['names']}
    """
    actions: list[argparse.Action] = vars(parser)["_actions"]
    kinds: dict[str, list[str]] = {"switches": [], "valued": [], "many": []}
    for action in actions:
        kind = "switches" if action.nargs == 0 else "many" if action.nargs in ("+", "*") else "valued"
        kinds[kind] += [word.lstrip("-") for word in action.option_strings]
    return {kind: sorted(words) for kind, words in kinds.items()}


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
