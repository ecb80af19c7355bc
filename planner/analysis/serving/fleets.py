"""Answer a serving question.

Fleets of every GPU kind, precision and mode contend; the best of them is the plan, the others stand beside.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from costmodel.kernels.tables import load_calibration
from costmodel.serving.simulation.load import Load
from planner.analysis.serving.contenders import (
    Contender,
    Worth,
    contenders_of,
    plan_summary,
    worth_of_plan,
    worth_showing,
)
from planner.analysis.serving.mixed_fleets import cheapest_mixed, mixed_summary
from planner.analysis.serving.processes import Each
from planner.deployment.vllm_sglang import commands
from planner.questions.serving.understand import Asked
from planner.serving.alternatives import surest
from planner.serving.answer import plan_of_fleet
from planner.serving.board import Board, enumerate_options
from planner.serving.plan import (
    LEAST_GAP,
    ROUNDING,
    SURE,
    DaringFleet,
    FleetSummary,
    ServingPlan,
    ServingRequest,
)
from planner.serving.search import (
    CertifiedFleet,
    best_run,
    check_request,
    finished_plan,
    is_closed,
    miss,
    ways_out,
    with_empty_server,
)
from planner.serving.sure import Requirement, has_runs, requirements_of
from topology.base.errors import InputError, NoFeasiblePlanError
from topology.fabric.hierarchy import Hierarchy

MOST_FOR_CHANCE = 2.0
"""Bills of the best fleet by prediction that a surer one may cost; dearer ones are told, and not proposed."""
Tell = Callable[[str], None]


def find_fleet(asked: Asked, *, tell: Tell = lambda _: None, each: Each = map) -> ServingPlan:
    """Compare every kind; raise the nearest miss when none serves the job.

    Args:
        asked: The question.
        tell: Hears how far it is.
        each: How boards are searched: one after the other, or by several processes (`by_processes`).
    """
    started = time.perf_counter()
    refused: list[tuple[ServingRequest, InputError]] = []
    fit: list[tuple[ServingRequest, Hierarchy]] = []
    for request, hierarchy in asked.requests:
        try:
            check_request(request, hierarchy.gpu)
            fit.append((request, hierarchy))
        except InputError as problem:
            refused.append((request, problem))
    search = functools.partial(_searched, trace=asked.trace, shown=asked.shown_only)
    searched, contenders = iter(each(search, fit)), list[Contender]()
    best: Contender | None = None
    for number, (request, _) in enumerate(fit, 1):
        where = f"{request.model.name} in {request.weights[0]} on {request.gpu}"
        tell(f"comparing {number} of {len(fit)}: {where}{_so_far(best)}")
        contenders += next(searched)
        served = [contender for contender in contenders if contender.proposed and contender.plan is not None]
        best = min(served, key=_worth, default=None)
    if best is None:
        raise _nearest(asked, contenders, [problem for _, problem in refused])
    tell(f"finishing {best.request.gpu} {best.request.weights[0]}")
    plan, chosen = _proposal(asked, contenders, best, started)
    beside = [
        contender
        for contender in contenders
        if not (contender.board is chosen.board and _is_mode(contender, plan))
    ]
    others = [contender.summary() for contender in beside if worth_showing(contender, contenders)]
    tell("comparing a cache of fp8")
    others += _narrower_cache(asked, contenders, chosen, plan)
    tell("comparing fleets of two GPU kinds")
    others += _mixed(asked, contenders, plan)
    dropped = list(dict.fromkeys(_dropped(request, problem.what) for request, problem in refused))
    plan = replace(plan, other_fleets=(*others, *dropped))
    return replace(plan, commands=commands(plan))


def _so_far(best: Contender | None) -> str:
    """The first answer, while others are compared: what is best of all that were."""
    if best is None or best.plan is None:
        return ""
    plan = best.plan
    fleet = f"{plan.num_gpus} × {plan.request.gpu}: {plan.label} in {plan.weights}"
    if plan.estimate.usd_per_hour is None:
        return f"; best so far {fleet}"
    return f"; best so far {fleet}, ${plan.estimate.usd_per_hour:.3g} an hour"


def _searched(
    pair: tuple[ServingRequest, Hierarchy], *, trace: Load | None, shown: Collection[str]
) -> Sequence[Contender]:
    """The contenders of one GPU kind and precision, each with its best fleet."""
    cal, (request, hierarchy) = load_calibration(), pair
    board = enumerate_options(cal, request, hierarchy)
    contenders = contenders_of(request, hierarchy, board, proposed=request.weights[0] not in shown)
    for contender in contenders:
        contender.search(cal, trace)
    return contenders


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A fleet that may be proposed, and the options that it was searched among.

    `scope` says which fleets it is the best of; empty where all options took part.
    """

    contender: Contender
    best: CertifiedFleet
    board: Board
    scope: str = ""


