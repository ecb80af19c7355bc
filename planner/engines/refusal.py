"""What an engine stops at before it trains: contradictions of its own words, each with the way out.

A `Limit` is what no plan may ask for, in fields; a `Refusal` is what a file may say wrong, in words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from planner.engines.setting import Given

Stopped: TypeAlias = tuple[str, str] | None
"""What the words say, with their numbers, and what helps; None where the engine goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One thing that an engine stops at.

    Attributes:
        name: What it is about; the same word in every audit.
        words: The words that decide it; the first that is given is where it stands.
        stops: What is wrong with given words.
        kind: ``illegal`` where the engine stops, ``contradiction`` where it quietly takes one of both.
    """

    name: str
    words: tuple[str, ...]
    stops: Callable[[Given], Stopped]
    kind: Literal["illegal", "contradiction"] = "illegal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Something that a file says and its engine stops at.

    Attributes:
        name: Of the refusal.
        words: Words that decide it, as the file spells them.
        message: What the file says, in numbers.
        fix: What changes it, in the engine's words.
        kind: As of the refusal.
    """

    name: str
    words: tuple[str, ...]
    message: str
    fix: str
    kind: Literal["illegal", "contradiction"] = "illegal"


def refused_of(
    refusals: Collection[Refusal], given: Given, spelled: Mapping[str, str], hidden: Collection[str] = ()
) -> tuple[Refused, ...]:
    """What an engine stops at.

    Args:
        refusals: Of the engine.
        given: Words with values.
        spelled: How the file spells them.
        hidden: Words of the file with values that only a run knows: nothing that hangs on one is judged.
    """
    found: list[Refused] = []
    for refusal in refusals:
        if not set(hidden).isdisjoint(refusal.words):
            continue
        try:
            stopped = refusal.stops(given)
        except (ValueError, TypeError, ZeroDivisionError, OverflowError, IndexError, KeyError):
            continue  # a value that means nothing is said of its own word
        if stopped is not None:
            words = tuple(spelled[word] for word in refusal.words if word in spelled)
            message, fix = stopped
            found.append(Refused(name=refusal.name, words=words, message=message, fix=fix, kind=refusal.kind))
    return tuple(found)


def on(given: Given, word: str) -> bool:
    """Whether a word is there, and neither off nor zero."""
    return bool(given[word])


def asks(name: str, word: str, *others: str) -> Refusal:
    """A word that stands only with all of others."""

    def stops(given: Given) -> Stopped:
        lacking = [other for other in others if not on(given, other)]
        if not on(given, word) or not lacking:
            return None
        return f"{word} without {' and '.join(lacking)}", f"add {' '.join(lacking)}, or leave {word} out"

    return Refusal(name=name, words=(word, *others), stops=stops)


def excludes(name: str, word: str, *others: str) -> Refusal:
    """A word that stands with none of others."""

    def stops(given: Given) -> Stopped:
        beside = [other for other in others if on(given, other)]
        if not on(given, word) or not beside:
            return None
        return f"{word} beside {' and '.join(beside)}", f"keep {word}, or {' and '.join(beside)}"

    return Refusal(name=name, words=(word, *others), stops=stops)
