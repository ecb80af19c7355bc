"""The planner's verdict on a plan from a file: may it run, and the first check of `plan validate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.errors import NoFeasiblePlanError
from planner.plan import Plan
from planner.rules.check import RULES, check
from planner.rules.rule import Violation

if TYPE_CHECKING:
    from executor.validation.report import Check


def check_rules(plan: Plan) -> Check:
    """Judge a plan by every rule of its own stack."""
    from executor.validation.report import Check

    broken = broken_rules(plan)
    if not broken:
        return Check(name="rules", status="passed", detail=f"{len(RULES)} rules of {plan.request.stack} hold")
    return Check(
        name="rules",
        status="failed",
        detail="; ".join(f"{violation.rule}: {violation.message}" for violation in broken),
    )


def legal(plan: Plan) -> Plan:
    """The plan itself; one that breaks a rule is an error."""
    broken = broken_rules(plan)
    if broken:
        raise illegal(broken)
    return plan


def broken_rules(plan: Plan) -> tuple[Violation, ...]:
    """Every rule of its own stack that a plan breaks."""
    from costmodel.stack import stack
    from topology.builders import build

    request = plan.request
    return check(request.model, build(request.cluster), request.job, stack(request.stack), plan.layout)


def illegal(violations: tuple[Violation, ...]) -> NoFeasiblePlanError:
    """The error of a layout that breaks rules: the first in full, the others by name."""
    first, *others = violations
    more = f" (and {len(others)} more: {', '.join(v.rule for v in others)})" if others else ""
    return NoFeasiblePlanError(
        what=f"this layout is not possible: rule {first.rule}{more}", cause=first.message, fix=first.hint
    )
