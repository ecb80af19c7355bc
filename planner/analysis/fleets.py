"""Answer a serving question.

One search for each GPU kind and precision, the best of them, the others beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel.kernels.tables import load_calibration
from planner.deployment.vllm_sglang import commands
from planner.questions.serving import Asked
from planner.serving.plan import (
    FleetSummary,
    ServingInfeasible,
    ServingObjective,
    ServingPlan,
    ServingRequest,
)
from planner.serving.search import search_serving
from topology.base.errors import InputError, NoFeasiblePlanError


def find_fleet(asked: Asked) -> ServingPlan:
    """Search every kind; raise the nearest miss when none serves the job."""
    cal = load_calibration()
    plans: list[ServingPlan] = []
    misses: list[ServingInfeasible] = []
    refused: list[InputError] = []
    dropped: list[FleetSummary] = []
    for request, hierarchy in asked.requests:
        try:
            found = search_serving(cal, request, hierarchy, trace=asked.trace)
        except InputError as problem:
            refused.append(problem)
            dropped.append(_dropped(request, problem.what))
            continue
        if isinstance(found, ServingPlan):
            plans.append(found)
        else:
            misses.append(found)
            dropped.append(_dropped(request, found.what))
    if not plans:
        raise _nearest(misses, refused)
    best = min(plans, key=lambda plan: _merit(plan, asked.requests[0][0].objective))
    others = tuple(fleet_summary(plan) for plan in plans if plan is not best)
    best = replace(best, other_fleets=(*others, *dropped))
    return replace(best, commands=commands(best))


def fleet_summary(plan: ServingPlan) -> FleetSummary:
    """One line on a fleet."""
    return FleetSummary(
        gpu=plan.request.gpu,
        weights=plan.weights,
        label=plan.label,
        num_gpus=plan.num_gpus,
        usd_per_hour=plan.estimate.usd_per_hour,
        rental=plan.rental,
        usd_per_million_output_tokens=plan.estimate.usd_per_million_output_tokens,
    )


def _dropped(request: ServingRequest, why: str) -> FleetSummary:
    """A GPU kind and precision without a fleet."""
    return FleetSummary(
        gpu=request.gpu,
        weights=request.weights[0],
        label="none",
        num_gpus=0,
        usd_per_hour=None,
        usd_per_million_output_tokens=None,
        why_not=why,
    )


def _merit(plan: ServingPlan, objective: ServingObjective) -> tuple[float, ...]:
    """What is minimised among fleets: dollars, GPUs, or tokens per GPU negated; then the risk to a limit."""
    dollars = plan.estimate.usd_per_hour if plan.estimate.usd_per_hour is not None else float("inf")
    risk = 1 - min((check.chance for check in plan.estimate.limits.values()), default=1.0)
    if objective == "tokens-per-gpu" or plan.request.num_gpus is not None:
        return (-plan.estimate.tokens_per_s_per_gpu, dollars, risk)
    gpus = float(plan.num_gpus)
    return (gpus, dollars, risk) if objective == "gpus" else (dollars, gpus, risk)


def _nearest(misses: Sequence[ServingInfeasible], refused: Sequence[InputError]) -> InputError:
    """The error for a question nothing answers: the miss that came nearest, else what was refused."""
    if not misses:
        return refused[0]
    miss = max(
        misses, key=lambda one: (one.capacity_requests_per_s or 0.0, -(one.best_ttft_s or float("inf")))
    )
    return NoFeasiblePlanError(what=miss.what, cause=miss.cause, fix=miss.fix, answer=miss)
