"""What an engine stops at before it trains: contradictions of its own words, each with the way out.

A limit is a law of plans, in fields; a refusal is a law of words, of what a file may say wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from planner.engines.setting import Given
from planner.law import Law, Violation, stop

Stopped: TypeAlias = tuple[str, str] | None
"""What the words say, with their numbers, and what helps; None where the engine goes on."""
WordLaw: TypeAlias = Law[[Given], [Given]]
"""A law of an engine's words. It reads words; where it is broken stands at the first that is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A law that the words of a file break, and those that decide it, as the file spells them."""

    violation: Violation
    words: tuple[str, ...]


def refused_of(
    laws: Collection[WordLaw], given: Given, spelled: Mapping[str, str], hidden: Collection[str] = ()
) -> tuple[Refused, ...]:
    """What an engine stops at.

    Args:
        laws: Of the engine.
        given: Words with values.
        spelled: How the file spells them.
        hidden: Words of the file with values that only a run knows: nothing that hangs on one is judged.
    """
    refused: list[Refused] = []
    for law in laws:
        if not set(hidden).isdisjoint(law.reads):
            continue
        try:
            broken = law.violation(given) if law.broken(given) else None
        except (ValueError, TypeError, ZeroDivisionError, OverflowError, IndexError, KeyError):
            continue  # a value that means nothing is said of its own word
        if broken is not None:
            words = tuple(spelled[word] for word in law.reads if word in spelled)
            refused.append(Refused(violation=broken, words=words))
    return tuple(refused)


def on(given: Given, word: str) -> bool:
    """Whether a word is there, and neither off nor zero."""
    return bool(given[word])


def needs_words(name: str, word: str, *others: str) -> WordLaw:
    """A word that stands only with all of others."""

    def stops(given: Given) -> Stopped:
        lacking = [other for other in others if not on(given, other)]
        if not on(given, word) or not lacking:
            return None
        return f"{word} without {' and '.join(lacking)}", f"add {' '.join(lacking)}, or leave {word} out"

    return stop(name=name, reads=(word, *others), stops=stops)


def excludes(name: str, word: str, *others: str) -> WordLaw:
    """A word that stands with none of others."""

    def stops(given: Given) -> Stopped:
        beside = [other for other in others if on(given, other)]
        if not on(given, word) or not beside:
            return None
        return f"{word} beside {' and '.join(beside)}", f"keep {word}, or {' and '.join(beside)}"

    return stop(name=name, reads=(word, *others), stops=stops)
