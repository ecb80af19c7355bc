"""Arithmetic of ``$(( … ))``: whole numbers within bounds, and nothing that is not known."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

LARGEST = 10**18
_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]{1,15}|\d{1,18}(?![\w.]))|([A-Za-z_]\w*)|(\*\*|<=|>=|==|!=|&&|\|\||<<|>>|[-+*/%()<>?:!])|(.))"
)
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
    ("**",),
)
_OF: Mapping[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "<<": lambda a, b: a << b if 0 <= b < 64 else _unknown(),
    ">>": lambda a, b: a >> b if 0 <= b < 64 else _unknown(),
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: int(a / b) if abs(a) < 2**52 else a // b,
    "%": lambda a, b: a - b * int(a / b),
    "**": lambda a, b: a**b if 0 <= b <= 64 and abs(a) <= 10**6 else _unknown(),
}


class _UnknownNumberError(Exception):
    """The value cannot be told without running the script."""


def _unknown() -> int:
    raise _UnknownNumberError


def whole_number(text: str, value_of: Callable[[str], str | None]) -> int | None:
    """The value of an expression, None where it depends on what only a run knows.

    >>> whole_number("NODES * 8 / (TP*2)", {"NODES": "4", "TP": "2"}.get), whole_number("1/0", {}.get)
    (8, None)

    Args:
        text: The expression; dollar signs may be left out, as in bash.
        value_of: Text of a variable, None if it is not known.
    """
    tokens = []
    for match in _TOKEN.finditer(text[:1000]):
        number, name, mark, other = match.groups()
        if other is not None and other.strip():
            return None
        if number or name or mark:
            tokens.append(number or name or mark)
    try:
        reader = _Expression(tokens, value_of)
        found = reader.choice(0)
        return found if reader.at == len(tokens) else None
    except (_UnknownNumberError, ZeroDivisionError, OverflowError, RecursionError):
        return None


class _Expression:
    """A place among the tokens of an expression."""

    def __init__(self, tokens: list[str], value_of: Callable[[str], str | None]) -> None:
        self.tokens, self.value_of, self.at = tokens, value_of, 0

    def here(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def choice(self, depth: int) -> int:
        """``a ? b : c``."""
        if depth > 20:
            _unknown()
        found = self.level(0, depth)
        if self.here() != "?":
            return found
        self.at += 1
        yes = self.choice(depth + 1)
        if self.here() != ":":
            _unknown()
        self.at += 1
        no = self.choice(depth + 1)
        return yes if found else no

    def level(self, index: int, depth: int) -> int:
        """Operators of one precedence, from the left."""
        if index == len(_LEVELS):
            return self.one(depth)
        found = self.level(index + 1, depth)
        while self.here() in _LEVELS[index]:
            mark = self.here()
            self.at += 1
            found = _OF[mark](found, self.level(index + 1, depth))
            if abs(found) > LARGEST:
                _unknown()
        return found

    def one(self, depth: int) -> int:
        """A number, a variable, a sign or parentheses."""
        part = self.here()
        self.at += 1
        if part in ("-", "+", "!"):
            value = self.one(depth)
            return {"-": -value, "+": value, "!": int(not value)}[part]
        if part == "(":
            found = self.choice(depth + 1)
            if self.here() != ")":
                _unknown()
            self.at += 1
            return found
        if part[:1].isdigit():
            return int(part, 16 if part[:2] in ("0x", "0X") else 10)
        text = self.value_of(part) if part else None
        if text is None or not re.fullmatch(r"\s*-?\d{1,18}\s*", text):
            return _unknown()
        return int(text)
