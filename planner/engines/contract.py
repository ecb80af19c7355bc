"""What an engine can be told, once: the rules it adds, the words that are written, how they are read back.

A `Contract` is the only description of an engine. The search takes its `limits`, the exporter writes its
`settings`, the reader of that engine's own files reads them back, and the priced stack takes from them which
mechanisms are on. An `EngineSetting` joins words of the engine and canonical fields
(`planner.engines.fields`) in both directions; most join one word and one field, a few join several because
the engine does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from planner.engines.even_layers import EvenLayers, as_even_as_possible
from planner.engines.fields import Facts
from planner.engines.limit import Variable
from planner.engines.refusal import Refused, WordLaw, refused_of
from planner.engines.setting import NUM_GPUS, EngineSetting, Given, Word
from planner.law import PlanLaw
from planner.plan import Recomputes
from topology.base.names import YES_NO


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """What a file says, by field.

    Attributes:
        stated: Fields that words of the file decide.
        assumed: Fields that the engine's defaults decide.
        words_of: The words, as given, that state a field.
        unknown: Words that no setting has.
        wrong: Words whose value cannot be read, with why; they count as not given.
        unpriced: Words that are given and priced as if they were not, or not quite, with what they do.
        refused: What the engine stops at.
        switches: The value of each switch that words say, by its own name: several may be priced alike.
    """

    stated: Mapping[str, Any]
    assumed: Mapping[str, Any]
    words_of: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()
    switches: Mapping[str, str] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        """All of it: what is stated, and what the engine assumes."""
        return {**self.assumed, **self.stated}


@dataclass(frozen=True, kw_only=True)
class Contract:
    """One engine.

    Attributes:
        engine: Its name, a value of ``--for`` and ``--to``.
        title: What people call it.
        package: The package whose versions are meant.
        releases: Its first and its last version that this describes.
        stacks: Profiles that price it, the usual one first.
        settings: What it can be told.
        limits: What it cannot run, as rules of the search.
        refusals: What it stops at of what it is told.
        sizes: Words without which a file leaves its model, and so the rest of its settings, to another.
        runs: Rules of the planner that it runs what breaks, each with why; nothing prices that.
        recomputes: How many layers it can be told to recompute.
        even_layers: How it fills its stages where nobody says how (`planner.engines.even_layers`).
        environment: Variables it needs.
        built_in: Mechanisms of the profile that are on without a word, each with why.
        source: Where this comes from.
        unpriced: Words that are read though nothing prices them, each with what it does to a run.
        program: What a training program of the user's own does with its main file, which it is handed by
            `planned.CONFIG`; empty where the engine brings the program.
    """

    engine: str
    title: str
    package: str
    releases: tuple[str, str]
    stacks: tuple[str, ...]
    settings: tuple[EngineSetting, ...]
    limits: tuple[PlanLaw, ...] = ()
    refusals: tuple[WordLaw, ...] = ()
    sizes: tuple[str, ...] = ()
    runs: Mapping[str, str] = field(default_factory=dict)
    recomputes: Recomputes = "all"
    even_layers: EvenLayers = as_even_as_possible
    environment: tuple[Variable, ...] = ()
    built_in: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    unpriced: Mapping[str, str] = field(default_factory=dict)
    program: str = ""

    @cached_property  # a reader of files looks into it at every setting
    def words(self) -> Mapping[str, Word]:
        """Every word by its own name."""
        return {word.name: word for setting in self.settings for word in setting.words}

    @cached_property
    def spellings(self) -> Mapping[str, Word]:
        """Every word by each of its spellings."""
        aliases = {alias: word for word in self.words.values() for alias in word.aliases}
        return {**aliases, **self.words}

    @cached_property
    def spelling_of(self) -> dict[str, str | None]:
        """The spelling of a setting by its name in a file: an audit asks for the same a hundred times."""
        return {}

    @cached_property
    def readings(self) -> dict[tuple[Any, ...], EngineReading]:
        """What was read of words, by all that decides it: an audit reads the same ones a hundred times."""
        return {}


MOST_READINGS, MOST_SPELLINGS = 1024, 4096
"""That a contract keeps."""


def write(contract: Contract, facts: Facts) -> dict[str, Any]:
    """The words that say these facts, in the order of the settings."""
    words: dict[str, Any] = {}
    for setting in contract.settings:
        words.update(setting.write(facts))
    return words


def read(
    contract: Contract,
    values: Mapping[str, Any],
    num_gpus: int | None = None,
    hidden: Collection[str] = (),
) -> EngineReading:
    """What words with values say; unknown words and unreadable values are reported, never fatal.

    Args:
        contract: The engine.
        values: Values by word, as text or as a file's own types.
        num_gpus: Processes that the launcher starts, where known.
        hidden: Words that stand there with values that only a run knows.
    """
    decided_by = (repr([*values.items()]), num_gpus, frozenset(hidden))
    reading = contract.readings.get(decided_by)
    if reading is None:
        if len(contract.readings) >= MOST_READINGS:
            contract.readings.clear()
        reading = contract.readings[decided_by] = _read(contract, values, num_gpus, hidden)
    return reading


def _read(
    contract: Contract, values: Mapping[str, Any], num_gpus: int | None, hidden: Collection[str]
) -> EngineReading:
    """Ask every setting and every refusal."""
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
    untold = {spellings[name].name for name in hidden if name in spellings} - given.keys()
    untold |= {spellings[name].name for name in values if name in spellings} - given.keys()
    known = Given(given, contract.words)
    refused = refused_of(contract.refusals, known, spelled, untold)
    return replace(_reading(contract, known, spelled, tuple(unknown), wrong), refused=refused)


def _reading(
    contract: Contract, given: Given, spelled: Mapping[str, str], unknown: tuple[str, ...], wrong: list[str]
) -> EngineReading:
    """Ask every setting what it reads."""
    stated: dict[str, Any] = {}
    assumed: dict[str, Any] = {}
    words_of: dict[str, tuple[str, ...]] = {}
    granted: tuple[str, ...] = ()
    switches: dict[str, str] = {}
    for setting in contract.settings:
        mine = tuple(spelled[word.name] for word in setting.words if word.name in spelled)
        try:
            facts, besides = setting.read(given), setting.granted(given) if mine else ()
        except _UNREADABLE as error:
            wrong.append(f"{' '.join(mine) or setting.fields[0]}: {error}"[:200])
            continue
        (stated if mine else assumed).update(facts)
        granted += besides
        if mine and setting.switch and (value := setting.says(given)):
            switches[setting.switch] = value
        words_of.update(dict.fromkeys(facts, mine) if mine else {})
    unpriced = tuple(
        f"{spelled[name]} {effect}: not priced"
        for name, effect in contract.unpriced.items()
        if given.values.get(name)
    )
    return EngineReading(
        stated=stated,
        assumed=assumed,
        words_of=words_of,
        unknown=unknown,
        wrong=tuple(wrong),
        unpriced=(*unpriced, *granted),
        switches=switches,
    )


_UNREADABLE = (
    ValueError, TypeError, ZeroDivisionError, OverflowError, IndexError, KeyError, StopIteration,
)  # fmt: skip
"""What a setting raises for a value that means nothing to it; StopIteration where it is none of several."""
_ARTICLES = {
    "flag": "a yes or no", "int": "a whole number", "float": "a number", "text": "a text",
    "list": "a list", "any": "a value",
}  # fmt: skip
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
        known = YES_NO.get(str(value).strip().lower())
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


def words_of_line(contract: Contract, line: Sequence[str]) -> dict[str, Any]:
    """Values by word of a command line's words, as argparse would take them: the last one counts.

    What is no option is left out; an unknown option has the words up to the next option.

    >>> from planner.engines.setting import flag
    >>> settings = (flag("--x", "layout.x"),)
    >>> contract = Contract(
    ...     engine="e", title="e", package="e", releases=("1", "2"), stacks=(), settings=settings
    ... )
    >>> words_of_line(contract, ["run.py", "--x", "--n=3", "--list", "a", "b"])
    {'--x': True, '--n': '3', '--list': ['a', 'b']}
    """
    words: dict[str, Any] = {}
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
            words[name] = values[0] if values else True
        elif word is not None and word.kind == "list":
            words[name] = values
        else:
            words[name] = values[0] if len(values) == 1 else (values or True)
    return words


def _is_option(text: str) -> bool:
    """Whether a word of a command line is an option, and no negative number."""
    return text.startswith("--") and len(text) > 2 and not text[2:3].isdigit()
