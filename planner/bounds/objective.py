"""What "best" means: a score that grows with step time, so that one search serves every objective.

Legend: ``G`` GPUs a layout uses, ``t`` seconds of its step, ``D`` dollars an hour of those GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.plan import RENTS_WHAT_IT_USES, Objective, Plan, PlanRequest
from topology.base.errors import InputError
from topology.pools.kinds import kinds_of
from topology.pools.rates import Rates, by_node, mean_usd_per_gpu_hour, rates_of, unpriced, usd_per_hour
from topology.spec import ClusterSpec

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """An objective with its limit: the lower the score, the better; infinite when the limit is missed.

    ``step-time`` and ``memory``: t. ``cost``: G·t, GPU-seconds of a step, to which money per token is
    proportional; D·t where `rates` tell the prices of unlike nodes in the order of ranks.
    ``gpus``: G + t/(2·limit), fewest GPUs first and the fastest of those, if t is within the limit.
    """

    objective: Objective
    limit_s: float
    rates: Rates = ()

    @property
    def rents_what_it_uses(self) -> bool:
        """Whether the answer says how many GPUs to rent; otherwise idle ones are there and paid for."""
        return self.objective in RENTS_WHAT_IT_USES

    def score(self, num_gpus: Any, step_s: Any, paid: Any = None) -> Vector:
        """Score of layouts that use this many GPUs and take these seconds per step.

        `paid` are the dollars of an hour of them where `rates` are known and they are not the first GPUs.
        """
        G, t = np.asarray(num_gpus, dtype=np.float64), np.asarray(step_s, dtype=np.float64)
        if self.objective == "cost":
            t = self._paid(G, paid) * t
        elif self.objective == "gpus":
            t = np.where(t <= self.limit_s, G + t / (2 * self.limit_s), np.inf)
        return t

    def shortened(self, score: float, share: float) -> float:
        """Score if its step were shorter by this share; GPUs do not count as time.

        >>> goal = Goal(objective="gpus", limit_s=10.0)
        >>> goal.shortened(float(goal.score(16_384, 8.0)), 0.5) == float(goal.score(16_384, 4.0))
        True
        """
        gpus = math.floor(score) if self.objective == "gpus" and math.isfinite(score) else 0
        return gpus + (score - gpus) * (1 - share)

    def cutoff_s(self, num_gpus: Any, score: float, paid: Any = None) -> Vector:
        """Longest step with which a layout would still reach this score; negative if none would."""
        G = np.asarray(num_gpus, dtype=np.float64)
        if self.objective == "cost":
            return np.asarray(score / self._paid(G, paid))
        if self.objective == "gpus":
            return np.minimum((score - G) * 2 * self.limit_s, self.limit_s)
        return np.full(G.shape, score)

    def _paid(self, num_gpus: Vector, paid: Any) -> Vector:
        """What is paid for these GPUs while they run: their number itself where all cost the same."""
        if not self.rates:
            return num_gpus
        return usd_per_hour(self.rates, num_gpus) if paid is None else np.asarray(paid, dtype=np.float64)


def goal_of(request: PlanRequest) -> Goal:
    """Read the goal of a request; the fewest GPUs for a deadline need a deadline and a number of tokens."""
    job = request.job
    if request.objective == "cost" and by_node(request.cluster):
        return Goal(objective="cost", limit_s=math.inf, rates=_rates(request.cluster))
    if request.objective != "gpus":
        return Goal(objective=request.objective, limit_s=math.inf)
    if job.deadline_s is None or job.total_tokens is None:
        raise InputError(
            what="the fewest GPUs for a deadline cannot be planned",
            cause=f"job.deadline_s = {job.deadline_s}, job.total_tokens = {job.total_tokens}",
            fix="give both, for example --tokens 1T --deadline 30d",
        )
    steps = math.ceil(job.total_tokens / job.tokens_per_step)
    return Goal(objective="gpus", limit_s=job.deadline_s / steps)


def goal_of_plan(plan: Plan) -> Goal:
    """The goal of a plan's request, with the dollars of the very GPUs that its stages run on."""
    goal, G, used = goal_of(plan.request), plan.layout.num_gpus, gpus_of_kinds(plan)
    mean = mean_usd_per_gpu_hour(plan.request.cluster, G, used) if goal.rates and used else None
    return goal if mean is None else replace(goal, rates=((G, mean),))


def gpus_of_kinds(plan: Plan) -> tuple[int, ...]:
    """GPUs of each kind of node that the stages of a plan run on; none where they are the first in order."""
    kinds = range(len(kinds_of(plan.request.cluster)) if plan.kind_of_stage else 0)
    return tuple(plan.kind_of_stage.count(kind) * plan.layout.stage_ranks for kind in kinds)


def _rates(cluster: ClusterSpec) -> Rates:
    """Prices in the order of ranks; of nodes without one, or of free ones, nothing costs least."""
    rates = rates_of(cluster)
    if rates is None or min(rate for _, rate in rates) <= 0:
        lacking = ", ".join(unpriced(cluster))
        raise InputError(
            what="the least cost needs a price of every kind of node",
            cause=f"no price is known of nodes of {lacking}" if lacking else "an hour of some nodes is free",
            fix="give usd_per_gpu_hour in each [[nodes]] of the cluster file, or leave out --objective cost",
        )
    return rates