def _proposal(
    asked: Asked, contenders: Sequence[Contender], daring: Contender, started_s: float
) -> tuple[ServingPlan, Contender]:
    """The fleet that is proposed; beside it the best by prediction, and those that are surer but too dear."""
    if daring.plan is None:
        raise RuntimeError("a contender with a plan has a fleet")
    proposed = sorted(
        (contender for contender in contenders if contender.proposed and contender.plan is not None),
        key=_worth,
    )
    chosen, dearer = _chosen(proposed, daring, asked.trace)
    contender = chosen.contender
    plan = finished_plan(
        load_calibration(),
        contender.request,
        contender.hierarchy,
        chosen.board,
        chosen.best,
        asked.trace,
        started_s,
    )
    scope = chosen.scope or plan.optimality.scope
    if not plan.estimate.limits:
        scope = scope.partition(" whose workers")[0]  # which keep limits where some were given
    plan = replace(plan, request=contender.whole, optimality=replace(plan.optimality, scope=scope))
    beside = daring_beside(plan, daring.plan)
    surer = tuple(daring_beside(plan, other) for other in reversed(dearer) if other.chance > plan.chance)
    plan = replace(plan, surer=surer)
    return (plan if beside.saved < LEAST_GAP else replace(plan, daring=beside)), contender


def _chosen(
    proposed: Sequence[Contender], daring: Contender, trace: Load | None
) -> tuple[_Candidate, list[ServingPlan]]:
    """The cheapest measured fleet that is sure, or as sure as its bill allows; and those that are dearer.

    Chances are bought as long as they cost at most `MOST_FOR_CHANCE` bills of the best by prediction: where
    the error of the model is wide, more GPUs make nothing sure. It is proposed itself where it is as sure,
    or where all that was measured is dearer.
    """
    if daring.best is None or daring.plan is None:
        raise RuntimeError("a contender with a plan has a fleet")
    requirements = requirements_of(
        daring.request, with_runs=any(has_runs(contender.board) for contender in proposed)
    )
    by_prediction = _Candidate(contender=daring, best=daring.best, board=daring.board)
    most, dearer = MOST_FOR_CHANCE * _price(daring.plan), list[ServingPlan]()
    for requirement in requirements:
        cheapest = _cheapest(proposed, trace, requirement)
        if cheapest is None:
            continue
        plan = _plan_of(cheapest)
        if _price(plan) > most * (1 + ROUNDING):
            dearer.append(plan)
            continue
        as_sure = plan.chance < SURE - ROUNDING and daring.plan.chance >= plan.chance - ROUNDING
        return (by_prediction if as_sure else cheapest), dearer
    return by_prediction, dearer


def _price(plan: ServingPlan) -> float:
    """Dollars an hour, or GPUs where they have no price."""
    return plan.estimate.usd_per_hour or float(plan.num_gpus)


def _cheapest(
    proposed: Sequence[Contender], trace: Load | None, requirement: Requirement
) -> _Candidate | None:
    """The cheapest fleet that meets what is asked of a proposal; at one bill, that of the highest chance.

    Contenders come in the order of what their fleets cost at least: those for which the limits just hold.
    """
    best, least = None, tuple[float, ...]((float("inf"),))
    for contender in proposed:
        if contender.plan is None or _bill(contender.plan) > least[:2]:
            continue
        candidate = _candidate(contender, trace, requirement, most_gpus=_gpus_for(contender, least[0]))
        if candidate is None:
            continue
        plan = _plan_of(candidate)
        key = (*_bill(plan), -round(plan.chance, 2), float(plan.num_gpus))
        if requirement.is_met(plan) and key < least:
            best, least = candidate, key
    return best


