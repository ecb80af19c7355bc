"""The best batch of a range: the sizes that suit the cluster, each planned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from planner.plan import Plan, PlanRequest

Refusal = TypeVar("Refusal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A batch that was planned: sequences of a step, and seconds a token; infinite where there is no plan."""

    batch: int
    per_token_s: float


def best_of_batches(
    request: PlanRequest, batches: tuple[int, ...], search: Callable[[PlanRequest], Plan | Refusal]
) -> tuple[Plan | Refusal, tuple[Tried, ...]]:
    """The plan of the batch with least seconds (or dollars) a token, and what each takes.

    Of equals that with fewer idle GPUs. Where none has a plan the answer is the refusal of the first.

    Args:
        request: What is asked, but for the batch.
        batches: Sizes to plan, at least one.
        search: Answers a request.
    """
    answers = []
    for batch in batches:
        job = replace(request.job, global_batch_size=batch)
        answers.append((batch, search(replace(request, job=job))))
    plans = [(batch, plan) for batch, plan in answers if isinstance(plan, Plan)]
    tried = {batch: plan.estimate.step_time_s / plan.request.job.tokens_per_step for batch, plan in plans}
    report = tuple(Tried(batch=batch, per_token_s=tried.get(batch, math.inf)) for batch in batches)
    if not plans:
        return answers[0][1], report
    return min((plan for _, plan in plans), key=_order), report


def _order(plan: Plan) -> tuple[float, int, int]:
    """What is least in the best plan: its objective a token, then idle GPUs, then a smaller batch."""
    usd = plan.estimate.usd_per_billion_tokens
    per_token = plan.estimate.step_time_s / plan.request.job.tokens_per_step
    least = usd if plan.request.objective == "cost" and usd is not None else per_token
    return least, plan.idle_gpus, plan.request.job.global_batch_size


def range_note(low: int, high: int, best: Plan, tried: tuple[Tried, ...]) -> str:
    """What was tried of a range, in words."""
    mine = best.request.job.global_batch_size
    least = best.estimate.step_time_s / best.request.job.tokens_per_step
    others = sorted((one.per_token_s / least - 1, one.batch) for one in tried if one.batch != mine)
    after = [f"{batch:,} +{100 * more:.1f} %" for more, batch in others if math.isfinite(more)][:3]
    more = f"; time a token of others: {', '.join(after)}" if after else ""
    return f"a batch of {mine:,}, of {len(tried)} planned between {low:,} and {high:,}{more}"
