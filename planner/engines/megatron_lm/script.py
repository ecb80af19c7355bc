"""Arguments of Megatron-LM as a shell file to source: its environment, then an array of words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from planner.engines.contract import Contract, words_of_line
from planner.engines.limit import Variable
from planner.engines.quoting import shell

HEAD = '# Megatron-LM arguments: source this file, then pass "${MEGATRON_ARGS[@]}" to pretrain_gpt.py'
ARRAY = "MEGATRON_ARGS=("


def render(words: Mapping[str, Any], environment: tuple[Variable, ...]) -> str:
    """The file: one line for each word and its values."""
    exports = [
        f"# {variable.why}\nexport {variable.name}={shell(variable.value)}" for variable in environment
    ]
    lines = [f"  {' '.join(shell(part) for part in parts)}" for parts in words_with_values(words)]
    return "\n".join([HEAD, *exports, ARRAY, *lines, ")"]) + "\n"


def words_with_values(words: Mapping[str, Any]) -> list[list[str]]:
    """Every word with its values, as a command line has them."""
    return [[name, *_values(value)] for name, value in words.items()]


def _values(value: Any) -> list[str]:
    if value is True:
        return []
    if isinstance(value, (list, tuple)):
        return [text for element in value for text in _values(element)]
    return [shortest_number(value)] if isinstance(value, float) else [str(value)]


def shortest_number(value: float) -> str:
    """A number in the fewest digits that say it.

    >>> shortest_number(8.0), shortest_number(1e-5), shortest_number(0.1 + 0.2)
    ('8', '1e-05', '0.30000000000000004')
    """
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def parse(text: str, contract: Contract) -> dict[str, Any]:
    """Words and values of such a file."""
    inside = text[text.index(ARRAY) + len(ARRAY) : text.rindex("\n)")]
    return words_of_line(contract, shlex.split(inside))