def _gpus_for(contender: Contender, bill: float) -> int:
    """GPUs of a contender that a bill pays for; as many as it looks for where nothing has a price."""
    request, most = contender.request, contender.board.most_gpus
    if request.objective != "usd" or request.num_gpus is not None or bill == float("inf"):
        return most
    if request.offer is not None:
        return min(int(bill / request.offer.usd_per_hour * (1 + ROUNDING)) * request.offer.gpus, most)
    hour = request.usd_per_gpu_hour
    return min(int(bill / hour * (1 + ROUNDING)), most) if hour else most


def _candidate(
    contender: Contender, trace: Load | None, requirement: Requirement, *, most_gpus: int
) -> _Candidate | None:
    """The best fleet of a contender that meets what is asked, of its equals the surest.

    None where more than `most_gpus` are needed.
    """
    if contender.best is not None and contender.plan is not None and requirement.is_met(contender.plan):
        board, candidate, scope = contender.board, contender.best, ""
    else:
        board, scope = replace(requirement.part(contender.board), most_gpus=most_gpus), requirement.scope
        searched = best_run(contender.request, board, trace)
        if searched is None:
            return None
        board.most_gpus = contender.board.most_gpus  # for what stands beside it
        candidate = searched
    if contender.request.job.request_rate_per_s is not None and not is_closed(contender.request):
        candidate = surest(contender.request, board, candidate[0], trace)[0], candidate[1]
    return _Candidate(contender=contender, best=candidate, board=board, scope=scope)


def _plan_of(candidate: _Candidate) -> ServingPlan:
    """The fleet as a plan without what stands beside it."""
    run, optimality = candidate.best
    contender = candidate.contender
    return plan_of_fleet(
        load_calibration(),
        contender.request,
        contender.hierarchy,
        run,
        optimality=optimality,
        runners_up=(),
        search_time_s=0.0,
    )


def _bill(plan: ServingPlan) -> Worth:
    """What is minimised, and GPUs alone where it has no price: fleets of one bill differ in nothing of it."""
    first, second = worth_of_plan(plan)
    return (first, 0.0) if first < float("inf") else (first, second)


def daring_beside(plan: ServingPlan, other: ServingPlan) -> DaringFleet:
    """The fleet that is best by prediction, beside the one that is proposed, and what it saves."""
    mine, theirs = plan.estimate, other.estimate
    if plan.request.num_gpus is not None and plan.request.job.request_rate_per_s is None:
        saved = theirs.request_rate_per_s / mine.request_rate_per_s - 1
    elif mine.usd_per_hour and theirs.usd_per_hour:
        saved = 1 - theirs.usd_per_hour / mine.usd_per_hour
    else:
        saved = 1 - other.num_gpus / plan.num_gpus
    return DaringFleet(
        label=other.label,
        gpu=other.request.gpu,
        weights=other.weights,
        num_gpus=other.num_gpus,
        usd_per_hour=theirs.usd_per_hour,
        request_rate_per_s=theirs.request_rate_per_s,
        chance=other.chance,
        rows=other.evidence.rows,
        not_measured=other.evidence.not_measured,
        saved=saved,
    )


