"""The planner's verdict on a plan, as the first check of `plan validate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.plan import Plan

if TYPE_CHECKING:
    from executor.validation_report import Check


def check_rules(plan: Plan) -> Check:
    """Judge a plan by every rule of its own stack."""
    from costmodel.stack import stack
    from executor.validation_report import Check
    from planner.rules import RULES, check
    from topology.builders import build

    request = plan.request
    broken = check(request.model, build(request.cluster), request.job, stack(request.stack), plan.layout)
    if not broken:
        return Check(name="rules", status="passed", detail=f"{len(RULES)} rules of {request.stack} hold")
    return Check(
        name="rules",
        status="failed",
        detail="; ".join(f"{violation.rule}: {violation.message}" for violation in broken),
    )
