"""Laws of engines: what the engine that a plan is for cannot be told, from its contract."""

from __future__ import annotations

import functools
from dataclasses import replace

from costmodel.layout import ParallelLayout
from planner.engines.contract import Contract
from planner.engines.contracts import CONTRACTS, engine_of_stack, fixed_fields, way_out
from planner.law import PlanLaw
from planner.plan import Problem


@functools.cache
def engine_rules(engine: str) -> tuple[PlanLaw, ...]:
    """The limits of an engine under its name, with the way out; none for the free space."""
    contract = CONTRACTS.get(engine)
    return () if contract is None else tuple(_named(contract, law) for law in contract.limits)


def _named(contract: Contract, law: PlanLaw) -> PlanLaw:
    """One limit as a rule of the search."""

    def says(s: Problem, x: ParallelLayout) -> tuple[str, str]:
        hint = way_out(law, s, x, fixed_fields(s, x))
        return law.says(s, x)[0], f"{hint}, or plan --for any"

    source = law.source or contract.source
    return replace(law, name=f"{contract.engine}-{law.name}", says=says, source=source)


def runners_of(rule: str) -> dict[str, str]:
    """Engines that run what breaks a rule of the planner, by title, and how each does it."""
    return {contract.title: contract.runs[rule] for contract in CONTRACTS.values() if rule in contract.runs}


def runs_for(s: Problem, rule: str) -> bool:
    """Whether the engine planned for, or that of the profile, runs what breaks a rule of the planner."""
    names = (s.engine, engine_of_stack(s.stack.name))
    return any(rule in CONTRACTS[name].runs for name in names if name in CONTRACTS)
