"""Words of an engine for a switch: which say each of its values, and which value they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costmodel.switches.profile import value_of_fields
from costmodel.switches.switch import sets_of, switch
from planner.engines.fields import Facts
from planner.engines.setting import EngineSetting, Given, Word


def value_of_facts(name: str, facts: Facts) -> str:
    """The value of a switch that fields of a profile are; "" where they are those of none."""
    return value_of_fields(
        {each.removeprefix("stack."): value for each, value in facts.items()}, switch(name)
    )


def fields_of_value(name: str, value: str) -> dict[str, Any]:
    """The fields that a value of a switch sets, as an engine says them.

    >>> fields_of_value("compile", "off")
    {'stack.fused_elementwise': False}
    """
    sets = switch(name).value_of(value).sets
    return {f"stack.{field}": tuple(each) if isinstance(each, list) else each for field, each in sets.items()}


def switch_words(
    name: str,
    *,
    words: tuple[Word, ...],
    write: Callable[[str, Facts], Mapping[str, Any]],
    read: Callable[[Given], str | None],
    untold: Mapping[str, str] | None = None,
    granted: Callable[[Given], tuple[str, ...]] = lambda _: (),
) -> EngineSetting:
    """A setting that says values of a switch.

    Args:
        name: The switch.
        words: The words.
        write: Words that say a value; none of a value that is the engine's own, or that it cannot be told.
        read: The value that words say; None where they leave it open.
        untold: Values that no word says, with why.
        granted: What words do beside that.
    """

    def read_fields(given: Given) -> Mapping[str, Any]:
        value = read(given)
        return {} if value is None else fields_of_value(name, value)

    return EngineSetting(
        words=words,
        fields=tuple(sorted(f"stack.{field}" for field in sets_of(name))),
        write=lambda facts: write(value_of_facts(name, facts), facts),
        read=read_fields,
        switch=name,
        untold=untold or {},
        granted=granted,
        says=read,
    )
