"""Answer a serving question.

Fleets of every GPU kind, precision and mode contend; the best of them is the plan, the others stand beside.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from costmodel.kernels.tables import load_calibration
from costmodel.serving.simulation.load import Load
from planner.analysis.serving.contenders import (
    Contender,
    Worth,
    contenders_of,
    worth_of_plan,
    worth_showing,
)
from planner.analysis.serving.mixed_fleets import cheapest_mixed, mixed_summary
from planner.analysis.serving.processes import Each
from planner.deployment.vllm_sglang import commands
from planner.questions.serving.understand import Asked
from planner.serving.board import enumerate_options
from planner.serving.plan import FleetSummary, ServingInfeasible, ServingPlan, ServingRequest
from planner.serving.search import check_request, finished_plan, miss
from topology.base.errors import InputError, NoFeasiblePlanError
from topology.fabric.hierarchy import Hierarchy

Tell = Callable[[str], None]


def find_fleet(asked: Asked, *, tell: Tell = lambda _: None, each: Each = map) -> ServingPlan:
    """Compare every kind; raise the nearest miss when none serves the job.

    Args:
        asked: The question.
        tell: Hears how far it is.
        each: How boards are searched: one after the other, or by several processes (`by_processes`).
    """
    cal, started = load_calibration(), time.perf_counter()
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
    for number, (request, _) in enumerate(fit, 1):
        where = f"{request.model.name} in {request.weights[0]} on {request.gpu}"
        tell(f"comparing {number} of {len(fit)}: {where}")
        contenders += next(searched)
    best: Contender | None = None
    for one in contenders:
        if one.proposed and one.plan is not None and (best is None or _worth(one) < _worth(best)):
            best = one
    if best is None:
        raise _nearest(asked, contenders, [problem for _, problem in refused])
    tell(f"finishing {best.request.gpu} {best.request.weights[0]}")
    if best.found is None:
        raise RuntimeError("a contender with a plan has a fleet")
    plan = finished_plan(cal, best.whole, best.hierarchy, best.board, best.found, asked.trace, started)
    beside = [one for one in contenders if not (one.board is best.board and _is_mode(one, plan))]
    others = [one.summary() for one in beside if worth_showing(one, contenders)]
    tell("comparing fleets of two GPU kinds")
    others += _mixed(asked, contenders, plan)
    dropped = list(dict.fromkeys(_dropped(request, problem.what) for request, problem in refused))
    plan = replace(plan, other_fleets=(*others, *dropped))
    return replace(plan, commands=commands(plan))


def _searched(
    one: tuple[ServingRequest, Hierarchy], *, trace: Load | None, shown: Collection[str]
) -> Sequence[Contender]:
    """The contenders of one GPU kind and precision, each with its best fleet."""
    cal, (request, hierarchy) = load_calibration(), one
    board = enumerate_options(cal, request, hierarchy)
    found = contenders_of(request, hierarchy, board, proposed=request.weights[0] not in shown)
    for contender in found:
        contender.search(cal, trace)
    return found


def _mixed(asked: Asked, contenders: Sequence[Contender], plan: ServingPlan) -> list[FleetSummary]:
    """The cheapest fleet of two GPU kinds, where it is cheaper than the plan; for a rate alone."""
    request, hour = plan.request, plan.estimate.usd_per_hour
    rated = request.job.request_rate_per_s is not None and request.num_gpus is None and asked.trace is None
    if not rated or hour is None or request.objective != "usd" or "disaggregated" not in request.modes:
        return []
    boards = {id(one.board): (one.whole, one.board) for one in contenders if one.proposed}
    found = cheapest_mixed(list(boards.values()), hour)
    return [] if found is None else [mixed_summary(found)]


def _is_mode(one: Contender, plan: ServingPlan) -> bool:
    """Whether a contender is of the mode of a plan."""
    return plan.mode in one.request.modes


def _worth(one: Contender) -> Worth:
    """What is minimised among contenders, then the risk to a limit."""
    if one.plan is None:
        return (float("inf"),)
    checks = one.plan.estimate.limits.values()
    return (*worth_of_plan(one.plan), 1 - min((check.chance for check in checks), default=1.0))


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
    boards = {id(one.board): one for one in contenders if one.proposed}
    misses = [miss(cal, one.whole, one.hierarchy, one.board, asked.trace) for one in boards.values()]
    if not misses:
        return refused[0]
    nearest: ServingInfeasible = max(
        misses, key=lambda one: (one.capacity_requests_per_s or 0.0, -(one.best_ttft_s or float("inf")))
    )
    served = [one for one in contenders if one.plan is not None]
    fix = nearest.fix
    if served:
        narrow = min(served, key=_worth)
        fix = f"{fix}, or --weights {narrow.request.weights[0]}, which {narrow.request.gpu} serves"
    return NoFeasiblePlanError(what=nearest.what, cause=nearest.cause, fix=fix, answer=nearest)
