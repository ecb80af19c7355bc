"""What `plan validate` says of a plan without training it: its rules, whether it fits, its launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from planner.engines.contract import Contract
from planner.engines.formats import Files
from planner.plan import FREE, Plan
from planner.rules.check import RULES
from planner.rules.verdict import broken_rules

if TYPE_CHECKING:
    from executor.validation.report import Check, Verdict

_VERDICTS: Mapping[bool | None, Verdict] = {True: "holds", False: "does not hold", None: "not checked here"}


Say = Callable[[str], None]


def _silent(_: str) -> None:
    """Nobody listens."""


def planned_checks(plan: Plan, say: Say = _silent) -> tuple[Check, ...]:
    """The verdicts of the planner; that on the rules alone where one is broken.

    `say` hears every few seconds how far an engine's own parser is.
    """
    rules = check_rules(plan)
    return (
        (rules,) if rules.verdict == "does not hold" else (rules, check_fits(plan), check_launch(plan, say))
    )


def check_rules(plan: Plan) -> Check:
    """Judge a plan by every rule of its own stack."""
    from executor.validation.report import Check

    broken = broken_rules(plan)
    if not broken:
        return Check(
            name="rules",
            verdict="holds",
            detail=f"{len(RULES)} rules of {plan.request.stack} hold",
            value=0.0,
            unit="broken rules",
        )
    return Check(
        name="rules",
        verdict="does not hold",
        detail="; ".join(f"{violation.rule}: {violation.message}" for violation in broken),
        value=float(len(broken)),
        unit="broken rules",
    )


def check_fits(plan: Plan) -> Check:
    """Whether every stage leaves as much of its GPU free as was asked for; in words the fullest."""
    from costmodel.memory.fit import fit_text
    from executor.validation.report import Check
    from planner.pricing import capacities_bytes
    from topology.base.units import format_bytes
    from topology.pools.kinds import kinds_of

    headroom, cluster = plan.problem.memory_headroom, plan.request.cluster
    rooms, memory = capacities_bytes(plan), plan.estimate.memory_by_stage
    stage = max(range(len(memory)), key=lambda each: memory[each].total_bytes / rooms[each])
    peak, room = memory[stage].total_bytes, rooms[stage]
    kind = kinds_of(cluster)[plan.kind_of_stage[stage] if plan.kind_of_stage else 0]
    budget = room * (1 - headroom)
    return Check(
        name="headroom",
        verdict="holds" if peak <= budget else "does not hold",
        detail=(
            f"{format_bytes(peak)} of {format_bytes(room)} ({kind.gpu}), "
            f"{format_bytes(budget)} with {headroom:.1%} headroom: "
            f"{fit_text(plan.estimate.out_of_memory_chance)}"
        ),
        value=peak,
        unit="B",
    )


def check_launch(plan: Plan, say: Say = _silent) -> Check:
    """Whether the engine, told the plan, would run it, and what its own parser derives from the files."""
    from executor.validation.report import Check
    from planner.engines.contracts import CONTRACTS
    from planner.launch.targets import engine_files
    from topology.base.errors import InputError

    start, engine = time.monotonic(), plan.request.engine
    if engine == FREE:
        detail = f"the plan is for no engine; {', '.join(CONTRACTS)}: plan with --for"
        return Check(name="launch", verdict="not checked here", detail=detail)
    contract = CONTRACTS[engine]
    try:
        files = engine_files(plan, contract).files
    except InputError as refused:
        return Check(name="launch", verdict="does not hold", detail=f"{refused.what}: {refused.cause}")
    accepted, words = parsed_by_engine(contract, files, plan, say)
    equal = f"{', '.join(files)} for {engine} read back as the plan"
    return Check(
        name="launch",
        verdict=_VERDICTS[accepted],
        detail=f"{equal}; {words}",
        seconds=time.monotonic() - start,
    )


def parsed_by_engine(
    contract: Contract, files: Files, plan: Plan, say: Say = _silent
) -> tuple[bool | None, str]:
    """Whether the engine's own parser takes its files, and in words; None where it is not here."""
    from executor.validation.progress import Progress
    from planner.engines.fields import facts_of
    from planner.engines.meshplan import MESHPLAN
    from planner.parsers import client

    engine = contract.engine
    if engine == MESHPLAN.engine:
        return True, "that is how it reads them"
    python = client.interpreter(engine)
    if python is None:
        return None, f"{client.PACKAGES[engine]} is not installed here: {client.HOW}"
    part = f"asking {engine}'s own parser"
    progress = Progress(say, {part: client.START_S})
    progress.begin(part)
    facts = facts_of(plan)
    case = client.case_of(contract, files, facts, plan.problem.cluster.gpu)
    (answer,) = client.answers(engine, [case], python, progress.alive)
    faults = client.faults(facts, answer)
    taken = (
        f"its own parser takes it and derives {len(answer.get('derived', ()))} of the plan's values from it"
    )
    return not faults, "; ".join(faults) or taken
