"""Conditions of a shell script: true, false, or not to be told without running it.

A variable that nothing in the files sets is empty where a script asks whether it is set (``-n``, ``-z``), and
unknown where its value is compared.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping

from planner.formats.shell_values import UNKNOWN, Variables, expanded
from planner.formats.shell_words import Word

_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b, "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b,
}  # fmt: skip
_WORDS = frozenset(("=", "==", "!="))


def truth(words: tuple[Word, ...], names: Variables) -> bool | None:
    """The truth of ``[ … ]``, ``[[ … ]]`` or ``test …``; None if only a run can tell.

    >>> from planner.formats.shell_values import Text
    >>> from planner.formats.shell_words import words_of
    >>> truth(words_of('[[ "$A" == 1* && -n $B ]]'), Variables({"A": (Text("12", 1),)}))
    False
    """
    inside = [word for word in words[1:] if word.text not in ("]", "]]", "\n")]
    return _any(inside, names)


def _any(words: list[Word], names: Variables) -> bool | None:
    """Alternatives."""
    return _fold([_all(part, names) for part in _parts(words, ("||", "-o"))], stop=True)


def _all(words: list[Word], names: Variables) -> bool | None:
    """What must hold together."""
    return _fold([_one(part, names) for part in _parts(words, ("&&", "-a"))], stop=False)


def _fold(found: list[bool | None], *, stop: bool) -> bool | None:
    if stop in found:
        return stop
    return None if None in found else not stop


def _parts(words: list[Word], marks: tuple[str, ...]) -> list[list[Word]]:
    """Words between marks."""
    parts: list[list[Word]] = [[]]
    for word in words:
        if word.text in marks:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _one(words: list[Word], names: Variables) -> bool | None:
    """One comparison."""
    plain = [word for word in words if word.text not in ("(", ")")]
    if plain and plain[0].text == "!":
        found = _one(plain[1:], names)
        return None if found is None else not found
    if len(plain) == 3:
        return _compared(plain[0], plain[1].text, plain[2], names)
    if len(plain) == 2:
        return _asked(plain[0].text, plain[1], names)
    if len(plain) == 1:
        return _asked("-n", plain[0], names)
    return None


def _asked(option: str, word: Word, names: Variables) -> bool | None:
    """A test of one word."""
    if option not in ("-n", "-z"):
        return None  # what is on a disk
    before = set(names.causes)
    text = _text(word, names)
    if text == UNKNOWN and names.causes - before:  # a variable alone, which nothing sets
        names.causes.intersection_update(before)
        return option == "-z"
    return (text == "") is (option == "-z")


def _text(word: Word, names: Variables) -> str:
    return " ".join(part.text for part in expanded(word, names))


def _compared(left: Word, mark: str, right: Word, names: Variables) -> bool | None:
    """A comparison of two words."""
    first, second = _text(left, names), _text(right, names)
    if UNKNOWN in first or UNKNOWN in second:
        return None
    if mark in _WORDS:
        if len(second) > 200 or second.count("*") > 4:
            return None
        same = fnmatch.fnmatchcase(first, second) if right.text == second else first == second
        return same is not (mark == "!=")
    if mark in _NUMBERS:
        try:
            return _NUMBERS[mark](int(first[:19]), int(second[:19]))
        except ValueError:
            return None
    return None
