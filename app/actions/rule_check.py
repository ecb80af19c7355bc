"""The first check of `plan validate`: the rules of the plan's own stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.plan import Plan
from planner.rules.check import RULES
from planner.rules.verdict import broken_rules

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
