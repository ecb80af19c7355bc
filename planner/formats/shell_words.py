"""The words of a shell script: commands, quotes, continuations, arrays and here-documents, nothing expanded.

A `Word` keeps its quotes; `planner.formats.shell_values` turns it into text. Operators (``;``, ``&&``, ``|``,
newline, parentheses) are words of their own with `operator` set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_WORDS = 20_000
"""Of one script; the longest launch script published has some three thousand."""
MOST_DEPTH = 24
"""Nested substitutions of one word."""

_OPERATORS = (
    "&>>",
    "<<<",
    "<<-",
    "&&",
    "||",
    ";;",
    ">>",
    "<<",
    ">&",
    "<&",
    "&>",
    ">|",
    ";",
    "|",
    "&",
    "(",
    ")",
    "<",
    ">",
    "\n",
)
REDIRECTIONS = frozenset(("&>>", "<<<", ">>", ">&", "<&", "&>", ">|", "<", ">"))
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_HERE = frozenset(("<<", "<<-"))


@dataclass(frozen=True, slots=True)
class Word:
    """One word as written, or an operator; an array assignment carries the words between its parentheses."""

    text: str
    line: int
    operator: bool = False
    array: tuple[Word, ...] | None = None
    here: str | None = None
    quoted: bool = False
    """Of a here-document: its delimiter is quoted, so nothing in it is expanded."""


class _Reader:
    """A place in a script."""

    def __init__(self, text: str, line: int) -> None:
        self.text, self.at, self.line = text, 0, line
        self.waiting: list[tuple[int, str, bool, bool]] = []
        """Here-documents announced on this line: index of the word, delimiter, quoted, tabs stripped."""

    def blank(self) -> None:
        """Pass blanks, continued lines and comments."""
        text = self.text
        while self.at < len(text):
            if text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
            elif text.startswith("\\\r\n", self.at):
                self.at, self.line = self.at + 3, self.line + 1
            elif text[self.at] in " \t\r":
                self.at += 1
            elif text[self.at] == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            else:
                return

    def word(self) -> str:
        """The text of one word, quotes kept."""
        start = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;&|()<>":
                break
            self.at = skipped(self.text, self.at)
        found = self.text[start : self.at]
        self.line += found.count("\n")
        return found

    def operator(self) -> str | None:
        """The operator that begins here."""
        return next((op for op in _OPERATORS if self.text.startswith(op, self.at)), None)


def skipped(text: str, at: int, depth: int = 0) -> int:
    """Where the quoted, substituted or plain piece that begins at a place ends.

    >>> skipped("'a b'c", 0), skipped("$(x)y", 0), skipped("ab", 0)
    (5, 4, 1)
    """
    char = text[at]
    if char == "\\":
        return min(len(text), at + 2)
    if char in "'`":
        end = text.find(char, at + 1)
        return len(text) if end < 0 else end + 1
    if char == '"':
        return _closed(text, at + 1, '"', depth)
    if char == "$" and at + 1 < len(text) and text[at + 1] in "({":
        return _closed(text, at + 2, ")" if text[at + 1] == "(" else "}", depth)
    return at + 1


def _closed(text: str, at: int, end: str, depth: int) -> int:
    """The place after the mark that closes what was opened before a place."""
    if depth > MOST_DEPTH:
        return len(text)
    while at < len(text):
        if text[at] == end:
            return at + 1
        if end == ")" and text[at] == "(":
            at = _closed(text, at + 1, ")", depth + 1)
        elif end == '"' and text[at] == "'":
            at += 1
        else:
            at = skipped(text, at, depth + 1)
    return len(text)


def words_of(text: str, line: int = 1) -> tuple[Word, ...]:
    r"""Every word and operator of a script, at most `MOST_WORDS`.

    >>> [word.text for word in words_of('a=1 # no\nrun "$a b" && x')]
    ['a=1', '\n', 'run', '"$a b"', '&&', 'x']
    """
    reader, found = _Reader(text, line), list[Word]()
    while len(found) < MOST_WORDS:
        reader.blank()
        if reader.at >= len(reader.text):
            break
        operator = reader.operator()
        if operator is not None:
            _take_operator(reader, operator, found)
        else:
            at = reader.line
            word = reader.word()
            array = _array(reader) if _ARRAY.fullmatch(word) and reader.operator() == "(" else None
            found.append(Word(word, at, array=array))
    return tuple(found)


def _take_operator(reader: _Reader, operator: str, found: list[Word]) -> None:
    """Add an operator; after a newline the here-documents that were announced are read."""
    found.append(Word(operator, reader.line, operator=True))
    reader.at += len(operator)
    if operator in _HERE:
        found.pop()
        reader.blank()
        delimiter = reader.word()
        plain = re.sub(r"[\\'\"]", "", delimiter)
        reader.waiting.append((len(found), plain, plain != delimiter, operator == "<<-"))
        found.append(Word("<<", reader.line, operator=True, here="", quoted=plain != delimiter))
    elif operator == "\n":
        reader.line += 1
        for index, plain, quoted, stripped in reader.waiting:
            at = reader.line
            found[index] = Word("<<", at, operator=True, here=_here(reader, plain, stripped), quoted=quoted)
        reader.waiting.clear()


def _here(reader: _Reader, delimiter: str, stripped: bool) -> str:
    """The lines of a here-document up to its delimiter."""
    lines: list[str] = []
    while reader.at < len(reader.text):
        end = reader.text.find("\n", reader.at)
        end = len(reader.text) if end < 0 else end
        line = reader.text[reader.at : end]
        reader.at, reader.line = min(len(reader.text), end + 1), reader.line + 1
        if (line.lstrip("\t") if stripped else line).rstrip("\r") == delimiter:
            break
        lines.append(line)
    return "\n".join(lines)


def _array(reader: _Reader) -> tuple[Word, ...]:
    """The words between the parentheses of an array assignment."""
    reader.at += 1
    found: list[Word] = []
    while reader.at < len(reader.text) and len(found) < MOST_WORDS:
        reader.blank()
        if reader.at >= len(reader.text):
            break
        char = reader.text[reader.at]
        if char == ")":
            reader.at += 1
            break
        if char == "\n":
            reader.at, reader.line = reader.at + 1, reader.line + 1
        elif char in ";&|(<>":
            reader.at += 1
        else:
            found.append(Word(reader.word(), reader.line))
    return tuple(found)
