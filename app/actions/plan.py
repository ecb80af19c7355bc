"""Ask the planner, with a sign of life while it works, and turn "there is none" into the three-line error."""

from __future__ import annotations

from app.terminal.progress import waiting
from costmodel.kernels.saved import calibration_for
from planner.plan import Plan, PlanRequest
from planner.rules.verdict import illegal
from planner.search.given_layout import plan_of_layout
from planner.search.infeasible import Infeasible, no_plan
from planner.search.search import search
from topology.base.counts import counted


def find_plan(request: PlanRequest) -> Plan:
    """The best plan for a request; `NoFeasiblePlanError` when there is none."""
    found = plan_found(request)
    if isinstance(found, Infeasible):
        raise no_plan(found)
    return found


def plan_found(request: PlanRequest) -> Plan | Infeasible:
    """Run the search, saying on stderr that it runs when it takes longer than half a second."""
    with waiting(f"searching {request.model.name} on {counted(request.cluster.num_gpus, 'GPU')}"):
        return search(request, calibration_for(request.cluster))


def given_plan(request: PlanRequest) -> Plan:
    """The plan of the layout that a request pins; `NoFeasiblePlanError` when it breaks a rule."""
    found = plan_of_layout(request, calibration_for(request.cluster))
    if isinstance(found, tuple):
        raise illegal(found)
    return found
