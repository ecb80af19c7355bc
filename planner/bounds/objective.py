"""What "best" means: a score that grows with step time, so that one search serves every objective.

Legend: ``G`` GPUs a layout uses, ``t`` seconds of its step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.plan import Objective, PlanRequest
from topology.base.errors import InputError

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """An objective with its limit: the lower the score, the better; infinite when the limit is missed.

    ``step-time`` and ``memory``: t. ``cost``: G·t, GPU-seconds of a step, to which money per token is
    proportional.
    ``gpus``: G + t/(2·limit), fewest GPUs first and the fastest of those, if t is within the limit.
    """

    objective: Objective
    limit_s: float

    @property
    def rents_what_it_uses(self) -> bool:
        """Whether the answer says how many GPUs to rent; otherwise idle ones are there and paid for."""
        return self.objective in ("cost", "gpus")

    def score(self, num_gpus: Any, step_s: Any) -> Vector:
        """Score of layouts that use this many GPUs and take these seconds per step."""
        G, t = np.asarray(num_gpus, dtype=np.float64), np.asarray(step_s, dtype=np.float64)
        if self.objective == "cost":
            t = G * t
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

    def cutoff_s(self, num_gpus: Any, score: float) -> Vector:
        """Longest step with which a layout would still reach this score; negative if none would."""
        G = np.asarray(num_gpus, dtype=np.float64)
        if self.objective == "cost":
            return score / G
        if self.objective == "gpus":
            return np.minimum((score - G) * 2 * self.limit_s, self.limit_s)
        return np.full(G.shape, score)


def goal_of(request: PlanRequest) -> Goal:
    """Read the goal of a request; the fewest GPUs for a deadline need a deadline and a number of tokens."""
    job = request.job
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
