"""Ask the planner, with a sign of life while it works, and turn "there is none" into the three-line error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from app.terminal.progress import waiting
from costmodel.kernels.saved import calibration_for
from planner.plan import Plan, PlanRequest, tables_of
from planner.questions.batches import MOST_TRIED, is_range, read_range, suited, upper_end
from planner.questions.flags import Flags
from planner.rules.verdict import illegal
from planner.search.given_layout import plan_of_layout
from planner.search.infeasible import Infeasible, no_plan
from planner.search.search import search
from topology.base.counts import counted

if TYPE_CHECKING:
    from planner.analysis.headroom import HeadroomPrice
    from planner.analysis.switch_effects import SwitchEffect


def find_plan(request: PlanRequest) -> Plan:
    """The best plan for a request; `NoFeasiblePlanError` when there is none."""
    answer = searched_plan(request)
    if isinstance(answer, Infeasible):
        raise no_plan(answer)
    return answer


def plan_asked(
    flags: Flags, completed: Callable[[PlanRequest], PlanRequest] = lambda request: request
) -> tuple[Plan, tuple[str, ...]]:
    """The best plan of flags, of ranges of batches or GPUs (``256..1024``) too, and what was understood.

    Args:
        flags: What was written.
        completed: Adds to every request what flags do not say.
    """
    from planner.questions.gpu_ranges import is_gpu_range
    from planner.questions.training import understand

    if is_gpu_range(flags.gpus):
        return _plan_of_gpus(flags, completed)
    if not is_range(flags.global_batch_size):
        understood = understand(flags)
        return find_plan(completed(understood.request)), understood.notes
    from planner.analysis.batches import best_of_requests, range_note

    understood = understand(replace(flags, global_batch_size=upper_end(flags.global_batch_size)))
    length = _tokens_of_a_sequence(understood.request)
    low, high = read_range(str(flags.global_batch_size), length)
    answer, tried = best_of_requests(_batches(completed(understood.request), low, high), searched_plan)
    return _with_note(answer, lambda plan: range_note(low, high, plan, tried)), understood.notes


def _tokens_of_a_sequence(request: PlanRequest) -> int:
    """Tokens that a sequence of a batch has."""
    from planner.questions.training import sample_tokens

    return sample_tokens(request.model, request.job.sequence_length)


def _batches(request: PlanRequest, low: int, high: int, most: int = MOST_TRIED) -> list[PlanRequest]:
    """A request with each batch of a range that suits its GPUs."""
    batches = suited(low, high, request.cluster.num_gpus, most)
    return [replace(request, job=replace(request.job, global_batch_size=batch)) for batch in batches]


def _plan_of_gpus(
    flags: Flags, completed: Callable[[PlanRequest], PlanRequest]
) -> tuple[Plan, tuple[str, ...]]:
    """The best plan of a range of GPUs, and of batches where they are one too."""
    from planner.analysis.batches import best_of_requests, gpus_note
    from planner.plan import RENTS_WHAT_IT_USES
    from planner.questions.gpu_ranges import read_gpu_range, suited_gpus
    from planner.questions.training import MOST_GPUS, understand

    low, high = read_gpu_range(str(flags.gpus), MOST_GPUS)
    asked = flags.global_batch_size
    whole = replace(flags, gpus=str(high), global_batch_size=upper_end(asked) if is_range(asked) else asked)
    understood = understand(whole)
    length = _tokens_of_a_sequence(understood.request)
    batches = read_range(str(asked), length) if is_range(asked) else None
    most = MOST_TRIED // 2 if batches else MOST_TRIED
    batch = understood.request.job.global_batch_size
    node = understood.request.cluster.nodes[0].gpus_per_node
    if understood.request.objective in RENTS_WHAT_IT_USES and high >= node:
        low = max(low, node)  # nodes are rented whole: a part of one costs what all of it does
    numbers = suited_gpus(low, high, batch, node, most)
    requests = []
    for number in reversed(numbers):  # where none has a plan the refusal is that of the most
        of_number = replace(whole, gpus=str(number), global_batch_size=str(batch))
        request = completed(understand(of_number).request)
        requests += _batches(request, *batches, most) if batches else [request]
    answer, tried = best_of_requests(requests, searched_plan)
    return _with_note(answer, lambda plan: gpus_note(plan, tried)), understood.notes


def _with_note(plan: Plan | Infeasible, note: Callable[[Plan], str]) -> Plan:
    """The plan of a range, with what was tried of it; `NoFeasiblePlanError` when there is none."""
    if isinstance(plan, Infeasible):
        raise no_plan(plan)
    return replace(plan, assumptions=(*plan.assumptions, note(plan)))


def headroom_of(plan: Plan) -> HeadroomPrice | None:
    """What the memory costs that a plan leaves free, by a second search; None where nothing is left free."""
    from planner.analysis.headroom import headroom_price  # a search that only the whole answer asks for

    with waiting("pricing the memory left free"):
        return headroom_price(plan, tables_of(plan))


def switch_worth_most(plan: Plan) -> SwitchEffect | None:
    """The switch that shortens the step most; None where none does, and of stages on unlike GPUs."""
    from planner.analysis.switch_effects import best_switch  # JSON does not ask for it

    return None if plan.kind_of_stage else best_switch(plan, tables_of(plan))


def searched_plan(request: PlanRequest) -> Plan | Infeasible:
    """Run the search, saying on stderr that it runs when it takes longer than half a second."""
    with waiting(f"searching {request.model.name} on {counted(request.cluster.num_gpus, 'GPU')}"):
        return search(request, calibration_for(request.cluster))


def finished_plan(request: PlanRequest) -> Plan | Infeasible:
    """Search, and run what is best to its last token where the question has one.

    One trip to a process of the dashboard's pool gives every number of a page.
    """
    from planner.campaign.finish import with_campaign_if_any  # nothing is loaded for a step alone

    answer = search(request)
    return with_campaign_if_any(answer) if isinstance(answer, Plan) else answer


def given_plan(request: PlanRequest) -> Plan:
    """The plan of the layout that a request pins; `NoFeasiblePlanError` when it breaks a rule."""
    plan = plan_of_layout(request, calibration_for(request.cluster))
    if isinstance(plan, tuple):
        raise illegal(plan)
    return plan
