"""What one candidate replica can serve, by simulation: whether it keeps its limits at a rate, and how far.

Everything is deterministic and independent of the fleet that the replica is used in.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from costmodel.serving.load import Lengths, Load, closed_load, open_load
from costmodel.serving.simulator import Simulation, simulate
from planner.serving.replica import (
    OUTPUT_ONLY,
    PROMPT_ONLY,
    WHOLE,
    Option,
    fastest_tpot_s,
    fastest_ttft_s,
    with_chunks,
)

FEWEST_REQUESTS, MOST_REQUESTS = 400, 2000
WARM_UP = 0.2  # share of a simulated open load that fills the replica and is not counted


def load_at(option: Option, rate_per_s: float, *, seed: int = 0) -> Load:
    """An open load long enough to fill the replica several times over."""
    job = option.job
    stay_s = fastest_ttft_s(option.times, job.input_tokens) + job.output_tokens * (
        job.tpot_s or 2 * fastest_tpot_s(option.times, job.input_tokens)
    )
    count = int(np.clip(8 * rate_per_s * stay_s, FEWEST_REQUESTS, MOST_REQUESTS))
    load = open_load(
        rate_per_s=rate_per_s,
        count=count,
        inputs=Lengths(mean=job.input_tokens, p99=job.input_tokens_p99),
        outputs=Lengths(mean=job.output_tokens, p99=job.output_tokens_p99),
        cached_share=job.cached_share,
        burstiness=job.burstiness,
        seed=seed,
    )
    return load if option.phase == WHOLE else phase_load(load, option.phase)


def phase_load(load: Load, phase: str) -> Load:
    """The part of a load that a prefill or a decode worker sees."""
    if phase == PROMPT_ONLY:
        outputs = np.ones(len(load), dtype=np.int64)
        return Load(
            input_tokens=load.input_tokens,
            output_tokens=outputs,
            cached_tokens=load.cached_tokens,
            arrival_s=load.arrival_s,
        )
    return Load(
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        cached_tokens=load.input_tokens,
        arrival_s=load.arrival_s,
    )


def meets(option: Option, simulation: Simulation) -> bool:
    """Whether the limits of this phase hold at the job's percentile.

    And the queue does not grow without end.
    """
    job, steady = option.job, warm(simulation)
    limits = []
    if option.phase != OUTPUT_ONLY and job.ttft_s is not None:
        limits.append((simulation.ttft_s[steady], job.ttft_s))
    if option.phase != PROMPT_ONLY and job.tpot_s is not None and job.output_tokens > 1:
        limits.append((simulation.tpot_s[steady], job.tpot_s))
    if option.phase == WHOLE and job.end_to_end_s is not None:
        limits.append((simulation.end_to_end_s[steady], job.end_to_end_s))
    kept = all(float(np.nanpercentile(values, job.percentile)) <= limit for values, limit in limits)
    return kept and is_stable(simulation)


def warm(simulation: Simulation) -> slice:
    """The requests that count: those after the warm-up."""
    return slice(int(WARM_UP * len(simulation.finish_s)), None)


def is_stable(simulation: Simulation) -> bool:
    """Whether waiting stopped growing.

    The last third waits no more than 4/3 of the middle third, or than half a second: a steady queue waits
    as long in both, one that grows evenly from nothing 5/3 as long in the last.
    """
    wait = simulation.admitted_s - simulation.arrival_s
    third = len(wait) // 3
    return float(wait[-third:].mean()) <= max(4 / 3 * float(wait[third : 2 * third].mean()), 0.5)


def serves(option: Option, rate_per_s: float) -> bool:
    """Whether one replica keeps the limits at this rate, by simulation."""
    return meets(option, simulate(option.times, option.rules, load_at(option, rate_per_s)))


def able(option: Option, rate_per_s: float) -> Option | None:
    """The option with the first of its chunk sizes that keeps the limits at this rate, if one does."""
    return next((one for one in with_chunks(option) if serves(one, rate_per_s)), None)


def capacity_per_s(
    option: Option, *, most_per_s: float, precision: float = 0.02, rate_per_s: float | None = None
) -> float:
    """Highest rate one replica serves within the limits, by bisection of simulations below `most_per_s`.

    0.0 when even a hundredth of the bound is too much. With a `rate_per_s` to be shared by equal replicas the
    search ends as soon as their number is certain; what is returned is a rate that was served.
    """
    low, high = 0.0, most_per_s
    while high - low > precision * high and high > most_per_s / 100:
        if rate_per_s is not None and replicas(rate_per_s, low) == replicas(rate_per_s, high):
            break
        middle = (low + high) / 2
        low, high = (middle, high) if serves(option, middle) else (low, middle)
    return low


def replicas(rate_per_s: float, capacity_per_s: float) -> float:
    """Replicas of this capacity that share the rate; infinitely many of none.

    >>> replicas(10.0, 4.0), replicas(10.0, 0.0)
    (3, inf)
    """
    return ceil(rate_per_s / capacity_per_s) if capacity_per_s > 0 else float("inf")


def best_chunk(
    option: Option, *, most_per_s: float, precision: float = 0.02, rate_per_s: float | None = None
) -> tuple[Option, float]:
    """The option with the chunk size of the highest capacity, and that capacity in requests per second.

    With a `rate_per_s` to share, another chunk size counts only where it saves a replica.
    """
    first, *others = with_chunks(option)

    def capacity_of(one: Option) -> float:
        return capacity_per_s(one, most_per_s=most_per_s, precision=precision, rate_per_s=rate_per_s)

    best, capacity = first, capacity_of(first)
    for other in others:
        better = _better_per_s(capacity, precision, rate_per_s)
        if better <= most_per_s and serves(other, better):
            best, capacity = other, capacity_of(other)
    return best, capacity


def _better_per_s(capacity: float, precision: float, rate_per_s: float | None) -> float:
    """The least rate at which another chunk size would be better than one of this capacity."""
    if rate_per_s is None or capacity <= 0:
        return max((1 + precision) * capacity, 1e-9)
    count = replicas(rate_per_s, capacity)
    return rate_per_s / (count - 1) if count > 1 else float("inf")


def closed_run(option: Option, concurrency: int) -> Simulation:
    """One replica with a constant number of requests in flight, ten rounds of them."""
    job = option.job
    load = closed_load(
        concurrency=concurrency,
        count=int(np.clip(10 * concurrency, 40, MOST_REQUESTS)),
        inputs=Lengths(mean=job.input_tokens, p99=job.input_tokens_p99),
        outputs=Lengths(mean=job.output_tokens, p99=job.output_tokens_p99),
        cached_share=job.cached_share,
    )
    return simulate(option.times, option.rules, load)
