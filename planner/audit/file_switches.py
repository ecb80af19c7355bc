"""The switches that files say: shown with their place, and kept where a better plan is sought."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.switches.profile import switches_of, value_in
from costmodel.switches.switch import sets_of, switches
from planner.audit.contract_reading import contract_of, problem_as_asked, profile_reading_of
from planner.audit.contract_words import spelled_settings
from planner.audit.facts import JobFact
from planner.audit.read import Reading
from planner.audit.trainer_switches import trainer_switches
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import stack_facts, stack_with
from planner.formats.settings import Setting
from planner.plan import PlanRequest, stack_of


def switch_facts(reading: Reading, request: PlanRequest) -> Iterator[JobFact]:
    """A fact ``switch.NAME`` of every switch that words of its own decide in files."""
    parsed = profile_reading_of(reading, request)
    contract = contract_of(reading)
    if parsed is None:
        return
    facts = {each.name: each.fact for each in trainer_switches(reading) if each.is_priced}
    profile = stack_with(stack_of(request), parsed.stated)
    spelled = {} if contract is None else spelled_settings(reading.settings, contract)
    words_of = parsed.words_of if contract else {}
    of_words = {setting.switch for setting in contract.settings if setting.switch} if contract else set()
    of_words |= {EXPERT_SWITCH} if contract and request.model.is_moe else set()
    usual = stack_with(profile, parsed.assumed)
    for name, each in switches().items():
        read = {f"stack.{field}" for field in sets_of(name)} & words_of.keys() if name in of_words else set()
        words = dict.fromkeys(word for field in sorted(read) for word in words_of[field])
        settings = [spelled[word] for word in words if word in spelled]
        value = value_in(profile, each) if settings or name in facts else ""
        named = parsed.switches.get(name, "")
        if value and named in each.values and each.values[named].sets == each.values[value].sets:
            value = named  # of two that are priced alike the one that the file names
        if not value and name == EXPERT_SWITCH and name in of_words and _sets_assumed(parsed.assumed):
            why = f"{reading.family.name} has it where nothing is said"
            yield JobFact(name=f"switch.{name}", value=value_in(usual, each), how="default", source=why)
        if not value:
            continue
        fact = _fact(name, value, settings) if settings else facts[name]
        yield replace(fact, name=f"switch.{name}", value=value)


EXPERT_SWITCH = "dispatcher"
"""A switch that an engine has of every model with experts, whatever its files say: it moves every step."""


def _sets_assumed(assumed: Mapping[str, Any]) -> bool:
    """Whether an engine's own values decide how tokens reach their experts."""
    return any(f"stack.{field}" in assumed for field in sets_of(EXPERT_SWITCH))


def _fact(name: str, value: str, settings: list[Setting]) -> JobFact:
    """A fact of several words, at the first."""
    first = settings[0]
    source = " ".join(
        str(part) for setting in settings for part in (setting.name, setting.value, *setting.more)
    )
    published = first.how if not first.file else ""
    return JobFact(
        name=name, value=value, how="default" if published else "stated", line=first.line,
        source=f"{source} ({published})" if published else source, file=first.file, word=first.name,
    )  # fmt: skip


def kept_switches(reading: Reading, request: PlanRequest) -> dict[str, str]:
    """Switches of the files that a better plan of the job has too, by value.

    A mechanism of the profile that files switch off is none of them, nor is what an engine that plans the job
    could not be told.
    """
    parsed = profile_reading_of(reading, request)
    if parsed is None:
        return {}
    contract, usual = contract_of(reading), stack_of(request)
    of_words = {setting.switch for setting in contract.settings if setting.switch} if contract else set()
    names = of_words | {each.name for each in trainer_switches(reading)}
    before, values = stack_facts(usual), switches_of(usual)
    kept: dict[str, str] = {}
    for name in sorted(names - request.switches.keys()):
        fields = {f"stack.{field}" for field in sets_of(name)}
        stated = {field: value for field, value in parsed.stated.items() if field in fields}
        if any(value is False and before[field] for field, value in stated.items()):
            continue
        value = value_in(stack_with(usual, stated), switches()[name])
        if value and value != values[name] and has_words(request, name, value):
            kept[name] = value
    return kept


def has_words(request: PlanRequest, name: str, value: str) -> bool:
    """Whether the engine that plans a job has a word for a switch."""
    contract = CONTRACTS.get(request.engine)
    if contract is None:
        return True
    asked = problem_as_asked(replace(request, switches={**request.switches, name: value}))
    row = LayoutTable.from_rows([ParallelLayout()])
    return not any(bool(np.any(law.broken(asked, row))) for law in contract.limits if not law.reads)
