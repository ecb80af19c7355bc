"""What every name means by which a search dismisses a layout: rules, limits of engines, bounds."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from planner.engines.contracts import CONTRACTS
from planner.law import REFUSED, PlanLaw
from planner.rules.check import RULES
from planner.rules.engines import engine_rules, runners_of
from topology.base.files import read_text

TABLE: Final = Path(__file__).with_name("meanings.toml")
Kind = Literal["rule", "limit of an engine", "bound of the search"]
OF_A_BOUND: Final = "the plan is at least as good: nothing dismissed so could have beaten it"
"""What follows from a bound."""
OF_MEMORY: Final = (
    "it leaves less memory free than was asked for, or needs more than there is; it may be faster"
)
RUN_BY_SOME: Final = "it is not planned for; engines that are named below run it"
BY_LAYOUT: Final = "depends on the layout: its own message says it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """One name by which layouts are dismissed.

    Attributes:
        name: As counts of dismissed layouts and messages have it.
        kind: What it is.
        text: What it asks for, in one sentence.
        follows: What is said of a layout that breaks it.
        reads: Fields of a layout that decide it.
        source: Where it was read; empty of arithmetic.
        runners: Engines that run what breaks it, and how.
    """

    name: str
    kind: Kind
    text: str
    follows: str
    reads: tuple[str, ...] = ()
    source: str = ""
    runners: Mapping[str, str]


@lru_cache(maxsize=1)
def meanings() -> dict[str, Meaning]:
    """Every name with its meaning: rules, then limits by engine, then bounds."""
    texts = tomllib.loads(read_text(TABLE))
    named = {law.name: _of_law(law, law.name, "rule", texts["rules"]) for law in RULES}
    for engine, contract in CONTRACTS.items():
        for law, limit in zip(engine_rules(engine), contract.limits, strict=True):
            named[law.name] = _of_law(law, limit.name, "limit of an engine", texts["limits"])
    for name, text in texts["bounds"].items():
        named[name] = Meaning(
            name=name,
            kind="bound of the search",
            text=text,
            follows=OF_MEMORY if name == "memory" else OF_A_BOUND,
            runners={},
        )
    return named


def _of_law(law: PlanLaw, key: str, kind: Kind, texts: Mapping[str, str]) -> Meaning:
    """A law with its sentence."""
    follows, runners = REFUSED[law.ground] if isinstance(law.ground, str) else BY_LAYOUT, runners_of(law.name)
    return Meaning(
        name=law.name,
        kind=kind,
        text=texts[key],
        follows=RUN_BY_SOME if runners else follows,
        reads=law.reads,
        source=law.source or "",
        runners=runners,
    )
