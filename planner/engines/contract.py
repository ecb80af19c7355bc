"""What an engine can be told, once: the rules it adds, the words that are written, how they are read back.

A `Contract` is the only description of an engine. The search takes its `limits`, the exporter writes its
`settings`, the reader of that engine's own files reads them back, and the priced stack takes from them which
mechanisms are on. A `Setting` joins words of the engine and canonical fields (`planner.engines.fields`) in
both directions; most join one word and one field, a few join several because the engine does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
    """

    name: str
    kind: Kind = "text"
    default: Any = None
    aliases: tuple[str, ...] = ()


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
class Setting:
    """Words of an engine and the fields they state.

    Attributes:
        words: The words.
        fields: The fields.
        write: Values of the words that say these facts; what is the engine's default may be left out.
        read: Values of the fields that these words say; a field that they do not decide is left out.
    """

    words: tuple[Word, ...]
    fields: tuple[str, ...]
    write: Callable[[Facts], Mapping[str, Any]]
    read: Callable[[Given], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable that an engine needs, and why."""

    name: str
    value: str
    why: str
    needed: Callable[[Facts, Any], bool] = lambda _facts, _gpu: True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a file says, by field.

    Attributes:
        stated: Fields that words of the file decide.
        assumed: Fields that the engine's defaults decide.
        words_of: The words, as given, that state a field.
        unknown: Words that no setting has.
        wrong: Words whose value cannot be read, with why; they count as not given.
    """

    stated: Mapping[str, Any]
    assumed: Mapping[str, Any]
    words_of: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """All of it: what is stated, and what the engine assumes."""
        return {**self.assumed, **self.stated}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """One engine.

    Attributes:
        engine: Its name, a value of ``--for`` and ``--to``.
        title: What people call it.
        versions: The versions that this describes.
        stacks: Profiles that price it, the usual one first.
        settings: What it can be told.
        environment: Variables it needs.
        built_in: Mechanisms of the profile that are on without a word, each with why.
        source: Where this comes from.
    """

    engine: str
    title: str
    versions: str
    stacks: tuple[str, ...]
    settings: tuple[Setting, ...]
    environment: tuple[Variable, ...] = ()
    built_in: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    @property
    def words(self) -> dict[str, Word]:
        """Every word by its own name."""
        return {word.name: word for setting in self.settings for word in setting.words}

    @property
    def spellings(self) -> dict[str, Word]:
        """Every word by each of its spellings."""
        found = {alias: word for word in self.words.values() for alias in word.aliases}
        return found | self.words


def write(contract: Contract, facts: Facts) -> dict[str, Any]:
    """The words that say these facts, in the order of the settings."""
    found: dict[str, Any] = {}
    for setting in contract.settings:
        found.update(setting.write(facts))
    return found


def read(contract: Contract, values: Mapping[str, Any], num_gpus: int | None = None) -> Reading:
    """What words with values say; unknown words and unreadable values are reported, never fatal.

    Args:
        contract: The engine.
        values: Values by word, as text or as a file's own types.
        num_gpus: Processes that the launcher starts, where known.
    """
    spellings, given, spelled = contract.spellings, dict[str, Any](), dict[str, str]()
    unknown, wrong = [], []
    for name, value in values.items():
        word = spellings.get(name)
        if word is None:
            unknown.append(name)
            continue
        try:
            given[word.name] = typed(word, value)
            spelled[word.name] = name
        except (ValueError, TypeError, OverflowError):
            wrong.append(f"{name} {value!r:.60} is not {_ARTICLES[word.kind]}")
    if num_gpus is not None:
        given[NUM_GPUS] = num_gpus
    return _reading(contract, Given(given, contract.words), spelled, tuple(unknown), wrong)


def _reading(
    contract: Contract, given: Given, spelled: Mapping[str, str], unknown: tuple[str, ...], wrong: list[str]
) -> Reading:
    """Ask every setting what it reads."""
    stated: dict[str, Any] = {}
    assumed: dict[str, Any] = {}
    words_of: dict[str, tuple[str, ...]] = {}
    for setting in contract.settings:
        mine = tuple(spelled[word.name] for word in setting.words if word.name in spelled)
        try:
            found = setting.read(given)
        except (ValueError, TypeError, ZeroDivisionError, OverflowError, IndexError, KeyError) as error:
            wrong.append(f"{' '.join(mine) or setting.fields[0]}: {error}"[:200])
            continue
        (stated if mine else assumed).update(found)
        words_of.update(dict.fromkeys(found, mine) if mine else {})
    return Reading(stated=stated, assumed=assumed, words_of=words_of, unknown=unknown, wrong=tuple(wrong))


_ARTICLES = {
    "flag": "a yes or no", "int": "a whole number", "float": "a number", "text": "a text",
    "list": "a list", "any": "a value",
}  # fmt: skip
_YES_NO = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
LONGEST_TEXT = 20_000


def typed(word: Word, value: Any) -> Any:
    """A value as the kind of its word; a ValueError or TypeError if it is none.

    >>> typed(Word(name="--tensor-model-parallel-size", kind="int"), "8")
    8
    """
    if value is None or word.kind == "any":
        return value
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise ValueError("too long")
    if word.kind == "flag":
        known = _YES_NO.get(str(value).strip().lower())
        if known is None:
            raise ValueError("neither yes nor no")
        return known
    if word.kind == "int":
        return _whole(value)
    if word.kind == "float":
        number = float(value)
        if not math.isfinite(number):
            raise ValueError("not finite")
        return number
    if word.kind == "list":
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if isinstance(value, (list, tuple, dict)):
        raise TypeError("several values")
    return str(value)


def _whole(value: Any) -> int:
    """A whole number of at most eighteen digits."""
    if isinstance(value, bool):
        raise TypeError("a yes or no")
    number = int(value) if not isinstance(value, float) else round(value)
    if (isinstance(value, float) and number != value) or abs(number) >= 10**18:
        raise ValueError("not a count")
    return number


def flag(
    name: str, stated: str, *, aliases: tuple[str, ...] = (), on: Any = True, off: Any = False
) -> Setting:
    """A word that stands alone, and the field that has one value with it and another without."""
    word = Word(name=name, kind="flag", default=False, aliases=aliases)
    return Setting(
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
) -> Setting:
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
        found = facts[stated]
        theirs = found if names is None else names.get(found)
        return {} if theirs is None else {name: theirs}

    def told(given: Given) -> Mapping[str, Any]:
        found = given[name]
        if found is None:
            return {}
        if meanings is None:
            return {stated: found}
        if found not in meanings:
            raise ValueError(f"{found!r} is none of {', '.join(map(str, meanings))}")
        return {stated: meanings[found]}

    return Setting(
        words=(Word(name=name, kind=kind, default=default, aliases=aliases),),
        fields=(stated,),
        write=written,
        read=told,
    )


def fixed(stated: str, *, always: Any) -> Setting:
    """A field that the engine cannot be told: it always has this value."""
    return Setting(words=(), fields=(stated,), write=lambda _: {}, read=lambda _: {stated: always})


def words_of_line(contract: Contract, line: Sequence[str]) -> dict[str, Any]:
    """Values by word of a command line's words, as argparse would take them: the last one counts.

    What is no option is left out; an unknown option has the words up to the next option.

    >>> settings = (flag("--x", "layout.x"),)
    >>> contract = Contract(engine="e", title="e", versions="", stacks=(), settings=settings)
    >>> words_of_line(contract, ["run.py", "--x", "--n=3", "--list", "a", "b"])
    {'--x': True, '--n': '3', '--list': ['a', 'b']}
    """
    found: dict[str, Any] = {}
    spellings, at = contract.spellings, 0
    while at < len(line):
        name, equals, rest = line[at].partition("=")
        at += 1
        if not _is_option(name):
            continue
        values = [rest] if equals else []
        word = spellings.get(name)
        if not equals and (word is None or word.kind != "flag"):
            while at < len(line) and not _is_option(line[at]):
                values.append(line[at])
                at += 1
                if word is not None and word.kind != "list":
                    break
        if word is not None and word.kind == "flag":
            found[name] = values[0] if values else True
        elif word is not None and word.kind == "list":
            found[name] = values
        else:
            found[name] = values[0] if len(values) == 1 else (values or True)
    return found


def _is_option(text: str) -> bool:
    """Whether a word of a command line is an option, and no negative number."""
    return text.startswith("--") and len(text) > 2 and not text[2:3].isdigit()
