"""Settings of an engine: words and fields joined in both directions.

Most join one word and one field (`flag`, `value`), a few join several because the engine does; what no word
says is `fixed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from planner.engines.fields import Facts

Kind = Literal["flag", "int", "float", "text", "list", "any"]

NUM_GPUS = "num_gpus"
"""The word under which a launcher's number of processes is given to a reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of an engine: an argument, or a dotted key of a file.

    Attributes:
        name: As it is written.
        kind: What stands after it; a flag stands alone on a command line and is a boolean in a file.
        default: What the engine takes where it is absent.
        aliases: Other spellings, of older versions or other files, with the same meaning.
        states: What it says alone, for a reader of files that give no more (`planner.audit`): a field, or
            ``said.NAME`` for what decides a field only with other words.
    """

    name: str
    kind: Kind = "text"
    default: Any = None
    aliases: tuple[str, ...] = ()
    states: str = ""


class Given:
    """The words that a file gives, and the engine's defaults for the others."""

    __slots__ = ("_defaults", "values")

    def __init__(self, values: Mapping[str, Any], words: Mapping[str, Word]) -> None:
        """Take values by the names of words."""
        self.values = dict(values)
        self._defaults = words

    def __getitem__(self, name: str) -> Any:
        """What is given, or the engine's default."""
        return self.values[name] if name in self.values else self._defaults[name].default

    def __contains__(self, name: str) -> bool:
        """Whether a word is given."""
        return name in self.values

    @property
    def num_gpus(self) -> int | None:
        """Processes of the launcher, if anybody said."""
        return self.values.get(NUM_GPUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetting:
    """Words of an engine and the fields they state.

    Attributes:
        words: The words.
        fields: The fields.
        write: Values of the words that say these facts; what is the engine's default may be left out.
        read: Values of the fields that these words say; a field that they do not decide is left out.
        switch: The switch (`costmodel.switches`) whose values it says, and only those that it reads back.
        untold: Values of that switch that it does not say, with why.
        granted: What words do beside their fields, or otherwise than it is priced.
        says: The value of that switch, by its name; None where words leave it open.
    """

    words: tuple[Word, ...]
    fields: tuple[str, ...]
    write: Callable[[Facts], Mapping[str, Any]]
    read: Callable[[Given], Mapping[str, Any]]
    switch: str = ""
    untold: Mapping[str, str] = field(default_factory=dict)
    granted: Callable[[Given], tuple[str, ...]] = lambda _: ()
    says: Callable[[Given], str | None] = lambda _: None


def flag(
    name: str, stated: str, *, aliases: tuple[str, ...] = (), on: Any = True, off: Any = False
) -> EngineSetting:
    """A word that stands alone, and the field that has one value with it and another without."""
    word = Word(name=name, kind="flag", default=False, aliases=aliases, states=stated if on is True else "")
    return EngineSetting(
        words=(word,),
        fields=(stated,),
        write=lambda facts: {name: True} if facts[stated] == on else {},
        read=lambda given: {stated: on if given[name] else off},
    )


def value(
    name: str,
    stated: str,
    kind: Kind = "int",
    *,
    default: Any = None,
    aliases: tuple[str, ...] = (),
    names: Mapping[Any, Any] | None = None,
    when: Callable[[Facts], bool] | None = None,
) -> EngineSetting:
    """A word with a value that is the field's, or has another name for each value of the field.

    Args:
        name: The word.
        stated: The field.
        kind: What stands after it.
        default: The engine's, in its own words; None where it has none and leaves the field open.
        aliases: Other spellings.
        names: The engine's word for each value of the field.
        when: Where it is written; everywhere if not given.
    """
    meanings = {theirs: ours for ours, theirs in names.items()} if names else None

    def written(facts: Facts) -> Mapping[str, Any]:
        if when is not None and not when(facts):
            return {}
        ours = facts[stated]
        theirs = ours if names is None else names.get(ours)
        return {} if theirs is None else {name: theirs}

    def read_value(given: Given) -> Mapping[str, Any]:
        theirs = given[name]
        if theirs is None:
            return {}
        if meanings is None:
            return {stated: theirs}
        if theirs not in meanings:
            raise ValueError(f"{theirs!r} is none of {', '.join(map(str, meanings))}")
        return {stated: meanings[theirs]}

    return EngineSetting(
        words=(Word(name=name, kind=kind, default=default, aliases=aliases, states="" if names else stated),),
        fields=(stated,),
        write=written,
        read=read_value,
    )


def fixed(stated: str, *, always: Any) -> EngineSetting:
    """A field that the engine cannot be told: it always has this value."""
    return EngineSetting(words=(), fields=(stated,), write=lambda _: {}, read=lambda _: {stated: always})
