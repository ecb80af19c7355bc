"""What one candidate replica can serve, by simulation: whether it keeps its limits at a rate, and how far.

Everything is deterministic and independent of the fleet that the replica is used in.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np

from costmodel.serving.simulation.load import Lengths, Load, closed_load, open_load
from costmodel.serving.simulation.replica import Replica
from costmodel.serving.simulation.simulator import Simulation, simulate, simulate_while
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
MOST_REPLICAS = 4096  # more are not tried
WARM_UP_SHARE = 0.2  # share of a simulated open load that fills the replica and is not counted


def load_at(option: Option, rate_per_s: float, *, seed: int = 0) -> Load:
    """An open load long enough to fill the replica several times over.

    It depends on no limit: of two questions that differ in a limit alone, the looser is asked of the same
    requests, so what keeps the tighter one keeps it too.
    """
    job = option.job
    stay_s = fastest_ttft_s(option.times, job.input_tokens)
    if option.phase != PROMPT_ONLY:
        stay_s += job.output_tokens * 2 * fastest_tpot_s(option.times, job.input_tokens)
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
    return not broken_limits(option, simulation, phase=option.phase)


def broken_limits(option: Option, simulation: Simulation, *, phase: str) -> tuple[str, ...]:
    """The limits of a phase that the job's percentile breaks: ttft, tpot, end_to_end, or a growing queue."""
    job, steady = option.job, after_warm_up(simulation)
    limits = []
    if phase != OUTPUT_ONLY and job.ttft_s is not None:
        limits.append(("ttft", simulation.ttft_s, job.ttft_s))
    if phase != PROMPT_ONLY and job.tpot_s is not None and job.output_tokens > 1:
        limits.append(("tpot", simulation.tpot_s, job.tpot_s))
    stay_s = job.end_to_end_s if phase == WHOLE else option.stay_s
    if stay_s is not None:
        limits.append(("end_to_end", simulation.end_to_end_s, stay_s))
    found = [
        name
        for name, values, limit in limits
        if not float(np.nanpercentile(values[steady], job.percentile)) <= limit
    ]
    return (*found, *(() if is_stable(simulation) else ("queue",)))


def after_warm_up(simulation: Simulation) -> slice:
    """The requests that count: those after the warm-up."""
    return slice(int(WARM_UP_SHARE * len(simulation.finish_s)), None)


def is_stable(simulation: Simulation) -> bool:
    """Whether waiting stopped growing.

    The last third waits no more than 4/3 of the middle third, or than half a second: a steady queue waits
    as long in both, one that grows evenly from nothing 5/3 as long in the last.
    """
    wait = simulation.admitted_s - simulation.arrival_s
    third = len(wait) // 3
    return float(wait[-third:].mean()) <= max(4 / 3 * float(wait[third : 2 * third].mean()), 0.5)


def serves(option: Option, rate_per_s: float) -> bool:
    """Whether one replica keeps the limits at this rate, by simulation.

    Which ends when more requests are beyond a limit than its percentile lets be, whatever the others do.
    """
    load = load_at(option, rate_per_s)
    found = simulate_while(option.times, option.rules, load, lambda seen: not _is_lost(option, load, seen))
    return found is not None and meets(option, found)


def _is_lost(option: Option, load: Load, seen: Replica) -> bool:
    """Whether a limit is broken already by the requests of which that is certain.

    A first token that is still to come is as late as it is now, at least.
    """
    job, counted = option.job, slice(int(WARM_UP_SHARE * len(load)), None)
    first, last = (np.asarray(times_s[counted]) for times_s in (seen.first_token_s, seen.finish_s))
    arrival = load.arrival_s[counted]
    if option.phase != OUTPUT_ONLY and job.ttft_s is not None:
        late = np.minimum(first, seen.clock) - arrival > job.ttft_s
        if late.sum() >= _too_many(len(late), job.percentile):
            return True
    if option.stay_s is not None:
        late = np.minimum(last, seen.clock) - arrival > option.stay_s
        if late.sum() >= _too_many(len(late), job.percentile):
            return True
    if option.phase != PROMPT_ONLY and job.tpot_s is not None and job.output_tokens > 1:
        tokens = load.output_tokens[counted] - 1
        least = np.minimum(last, seen.clock) - np.minimum(first + option.times.response_s, last)
        late = (tokens > 0) & (last <= seen.clock) & (least > job.tpot_s * tokens * (1 + 1e-12))
        if late.sum() >= _too_many(int((tokens > 0).sum()), job.percentile):
            return True
    return False


