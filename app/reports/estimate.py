"""What `plan estimate` prints: the plan's sections for one layout, and whether it fits."""

from __future__ import annotations

from dataclasses import replace

from app.errors import NO_FEASIBLE_PLAN
from app.reports.answer import Answer, Lines
from app.reports.plan import plan_answer
from app.reports.plan_headline import cluster_of
from planner.plan import Plan
from planner.rules.check import check_memory


def estimate_answer(plan: Plan) -> Answer:
    """Everything about one given layout; the exit code says whether it fits."""
    answer = plan_answer(plan)
    violation = check_memory(plan.estimate.memory_by_stage, cluster_of(plan.request).gpu.memory_bytes)
    if violation is None:
        return answer
    lines = Lines(title="Does not fit", lines=(violation.message, violation.hint))
    return replace(answer, sections=(*answer.sections, lines), exit_code=NO_FEASIBLE_PLAN)
