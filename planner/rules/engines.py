"""Rules of engines: what the engine that a plan is for cannot be told, from its contract."""

from __future__ import annotations

import functools

from costmodel.layout import ParallelLayout
from planner.engines.contracts import CONTRACTS, engine_of_stack, said_fields, way_out
from planner.engines.limit import Limit
from planner.plan import Problem
from planner.rules.rule import Rule, Violation


@functools.cache
def engine_rules(engine: str) -> tuple[Rule, ...]:
    """The limits of an engine as rules; none for the free space."""
    contract = CONTRACTS.get(engine)
    return () if contract is None else tuple(_rule(engine, limit) for limit in contract.limits)


def _rule(engine: str, limit: Limit) -> Rule:
    """One limit as a rule, under the engine's name."""
    name = f"{engine}-{limit.name}"

    def explain(s: Problem, x: ParallelLayout) -> Violation:
        message, _ = limit.says(s, x)
        hint = way_out(limit, s, x, said_fields(s, x))
        return Violation(
            rule=name, message=message, have=0, need=1, unit="", hint=f"{hint}, or plan --for any"
        )

    return Rule(
        name=name,
        fields=limit.fields,
        broken=limit.broken,
        explain=explain,
        ground=limit.ground,
        lenient_at_one=False,
    )


def runners_of(rule: str) -> dict[str, str]:
    """Engines that run what breaks a rule of the planner, by title, and how each does it."""
    return {contract.title: contract.runs[rule] for contract in CONTRACTS.values() if rule in contract.runs}


def runs_for(s: Problem, rule: str) -> bool:
    """Whether the engine planned for, or that of the profile, runs what breaks a rule of the planner."""
    names = (s.engine, engine_of_stack(s.stack.name))
    return any(rule in CONTRACTS[name].runs for name in names if name in CONTRACTS)
