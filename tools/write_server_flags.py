"""Write the flags of engines that serve, as their own parsers have them: `tools/write_server_flags.py`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from planner.audit.server_flags import FLAGS
from planner.parsers.client import SERVERS, answers, interpreter
from planner.parsers.commands import ASKS_FLAGS

PINS = Path(__file__).parent / "parsers"
HEAD = """\
# Flags of engines that serve, without hyphens before them, as the parser of each pinned release has them:
# `switches` take no value, `valued` one, `many` several. Written by tools/write_server_flags.py.
"""
CASE = {"asks": ASKS_FLAGS, "files": {}, "gpus": 1, "environment": {}}


def release_of(engine: str) -> str:
    """The release whose parser is asked, by its pin."""
    pins = (line for file in sorted(PINS.iterdir()) for line in file.read_text(encoding="utf-8").split("\n"))
    pin = next(line for line in pins if line.startswith(f"{SERVERS[engine]}=="))
    return pin.partition("==")[2].split()[0]


def text_of(flags: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """The file."""
    text = HEAD
    for engine, kinds in flags.items():
        text += f'\n[{engine}]\nrelease = "{release_of(engine)}"\n'
        for kind, words in kinds.items():
            listed = textwrap.wrap(", ".join(f'"{word}"' for word in words), 106, break_on_hyphens=False)
            text += "\n".join((f"{kind} = [", *(f"  {line}" for line in listed), "]")) + "\n"
    return text


def flags_of(engine: str, python: str) -> dict[str, list[str]]:
    """What the parser of an engine knows."""
    (answer,) = answers(engine, [CASE], python)
    derived: dict[str, list[str]] = answer["derived"]
    return derived


if __name__ == "__main__":
    found = {engine: flags_of(engine, python) for engine in SERVERS if (python := interpreter(engine))}
    FLAGS.write_text(text_of(found), encoding="utf-8")
