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
    speed = tokens_per_s(second) / tokens_per_s(first)
    return Comparison(
        speed=speed,
        same_work=same_model and same_tokens,
        same_model=same_model,
        tied=same_model and within_band(first, second, speed),
    )


def within_band(first: Plan, second: Plan, gain: float) -> bool:
    """Whether the model cannot tell which of two plans is better by a number that follows from their speed.

    Args:
        first: A plan.
        second: The other.
        gain: How many times as good the second is by that number, such as tokens per second and GPU.
    """
    if _errs_alike(first, second):
        return max(gain, 1 / gain) <= tie_ratio()
    better, worse = (second.estimate, first.estimate) if gain >= 1 else (first.estimate, second.estimate)
    ratio = max(gain, 1 / gain)
    return better.upper_s / better.step_time_s >= ratio * worse.lower_s / worse.step_time_s


def _errs_alike(first: Plan, second: Plan) -> bool:
    """Whether what the model gets wrong of one it gets wrong of the other: kernels, stack and precision."""
    a, b = first.request, second.request
    return (a.stack, a.job.precision, _kinds(first)) == (b.stack, b.job.precision, _kinds(second))


def _kinds(plan: Plan) -> frozenset[str]:
    """Kinds of GPU of the cluster."""
    return frozenset(node.gpu for node in plan.request.cluster.nodes)
