"""The settings of files as words of the contract of their engine: what it reads of them is what is priced."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from planner.audit.facts import SKIPPED_PARTS, tables_switched_off
from planner.audit.words import Family
from planner.engines.contract import MOST_SPELLINGS, Contract
from planner.engines.contracts import CONTRACTS
from planner.formats.settings import LONGEST_KEPT, NOT_KNOWN, Setting


def contract_of_family(family: Family) -> Contract | None:
    """The contract of a family's engine; None where it has none."""
    return CONTRACTS.get(family.engine)


def spelled_settings(settings: Iterable[Setting], contract: Contract) -> dict[str, Setting]:
    """Settings by the spelling of a contract that they are, the first of each that is known.

    A dotted name may stand deeper than the contract has it, and the last part of one counts alone where it
    speaks for itself, as in `planner.audit.words.words_of_contract`.
    """
    given = tuple(settings)
    off = tables_switched_off(given)
    by_last_part = _by_last_part(contract.engine)
    spelled: dict[str, Setting] = {}
    for setting in given:
        path = setting.path
        if SKIPPED_PARTS.intersection(path[:-1]) or any(path[: len(table)] == table for table in off):
            continue
        name = _spelling(setting, contract, by_last_part)
        before = None if name is None else spelled.get(name)
        if name is not None and setting.value is not None and (before is None or before.value == NOT_KNOWN):
            spelled[name] = setting
    return spelled


def _spelling(setting: Setting, contract: Contract, by_last_part: Mapping[str, str]) -> str | None:
    """The spelling of a contract that a setting is."""
    kept = contract.spelling_of
    if setting.name in kept:
        return kept[setting.name]
    path, known = setting.path, contract.spellings
    parts = [".".join(path[start:]) for start in range(len(path))]
    names = (f"--{path[-1].replace('_', '-')}", parts[0], setting.name, *parts[1:])
    spelling = next((name for name in names if name in known), None) or by_last_part.get(path[-1])
    if len(setting.name) <= LONGEST_KEPT and len(kept) < MOST_SPELLINGS:
        kept[setting.name] = spelling
    return spelling


@functools.cache
def _by_last_part(engine: str) -> dict[str, str]:
    """Spellings by their last part, of those that are dotted and that no other shares."""
    contract = CONTRACTS[engine]
    names_of: dict[str, list[str]] = {}
    for spelling, word in contract.spellings.items():
        last = spelling.rpartition(".")[2]
        if "." in spelling and "_" in last:
            names_of.setdefault(last, []).append(word.name)
    return {last: names[0] for last, names in names_of.items() if len(set(names)) == 1}


def contract_words(settings: Iterable[Setting], contract: Contract) -> dict[str, Any]:
    """Values by spelling; what only a run knows is left out, as are words the contract does not know."""
    known = contract.spellings
    return {
        name: [setting.value, *setting.more] if known[name].kind == "list" and setting.more else setting.value
        for name, setting in spelled_settings(settings, contract).items()
        if setting.value != NOT_KNOWN and str(setting.value) != "None"  # as logs print what is not set
    }


def hidden_words(settings: Iterable[Setting], contract: Contract) -> set[str]:
    """Spellings of words that files give with values that only a run knows."""
    return {
        name for name, setting in spelled_settings(settings, contract).items() if setting.value == NOT_KNOWN
    }
