"""The best batch, or number of GPUs, of a range: those that suit, each planned."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from planner.campaign.finish import campaign_or_none
from planner.plan import Plan, PlanRequest

Refusal = TypeVar("Refusal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What was planned: sequences of a step, GPUs, and seconds a token; infinite where there is no plan."""

    batch: int
    gpus: int
    per_token_s: float


def best_of_requests(
    requests: Sequence[PlanRequest], search: Callable[[PlanRequest], Plan | Refusal]
) -> tuple[Plan | Refusal, tuple[Tried, ...]]:
    """The plan with least seconds (or dollars) a token of requests, and what each takes.

    Of equals that with fewer idle GPUs. Where none has a plan the answer is the refusal of the first.
    A plan that is tight, since no layout of its request fits, is behind all that fit.

    Args:
        requests: At least one, alike but for their batch or their GPUs.
        search: Answers a request.
    """
    answers = [(request, search(request)) for request in requests]
    plans = [
        (answer.request.memory_headroom != request.memory_headroom, *_order(answer), answer)
        for request, answer in answers
        if isinstance(answer, Plan)
    ]
    report = tuple(
        Tried(
            batch=request.job.global_batch_size,
            gpus=request.cluster.num_gpus,
            per_token_s=_per_token_s(answer) if isinstance(answer, Plan) else math.inf,
        )
        for request, answer in answers
    )
    return (min(plans, key=lambda ranked: ranked[:-1])[-1] if plans else answers[0][1]), report


def _per_token_s(plan: Plan) -> float:
    """Seconds of a step over its tokens."""
    return plan.estimate.step_time_s / plan.request.job.tokens_per_step


def _order(plan: Plan) -> tuple[float, int, int, int]:
    """What is least in the best plan: its objective a token, then idle GPUs, GPUs, the batch."""
    return _least(plan), plan.idle_gpus, plan.request.cluster.num_gpus, plan.request.job.global_batch_size


def _least(plan: Plan) -> float:
    """Dollars under the objective of cost, of the whole run where it has an end; else seconds a token."""
    if plan.request.objective != "cost":
        return _per_token_s(plan)
    run = campaign_or_none(plan)
    of_run = None if run is None or run.usd is None else run.usd.p50
    usd = plan.estimate.usd_per_billion_tokens if of_run is None else of_run
    return _per_token_s(plan) if usd is None else usd


def range_note(low: int, high: int, best: Plan, tried: tuple[Tried, ...]) -> str:
    """What was tried of a range, in words."""
    mine, least = best.request.job.global_batch_size, _per_token_s(best)
    others = sorted((item.per_token_s / least - 1, item.batch) for item in tried if item.batch != mine)
    after = [f"{batch:,} +{100 * more:.1f} %" for more, batch in others if math.isfinite(more)][:3]
    more = f"; time a token of others: {', '.join(after)}" if after else ""
    return f"a batch of {mine:,}, of {len(tried)} planned between {low:,} and {high:,}{more}"


def gpus_note(best: Plan, tried: tuple[Tried, ...]) -> str:
    """What was tried of a range of GPUs, in words."""
    mine, least = best.request.cluster.num_gpus, _per_token_s(best)
    fastest = {item.gpus: item.per_token_s for item in sorted(tried, key=lambda tried: -tried.per_token_s)}
    others = sorted((seconds / least - 1, gpus) for gpus, seconds in fastest.items() if gpus != mine)
    if best.request.objective != "step-time":
        others = []  # those were planned for another end than speed
    after = [f"{gpus:,} {100 * more:+.1f} %" for more, gpus in others if math.isfinite(more)][:3]
    more = f"; time a token on others: {', '.join(after)}" if after else ""
    low, high = min(fastest), max(fastest)
    return f"{mine:,} GPUs, of {len(fastest)} numbers planned between {low:,} and {high:,}{more}"
