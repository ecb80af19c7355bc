"""What "best" means: a score that grows with step time, so that one search serves every objective.

Legend: ``G`` GPUs a layout uses, ``R`` those of the whole nodes that hold them, ``t`` seconds of its step,
``D`` dollars an hour of those nodes, ``o(G)`` node-hours of a run over those of its steps alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.estimate import Estimate
from costmodel.layout import ParallelLayout
from planner.campaign.rental import paid_gpus_of, paid_usd_per_hour
from planner.plan import RENTS_WHAT_IT_USES, Objective, Plan, PlanRequest
from topology.base.arrays import Vector
from topology.base.errors import InputError
from topology.pools.rates import (
    Rates,
    Units,
    by_node,
    gpus_in_rank_order,
    rates_of,
    rented_gpus,
    unpriced,
    usd_per_hour,
)
from topology.spec import ClusterSpec

if TYPE_CHECKING:
    from planner.campaign.outlook import Outlook


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """An objective with its limit: the lower the score, the better; infinite when the limit is missed.

    ``step-time`` and ``memory``: t. ``cost``: R·t·o(G), rented GPU-seconds of a step, to which money per
    token is proportional; D·t·o(G) where `rates` tell the prices of unlike nodes in the order of ranks.
    ``gpus``: R + t/(2·limit), fewest rented GPUs first and the fastest of those. Under both, where a job has
    a deadline, steps alone must keep the limit, and the whole run, failures included, the deadline with a
    chance of `costmodel.campaign.record.KEPT`.

    Attributes:
        objective: what is asked for.
        limit_s: longest step with which steps alone keep the deadline; infinite where none is asked for.
        rates: prices of unlike nodes.
        units: GPUs of nodes, which are rented whole; every GPU by itself where none are known.
        outlook: what is known of runs before a layout is chosen; None where no run is asked for.
    """

    objective: Objective
    limit_s: float
    rates: Rates = ()
    units: Units = ()
    outlook: Outlook | None = field(default=None, compare=False)

    @property
    def rents_what_it_uses(self) -> bool:
        """Whether the answer says how many GPUs to rent; otherwise idle ones are there and paid for."""
        return self.objective in RENTS_WHAT_IT_USES

    @property
    def has_deadline(self) -> bool:
        """Whether a layout must keep a deadline to be an answer."""
        return math.isfinite(self.limit_s)

    def score(self, num_gpus: Any, step_s: Any, paid: Any = None) -> Vector:
        """Score of layouts that use this many GPUs and take these seconds per step.

        `paid` is what an hour of their nodes costs, GPUs or dollars, where these are not the first.
        """
        G, t = np.asarray(num_gpus, dtype=np.float64), np.asarray(step_s, dtype=np.float64)
        if self.objective == "cost":
            t = np.where(t <= self._longest_s(G, t), self._paid(G, paid) * t, np.inf)
        elif self.objective == "gpus":
            t = np.where(t <= self._longest_s(G, t), self._rented(G, paid) + t / (2 * self.limit_s), np.inf)
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
            t = np.minimum(score / self._paid(G, paid), self.limit_s)
            return np.minimum(t, self._longest_s(G, t))
        if self.objective == "gpus":
            t = np.minimum((score - self._rented(G, paid)) * 2 * self.limit_s, self.limit_s)
            return np.minimum(t, self._longest_s(G, t))
        return np.full(G.shape, score)

    def keeps(self, layout: ParallelLayout, full: Estimate) -> bool:
        """Whether a run of a layout keeps the deadline that is asked for, failures included."""
        if self.outlook is None or not self.has_deadline:
            return True
        return self.outlook.keeps(layout, full)

    def _paid(self, num_gpus: Vector, paid: Any) -> Vector:
        """What an hour of a run on these GPUs costs, with the hours of a run beyond its steps."""
        more = 1.0 if self.outlook is None else self.outlook.overhead(num_gpus)
        return np.asarray(self._hour(num_gpus, paid) * more, dtype=np.float64)

    def _rented(self, num_gpus: Vector, paid: Any) -> Vector:
        """GPUs of the nodes: a whole number, which a bound may miss by its rounding."""
        return np.rint(self._hour(num_gpus, paid))

    def _hour(self, num_gpus: Vector, paid: Any) -> Vector:
        """What an hour of the nodes costs: the number of rented GPUs where all cost the same."""
        if paid is None:
            rented = rented_gpus(self.units, num_gpus) if self.units else num_gpus
            paid = usd_per_hour(self.rates, rented) if self.rates else rented
        return np.asarray(paid, dtype=np.float64)

    def _longest_s(self, num_gpus: Vector, step_s: Vector) -> Vector:
        """Longest step that may keep the deadline on so many GPUs; looked at where steps alone would."""
        if self.outlook is None or not self.has_deadline:
            return np.full(num_gpus.shape, self.limit_s)
        wanted = (step_s > 0) & (step_s <= self.limit_s)
        return self.outlook.longest_step_s(num_gpus, self.limit_s, wanted)


def goal_of(request: PlanRequest) -> Goal:
    """Read the goal of a request; the fewest GPUs for a deadline need a deadline and a number of tokens."""
    job, objective = request.job, request.objective
    if objective not in RENTS_WHAT_IT_USES:
        return Goal(objective=objective, limit_s=math.inf)
    if objective == "gpus" and (job.deadline_s is None or job.total_tokens is None):
        raise InputError(
            what="the fewest GPUs for a deadline cannot be planned",
            cause=f"job.deadline_s = {job.deadline_s}, job.total_tokens = {job.total_tokens}",
            fix="give both, for example --tokens 1T --deadline 30d",
        )
    limit_s = math.inf
    if job.deadline_s is not None and job.total_tokens is not None:
        limit_s = job.deadline_s / math.ceil(job.total_tokens / job.tokens_per_step)
    rates = _rates(request.cluster) if objective == "cost" and by_node(request.cluster) else ()
    units = gpus_in_rank_order(request.cluster)
    return Goal(objective=objective, limit_s=limit_s, rates=rates, units=units, outlook=_outlook(request))


def _outlook(request: PlanRequest) -> Outlook | None:
    """What is known of runs of a request; nothing is loaded for a step alone."""
    if request.job.total_tokens is None:
        return None
    from planner.campaign.outlook import outlook_of

    return outlook_of(request)


def goal_of_plan(plan: Plan) -> Goal:
    """The goal of a plan's request, with the dollars (or GPUs) of the very nodes that its stages run on."""
    goal, G = goal_of(plan.request), plan.layout.num_gpus
    if goal.objective not in RENTS_WHAT_IT_USES:
        return goal
    hour = (
        paid_usd_per_hour(plan) if goal.rates else paid_gpus_of(plan.request, plan.layout, plan.kind_of_stage)
    )
    return goal if hour is None else replace(goal, rates=((G, hour / G),), units=())


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
