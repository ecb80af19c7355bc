"""A run of an engine that nobody knows: priced as each engine that it may be like, its band their mixture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodel.accuracy.training_runs import TrainingRun
from costmodel.evidence.keys import Footing


def as_each(run: TrainingRun) -> tuple[TrainingRun, ...]:
    """The run under each profile that its engine may be like; itself where its engine is known."""
    return tuple(replace(run, stack=stack) for stack in run.stand_ins) or (run,)


def mixed(values: Sequence[float], deviations: Sequence[float]) -> tuple[float, float]:
    """Middle and deviation of a mixture of log-normal distributions, each as likely as the others.

        log m = mean(log vᵢ),   σ² = mean(σᵢ²) + variance(log vᵢ)

    >>> mixed([1.0, 1.0], [0.1, 0.1])
    (1.0, 0.1)

    Args:
        values: Their middles.
        deviations: Standard deviations of their logarithms.
    """
    logs = np.log(values)
    return math.exp(float(logs.mean())), math.hypot(
        float(np.sqrt(np.mean(np.square(deviations)))), float(logs.std())
    )


def of_nobody(footing: Footing) -> Footing:
    """The same footing of an unknown engine: evidence of a known one says nothing of another."""
    keys = tuple(key for key in footing.keys if not key.name.startswith("profile "))
    return replace(footing, engine="unknown", keys=keys)
