"""What the latency limits of a serving question cost: the same question with one of them relaxed by a step.

And what the spread of its lengths costs: the same question of requests that are all alike.

Every step is a search of its own over the question's GPU kinds and precisions, so a saving is between two
answers of the same search, not a slope.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from costmodel.job import ServingJob
from planner.analysis.serving.fleets import find_fleet
from planner.questions.serving.understand import Asked
from planner.serving.plan import ServingPlan
from planner.serving.trade_offs import LimitRelaxed
from topology.base.errors import InputError, NoFeasiblePlanError

STEPS = {"ttft": 2.0, "tpot": 4 / 3, "end_to_end": 1.5}
"""A step of each limit, as people choose them: 500 ms to 1 s, 30 ms to 40 ms."""
PERCENTILES = (99.9, 99.0, 95.0, 90.0, 50.0)  # those that service levels are written in
LEAST_MORE = 0.02  # capacities are told apart to this share


def with_sensitivity(asked: Asked, plan: ServingPlan) -> ServingPlan:
    """The plan, and what every limit of its question costs."""
    jobs = [*relaxed_jobs(plan.request.job), *([] if asked.trace else alike_jobs(plan.request.job))]
    relaxeds = tuple(_relaxed(asked, plan, name, job) for name, job in jobs)
    return replace(plan, sensitivity=relaxeds)


def relaxed_jobs(job: ServingJob) -> Iterator[tuple[str, ServingJob]]:
    """The job with one limit relaxed by a step, for each of its limits.

    >>> job = ServingJob(input_tokens=1000, output_tokens=200, tpot_s=0.03, percentile=99)
    >>> [(name, round(one.tpot_s, 3), one.percentile) for name, one in relaxed_jobs(job)]
    [('percentile', 0.03, 95.0), ('tpot', 0.04, 99)]
    """
    lower = next((low for high, low in pairwise(PERCENTILES) if low < job.percentile <= high), None)
    if lower is not None:
        yield "percentile", replace(job, percentile=lower)
    for name, limit_s in _limits(job).items():
        yield name, _with_limit(job, name, limit_s * STEPS[name])


def alike_jobs(job: ServingJob) -> Iterator[tuple[str, ServingJob]]:
    """The job with all its requests of the mean lengths, where they spread.

    >>> job = ServingJob(input_tokens=1000, output_tokens=200, input_tokens_p99=4000)
    >>> [(name, one.input_tokens, one.input_tokens_p99) for name, one in alike_jobs(job)]
    [('lengths', 1000, 1000)]
    """
    inputs, outputs = job.input_tokens, job.output_tokens
    if max((job.input_tokens_p99 or inputs) - inputs, (job.output_tokens_p99 or outputs) - outputs) > 0:
        yield "lengths", replace(job, input_tokens_p99=inputs, output_tokens_p99=outputs)


def _with_limit(job: ServingJob, name: str, limit_s: float) -> ServingJob:
    """The job with another limit of this name."""
    changed: dict[str, Any] = {f"{name}_s": limit_s}
    return replace(job, **changed)


def _limits(job: ServingJob) -> dict[str, float]:
    """The limits of a job by name, seconds."""
    return {name: limit for name in STEPS if (limit := getattr(job, f"{name}_s")) is not None}


def check_limits(asked: Asked) -> None:
    """Refuse a question whose answer no limit can change.

    Raises:
        InputError: it has no limits, or its fleet has a given size and a trace to serve.
    """
    if not _limits(asked.requests[0][0].job):
        raise InputError(
            what="there is no limit to relax",
            cause="--sensitivity, and none of --ttft, --tpot and --e2e",
            fix="add the limits to relax: --ttft, --tpot, --e2e or several",
        )
    if asked.trace is not None and asked.requests[0][0].num_gpus is not None:
        raise InputError(
            what="limits change neither the size nor the load of this fleet",
            cause="--sensitivity with --gpus and --trace: both are given",
            fix="leave out --gpus, and the fleet for the trace is sized",
        )


def _relaxed(asked: Asked, plan: ServingPlan, name: str, job: ServingJob) -> LimitRelaxed:
    """The answer with one limit relaxed; the plan itself where the search finds none that is better.

    What keeps a limit keeps a looser one, so the answer is never worse than the plan.
    """
    requests = tuple(
        (replace(request, job=replace(job, weight_precision=request.job.weight_precision)), hierarchy)
        for request, hierarchy in asked.requests
    )
    try:
        fleet = find_fleet(replace(asked, requests=requests))
    except NoFeasiblePlanError:
        fleet = plan
    best = fleet if _better(plan, fleet) else plan
    before_it, after_it = _steps(name, plan.request.job, job)
    dollars, before = best.estimate.usd_per_hour, plan.estimate.usd_per_hour
    return LimitRelaxed(
        limit=name,
        asked=before_it,
        relaxed=after_it,
        gpu=best.request.gpu,
        weights=best.weights,
        label=best.label,
        num_gpus=best.num_gpus,
        usd_per_hour=dollars,
        saved_gpus=0 if _sized(plan) else plan.num_gpus - best.num_gpus,
        saved_usd_per_hour=None if dollars is None or before is None else before - dollars,
        more_requests_per_s=_served(best) - _served(plan) if _sized(plan) else 0.0,
    )


def _steps(name: str, asked: ServingJob, relaxed: ServingJob) -> tuple[float, float]:
    """What was asked and what stands in its place: a limit, or tokens of the longest of a hundred prompts."""
    if name == "lengths":
        return float(asked.input_tokens_p99 or asked.input_tokens), float(relaxed.input_tokens)
    field = name if name == "percentile" else f"{name}_s"
    return getattr(asked, field), getattr(relaxed, field)


def _sized(plan: ServingPlan) -> bool:
    """Whether the size of the fleet was given, so that it serves more instead of being smaller."""
    return plan.request.num_gpus is not None


def _served(plan: ServingPlan) -> float:
    """What a fleet serves at most, requests a second."""
    return plan.estimate.served_per_s


def _better(plan: ServingPlan, other: ServingPlan) -> bool:
    """Whether another fleet is better than the plan in what is minimised, not in its risk alone."""
    if _sized(plan):
        return _served(other) > (1 + LEAST_MORE) * _served(plan)
    return _merit(other) < _merit(plan)


def _merit(plan: ServingPlan) -> tuple[float, float]:
    """Dollars an hour and GPUs, in the order of the objective."""
    dollars, gpus = plan.estimate.usd_per_hour or 0.0, float(plan.num_gpus)
    return (gpus, dollars) if plan.request.objective == "gpus" else (dollars, gpus)