def _too_many(count: int, percentile: float) -> int:
    """So many of `count` values beyond a limit put the percentile, as numpy draws it, surely beyond it.

    Where the percentile falls on one of the values, one more, as rounding may draw it from the one below.

    >>> [_too_many(count, 99) for count in (101, 320, 1600)], _too_many(3, 100)
    ([3, 5, 17], 2)
    """
    return count - max(int(percentile / 100 * (count - 1) - 1e-6), 0)


def able(option: Option, rate_per_s: float) -> Option | None:
    """The option with the first of its chunk sizes that keeps the limits at this rate, if one does."""
    return next((one for one in with_chunks(option) if serves(one, rate_per_s)), None)


def capacity_per_s(option: Option, *, most_per_s: float, precision: float = 0.02) -> float:
    """Highest rate one replica is found to serve within the limits (`bracket_per_s`)."""
    return bracket_per_s(option, most_per_s=most_per_s, precision=precision)[0]


def bracket_per_s(option: Option, *, most_per_s: float, precision: float = 0.02) -> tuple[float, float]:
    """A rate that one replica serves, and one that it does not (or `most_per_s`), by bisection.

    The first is 0.0 when even a hundredth of `most_per_s` is too much.
    """
    low, high = 0.0, most_per_s
    while high - low > precision * high and high > most_per_s / 100:
        middle = (low + high) / 2
        low, high = (middle, high) if serves(option, middle) else (low, middle)
    return low, high


def replicas(rate_per_s: float, capacity_per_s: float) -> float:
    """Replicas of this capacity that share the rate; infinitely many of none.

    The share of n replicas is a capacity of which n are enough, whatever its last digit was rounded to.

    >>> replicas(10.0, 4.0), replicas(10.0, 0.0), replicas(3.0, 3.0 / 49)
    (3, inf, 49)
    """
    return ceil(rate_per_s / capacity_per_s * (1 - 1e-12)) if capacity_per_s > 0 else float("inf")


def best_chunk(option: Option, *, most_per_s: float, precision: float = 0.02) -> tuple[Option, float]:
    """The option with the chunk size of the highest capacity, and that capacity in requests per second."""
    best, capacity, _ = best_bracket(option, most_per_s=most_per_s, precision=precision)
    return best, capacity


def best_bracket(
    option: Option, *, most_per_s: float, precision: float = 0.02
) -> tuple[Option, float, float]:
    """The option with its best chunk size, a rate that it serves, and one that no chunk size does."""
    first, *others = with_chunks(option)
    best, (capacity, ceiling) = first, bracket_per_s(first, most_per_s=most_per_s, precision=precision)
    for other in others:
        better = max((1 + precision) * capacity, 1e-9)
        if better > most_per_s:
            ceiling = most_per_s
        elif not serves(other, better):
            ceiling = max(ceiling, better)
        else:
            served, failed = bracket_per_s(other, most_per_s=most_per_s, precision=precision)
            ceiling = max(ceiling, failed)
            best, capacity = (other, served) if served > capacity else (best, capacity)
    return best, capacity, ceiling


def closed_run(option: Option, concurrency: int) -> Simulation:
    """One replica with a constant number of requests in flight, ten rounds of them.

    Requests beyond the largest batch only lengthen its queue: with n in flight, B of which it can run, each
    waits (n − B)/B times longer outside than a request of B in flight stays (Little at equal throughput).
    """
    job, inside = option.job, min(concurrency, option.rules.max_batch)
    load = closed_load(
        concurrency=inside,
        count=int(np.clip(10 * inside, 40, MOST_REQUESTS)),
        inputs=Lengths(mean=job.input_tokens, p99=job.input_tokens_p99),
        outputs=Lengths(mean=job.output_tokens, p99=job.output_tokens_p99),
        cached_share=job.cached_share,
    )
    found = simulate(option.times, option.rules, load)
    queued_s = (concurrency - inside) / inside * float(found.end_to_end_s.mean())
    return replace(found, arrival_s=found.arrival_s - queued_s) if queued_s else found
