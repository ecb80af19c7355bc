"""A batch as a range, as written, and the sizes of it that suit a number of GPUs.

A step is divided among replicas without a rest, so a batch that shares few factors with the GPUs forbids
layouts or leaves GPUs idle.
"""

from __future__ import annotations

import math

from planner.plan import PlanRequest
from topology.base.counts import parse_count
from topology.base.errors import InputError

RANGE = ".."
MOST_TRIED = 8
"""Batches of a range that are planned."""
NEAR = 0.25
"""Relative distance up to which a batch is near another."""


def is_range(text: str | None) -> bool:
    """Whether a batch is written as a range, ``256..1024``.

    >>> is_range("256..1024"), is_range("512"), is_range(None)
    (True, False, False)
    """
    return text is not None and RANGE in text


def read_range(text: str) -> tuple[int, int]:
    """Both ends of a range of batches.

    >>> read_range("256..1k")
    (256, 1000)
    """
    ends = [parse_count(end, "--global-batch-size") for end in text.split(RANGE, 1)]
    low, high = ends
    if low > high:
        raise InputError(
            what=f"--global-batch-size {text} is no range",
            cause=f"it goes from {low:,} down to {high:,}",
            fix=f"write {high}{RANGE}{low}",
        )
    return low, high


def suited(low: int, high: int, num_gpus: int, most: int = MOST_TRIED) -> tuple[int, ...]:
    """Sizes of a range that share most with so many GPUs, the ends among them, ascending.

    >>> suited(256, 1024, 576, most=4)
    (256, 576, 864, 1024)
    >>> suited(512, 512, 64)
    (512,)

    Args:
        low: Smallest batch, sequences.
        high: Largest.
        num_gpus: G.
        most: How many; those with the largest common divisor with G, of equal ones the larger.
    """
    shares = [d for d in range(1, num_gpus + 1) if num_gpus % d == 0 and d <= high]
    found = {low, high}
    for share in reversed(shares):
        multiples = range(high // share * share, max(low, 1) - 1, -share)
        for batch in multiples:
            if len(found) >= most:
                return tuple(sorted(found))
            if math.gcd(batch, num_gpus) == share:
                found.add(batch)
    return tuple(sorted(found))


def better_batch(request: PlanRequest) -> int | None:
    """A batch near the one asked for that shares more with the GPUs; None where none does.

    >>> from topology.builders import default_cluster
    >>> from costmodel.job import TrainingJob
    >>> from costmodel.models.catalog import model
    >>> job = TrainingJob(sequence_length=4096, global_batch_size=512)
    >>> better_batch(PlanRequest(model=model("8b"), cluster=default_cluster("h100-sxm", 576).spec, job=job))
    576
    """
    asked, gpus = request.job.global_batch_size, request.cluster.num_gpus
    near = suited(math.ceil(asked * (1 - NEAR)), math.floor(asked * (1 + NEAR)), gpus)
    best = max(near, key=lambda batch: (math.gcd(batch, gpus), -abs(batch - asked)))
    return best if math.gcd(best, gpus) > math.gcd(asked, gpus) else None