def _narrower_cache(
    asked: Asked, contenders: Sequence[Contender], chosen: Contender, plan: ServingPlan
) -> list[FleetSummary]:
    """What would be proposed of the same kind, precision and mode with an eight-bit cache, and what it saves.

    It is shown and not proposed: an eight-bit cache changes what the model answers.
    """
    gpu, cal = chosen.hierarchy.gpu, load_calibration()
    narrow_already = chosen.request.job.kv_dtype == "fp8"
    if not asked.compares_caches or narrow_already or "fp8" not in gpu.peak_flop_per_s:
        return []
    kind, narrow = _kind(chosen), list[Contender]()
    for contender in contenders:
        if _kind(contender) == kind:
            request = replace(contender.request, job=replace(contender.request.job, kv_dtype="fp8"))
            whole = replace(contender.whole, job=request.job)
            board = enumerate_options(cal, request, contender.hierarchy)
            narrow.append(replace(contender, request=request, whole=whole, board=board, best=None, plan=None))
            narrow[-1].search(cal, asked.trace)
    narrow = sorted((contender for contender in narrow if contender.plan is not None), key=_worth)
    if not narrow:
        return []
    narrower = _plan_of(_chosen(narrow, narrow[0], asked.trace)[0])
    saved = daring_beside(plan, narrower).saved
    return [replace(plan_summary(narrower, proposed=False), kv_dtype="fp8", saved=saved)]


def _kind(contender: Contender) -> tuple[object, ...]:
    """GPU kind, precision and mode."""
    return contender.request.gpu, contender.request.weights, contender.request.modes


def _mixed(asked: Asked, contenders: Sequence[Contender], plan: ServingPlan) -> list[FleetSummary]:
    """The cheapest fleet of two GPU kinds, where it is cheaper than the plan; for a rate alone."""
    request, hour = plan.request, plan.estimate.usd_per_hour
    rated = request.job.request_rate_per_s is not None and request.num_gpus is None and asked.trace is None
    if not rated or hour is None or request.objective != "usd" or "disaggregated" not in request.modes:
        return []
    boards = {
        id(contender.board): (contender.whole, contender.board)
        for contender in contenders
        if contender.proposed
    }
    mixed = cheapest_mixed(list(boards.values()), hour)
    return [] if mixed is None else [mixed_summary(mixed)]


def _is_mode(contender: Contender, plan: ServingPlan) -> bool:
    """Whether a contender is of the mode of a plan."""
    return plan.mode in contender.request.modes


def _worth(contender: Contender) -> Worth:
    """What is minimised among contenders, then the risk to a limit."""
    if contender.plan is None:
        return (float("inf"),)
    checks = contender.plan.estimate.limits.values()
    return (*worth_of_plan(contender.plan), 1 - min((check.chance for check in checks), default=1.0))


def _dropped(request: ServingRequest, why: str) -> FleetSummary:
    """A GPU kind and precision that was refused."""
    return FleetSummary(
        gpu=request.gpu,
        weights=request.weights[0],
        label="none",
        num_gpus=0,
        usd_per_hour=None,
        usd_per_million_output_tokens=None,
        why_not=why,
    )


def _nearest(asked: Asked, contenders: Sequence[Contender], refused: Sequence[InputError]) -> InputError:
    """The error for a question nothing answers: the miss that came nearest, else what was refused.

    A precision that is only shown is named as a way out where it serves.
    """
    cal = load_calibration()
    boards = {id(contender.board): contender for contender in contenders if contender.proposed}
    misses = [
        (miss(cal, board.whole, board.hierarchy, board.board, asked.trace), board)
        for board in boards.values()
    ]
    if not misses:
        return refused[0]
    nearest, missed = max(
        misses,
        key=lambda pair: (pair[0].capacity_requests_per_s or 0.0, -(pair[0].best_ttft_s or float("inf"))),
    )
    nearest = with_empty_server(cal, nearest, missed.whole, missed.hierarchy)
    served = [contender for contender in contenders if contender.plan is not None]
    if served:
        narrow = min(served, key=_worth)
        ways: tuple[str, ...] = (f"--weights {narrow.request.weights[0]}, which {narrow.request.gpu} serves",)
    else:
        tried = {
            contender.request.weights[0]
            for contender in contenders
            if contender.request.gpu == missed.whole.gpu
        }
        ways = ways_out(cal, missed.whole, missed.hierarchy, asked.trace, tried)
    fix = ", or ".join([nearest.fix, *ways])
    return NoFeasiblePlanError(what=nearest.what, cause=nearest.cause, fix=fix, answer=nearest)
