"""Ask the planner, with a sign of life while it works, and turn "there is none" into the three-line error."""

from __future__ import annotations

from dataclasses import replace

from app.terminal.progress import waiting
from costmodel.kernels.saved import calibration_for
from planner.plan import Plan, PlanRequest
from planner.questions.flags import Flags
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


def plan_asked(flags: Flags) -> tuple[Plan, tuple[str, ...]]:
    """The best plan of flags, of a range of batches (``256..1024``) too, and what was understood."""
    from planner.questions.batches import is_range, read_range, suited
    from planner.questions.training import understand

    text = flags.global_batch_size
    if text is None or not is_range(text):
        understood = understand(flags)
        return find_plan(understood.request), understood.notes
    from planner.analysis.batches import best_of_batches, range_note

    low, high = read_range(text)
    understood = understand(replace(flags, global_batch_size=str(high)))
    batches = suited(low, high, understood.request.cluster.num_gpus)
    found, tried = best_of_batches(understood.request, batches, plan_found)
    if isinstance(found, Infeasible):
        raise no_plan(found)
    told = replace(found, assumptions=(*found.assumptions, range_note(low, high, found, tried)))
    return told, understood.notes


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
