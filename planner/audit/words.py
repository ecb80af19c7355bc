"""Words of every kind of launch file, and the canonical fields that they state.

A `Family` is one kind of file: the words that it is known by, and what its words mean: those of its contracts
(`planner.engines.contracts`), and from a table those that no contract has. A word is the end of a setting's
dotted name in one spelling (small letters, underscores); the longest that fits counts. Fields are those of
`planner.engines.fields`; ``said.NAME`` are facts that decide others together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.engines.contract import Contract
from planner.engines.contracts import CONTRACTS
from planner.formats.settings import snake_case
from topology.base.decode import read_toml

_FILE = Path(__file__).parent / "data" / "words.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One kind of launch file.

    Attributes:
        name: What its engine is called.
        stack: The profile that prices it; empty where none does.
        likened: Whether that is the profile of another engine, which it is only like.
        engine: Whose contract reads and writes it (`planner.engines.contracts`); empty where none does.
        marks: Any of these ends of names makes a file one of this family, together with one of `programs` if
            those are not empty.
        programs: Parts of a command's words.
        words: Its words and the field of each.
        defaults: Fields that its engine fills itself.
        usual: Fields that its engine fills itself and that are priced, though no file shows them.
        serves: Whether it serves.
        recipes: Whether its files change a recipe that they do not show.
        packages: Packages that only its files name: one of them makes a file one of this family.
        beside: Packages that other engines over the same ones name: a file with one is none of this family.
        sets: Words of its engine that its launcher or base file sets where a file does not.
        only_data: Whether its programs split a job over data alone: no better plan may split it otherwise.
        overrides: Whether what its command is told are words ``key=value``, and no flags.
        launches: Whether its words are of what runs any program: another family's file stands over it.
        lacks: Words of its engine that its launcher does not take: no change says them.
        spells: Words of its engine that it calls otherwise, in one spelling, by the engine's.
        one_queue: Fields of which one that is on needs ``CUDA_DEVICE_MAX_CONNECTIONS=1``.
        half_weights: Words with which weights are in sixteen bits, and updated so where nothing shards them.
        switches: Whether its yes-or-no flags take no value: one that is off is left out.
        rank_decides: Whether the rank of an adapter above zero switches it on, and no other word does.
        shards_half: Whether it shards such weights as they are, with no wider copy.
        reshards: The word by which its FSDP2 is told whether parameters are sharded after the forward pass.
        generates: Whether its steps generate answers beside their training: nothing of them is priced.
    """

    name: str
    stack: str = ""
    likened: bool = False
    engine: str = ""
    marks: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    usual: Mapping[str, object] = field(default_factory=dict)
    serves: bool = False
    recipes: bool = False
    packages: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    sets: Mapping[str, object] = field(default_factory=dict)
    one_queue: tuple[str, ...] = ()
    half_weights: tuple[str, ...] = ()
    shards_half: bool = False
    switches: bool = False
    rank_decides: bool = False
    lacks: tuple[str, ...] = ()
    spells: Mapping[str, str] = field(default_factory=dict)
    launches: bool = False
    overrides: bool = False
    only_data: bool = False
    reshards: str = ""
    generates: bool = False


def _groups(table: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Fields by word, of every group."""
    return {
        group: {word: stated for stated, words in fields.items() for word in words}
        for group, fields in table.items()
    }


def words_of_contract(contract: Contract) -> dict[str, str]:
    """What the words of an engine state alone, under every spelling.

    Of a dotted key the last part counts too where it speaks for itself: `seq_len`, but not `stage`.

    >>> words_of_contract(CONTRACTS["deepspeed"])["zero_optimization.stage"]
    'said.zero_stage'
    """
    fields: dict[str, str] = {}
    for spelling, word in (*contract.words.items(), *contract.spellings.items()):
        name = ".".join(map(snake_case, spelling.split(".")))
        last = name.rpartition(".")[2]
        if word.states:
            fields |= dict.fromkeys((name, *((last,) if "_" in last else ())), word.states)
    return fields


def _family(entry: dict[str, Any], groups: Mapping[str, Mapping[str, str]]) -> Family:
    """One family of the file."""
    named = entry.pop("contracts", ())
    words = {word: stated for name in named for word, stated in words_of_contract(CONTRACTS[name]).items()}
    words |= {word: stated for group in entry.pop("words") for word, stated in groups[group].items()}
    for name in ("marks", "programs", "packages", "beside", "one_queue", "half_weights", "lacks"):
        entry[name] = tuple(entry.get(name, ()))
    return Family(**entry, words=words)


_TABLE = read_toml(_FILE)
FAMILIES = tuple(_family(entry, _groups(_TABLE["words"])) for entry in _TABLE["families"])
"""In the order in which they are tried; the last reads a script's variables."""
UNKNOWN = next(family for family in FAMILIES if family.name == "an unknown engine")
"""Of a file that no family's entry point and no set of its own keys claims."""
MEGATRON_WORDS = next(family.words for family in FAMILIES if family.name == "Megatron-LM")
MACHINE_WORDS: Mapping[str, str] = _groups(_TABLE["words"])["machines"]
"""What says how many GPUs there are, whatever runs on them."""
PREFERENCE: Mapping[str, tuple[str, ...]] = {
    word: tuple(values) for word, values in _TABLE["preference"].items()
}
"""Words of steps that are more than training, with the values that say so; empty for any."""
OPTIMIZERS: Mapping[str, str] = {word: name for name, words in _TABLE["optimizers"].items() for word in words}
"""Optimizers of the cost model, by words of the Trainer and of tools over it."""
AGES: Mapping[str, tuple[Mapping[str, tuple[str, ...]], ...]] = {
    name: tuple({key: tuple(words) for key, words in age.items()} for age in ages)
    for name, ages in _TABLE["ages"].items()
}
"""Old releases by family, oldest first: `marks` are words of theirs alone, `words` those that they have."""
PARENTS: Mapping[str, Mapping[str, object]] = _TABLE["parents"]
"""What recipes state that others are made from."""


def family_named(name: str) -> Family:
    """The family of a name, the first of several."""
    return next(family for family in FAMILIES if family.name == name)


def family_of_package(text: str) -> Family | None:
    """The family of a file that takes a package which only its files take; None where none does.

    It is imported, or stands before a name of its own: ``unsloth`` alone is a word of other engines, too.
    """
    for family in FAMILIES:
        named = any(_names_package(text, name) for name in family.packages)
        if named and not any(_names_package(text, name) for name in family.beside):
            return family
    return None


def _names_package(text: str, name: str) -> bool:
    """Whether a text imports a package, or names something in it."""
    return re.search(rf"\b(?:import|from)\s+{name}\b|\b{name}\.\w", text) is not None
