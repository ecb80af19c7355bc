"""Which of two plans is faster, in work done: steps of unequal batches or lengths are not one unit.

Two plans of one job, stack and kind of GPU err alike, so that their order is known to the ratio that layouts
have been misranked by; unlike ones are told apart only where their 80 % bands are.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.training.bands import tie_ratio
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The second plan against the first.

    `speed` is tokens per second of the second over the first; `same_work` whether their steps hold the same
    tokens of the same model, so that the times of their steps compare as well; `same_model` whether tokens
    mean the same; `tied` whether the model cannot tell which is faster.
    """

    speed: float
    same_work: bool
    same_model: bool
    tied: bool


def tokens_per_s(plan: Plan) -> float:
    """Tokens per second of the whole job."""
    return plan.request.job.tokens_per_step / plan.estimate.step_time_s


def compare(first: Plan, second: Plan) -> Comparison:
    """Compare two plans by tokens per second."""
    same_model = first.request.model == second.request.model
    same_tokens = first.request.job.tokens_per_step == second.request.job.tokens_per_step
    return Comparison(
        speed=tokens_per_s(second) / tokens_per_s(first),
        same_work=same_model and same_tokens,
        same_model=same_model,
        tied=same_model and _tied(first, second),
    )


def _tied(first: Plan, second: Plan) -> bool:
    """Whether the faster one, per token, cannot be told."""
    faster, slower = sorted((first, second), key=lambda plan: -tokens_per_s(plan))
    ratio = tokens_per_s(faster) / tokens_per_s(slower)
    if _errs_alike(first, second):
        return ratio <= tie_ratio()
    fast, slow = faster.estimate, slower.estimate
    return fast.upper_s / fast.step_time_s >= ratio * slow.lower_s / slow.step_time_s


def _errs_alike(first: Plan, second: Plan) -> bool:
    """Whether what the model gets wrong of one it gets wrong of the other: kernels, stack and precision."""
    a, b = first.request, second.request
    return (a.stack, a.job.precision, _kinds(first)) == (b.stack, b.job.precision, _kinds(second))


def _kinds(plan: Plan) -> frozenset[str]:
    """Kinds of GPU of the cluster."""
    return frozenset(node.gpu for node in plan.request.cluster.nodes)
