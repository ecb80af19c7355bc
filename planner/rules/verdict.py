"""The verdict on a whole plan, such as one from a file: may it run, and if not, the error that says why."""

from __future__ import annotations

from costmodel.memory.fit import fit_text
from planner.law import REFUSED, Violation
from planner.plan import Plan
from planner.pricing import capacities_bytes
from planner.rules.check import check, check_memory
from topology.base.errors import NoFeasiblePlanError


def require_legal(plan: Plan) -> Plan:
    """The plan itself; one that breaks a rule is an error."""
    broken = broken_rules(plan)
    if broken:
        raise illegal(broken)
    return plan


def require_room(plan: Plan) -> Plan:
    """The plan itself; one of whose stages is predicted to need more than its GPUs have is an error."""
    violation = check_memory(plan.estimate.memory_by_stage, capacities_bytes(plan))
    if violation is not None:
        raise NoFeasiblePlanError(
            what=f"this plan is not run: {fit_text(plan.estimate.out_of_memory_chance)}",
            cause=violation.message,
            fix=violation.hint,
            answer=(violation,),
        )
    return plan


def broken_rules(plan: Plan) -> tuple[Violation, ...]:
    """Every rule of its own stack that a plan breaks."""
    return check(plan.problem, plan.layout)


def illegal(violations: tuple[Violation, ...]) -> NoFeasiblePlanError:
    """The error of a layout that breaks rules: the first of the strongest ground in full, others by name."""
    first, *others = sorted(violations, key=lambda violation: tuple(REFUSED).index(violation.ground))
    more = f" (and {len(others)} more: {', '.join(v.rule for v in others)})" if others else ""
    return NoFeasiblePlanError(
        what=f"{REFUSED[first.ground]}: rule {first.rule}{more}",
        cause=first.message,
        fix=first.hint,
        answer=violations,
    )
