"""A run of which something is unknown: priced as each that it may be, its band their mixture.

Of an engine that nobody knows these are known ones, of a network that is not stated those of machines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

from costmodel.accuracy.training_runs import TrainingRun
from costmodel.evidence.keys import Footing


def as_each(run: TrainingRun) -> tuple[TrainingRun, ...]:
    """The run under each profile that its engine may be like, on each network; itself if both are known."""
    return tuple(
        replace(run, stack=stack, cluster=cluster)
        for stack in run.stand_ins or (run.stack,)
        for cluster in ([cluster for _, cluster in run.networks] or [run.cluster])
    )


def mixture_quantile(values: Sequence[float], deviations: Sequence[float], share: float) -> float:
    """The value below which so much of a mixture of log-normal distributions lies, each as likely as others.

        mean over i of Φ((log x - log vᵢ) / σᵢ) = share

    >>> round(mixture_quantile([1.0, 1.0, 4.0], [0.1, 0.1, 0.1], 0.5), 2)
    1.07

    Args:
        values: Their middles.
        deviations: Standard deviations of their logarithms, none of them 0.
        share: Between 0 and 1.
    """
    logs = [math.log(value) for value in values]
    parts = [NormalDist(*part) for part in zip(logs, deviations, strict=True)]
    low, high = (extreme(part.inv_cdf(share) for part in parts) for extreme in (min, max))
    while high - low > PRECISE:
        middle = (low + high) / 2
        below = sum(part.cdf(middle) for part in parts) / len(parts)
        low, high = (middle, high) if below < share else (low, middle)
    return math.exp((low + high) / 2)


PRECISE = 1e-9
"""Of a logarithm: no digit that is shown depends on it."""


def of_unknown_engine(footing: Footing) -> Footing:
    """The same footing of an unknown engine: evidence of a known one says nothing of another."""
    keys = tuple(key for key in footing.keys if not key.name.startswith("profile "))
    return replace(footing, engine="unknown", keys=keys)
