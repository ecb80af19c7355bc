"""What one candidate replica can serve, by simulation: whether it keeps its limits at a rate, and how far.

Everything is deterministic and independent of the fleet that the replica is used in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import ceil

import numpy as np

from costmodel.job import ServingJob
from costmodel.serving.simulation.load import Lengths, Load, closed_load, open_load, outputs_of, prompts_of
from costmodel.serving.simulation.replica import Replica
from costmodel.serving.simulation.requests import NEVER
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.simulation.simulator import (
    Simulation,
    admissions,
    simulate,
    simulate_loop_while,
    simulate_while,
)
from planner.serving.backlog import keeps_up
from planner.serving.replica import (
    OUTPUT_ONLY,
    PROMPT_ONLY,
    WHOLE,
    Option,
    with_chunks,
)

ALONE, ALONE_REQUESTS = 0.2, 200  # requests in flight up to which none meets another, and how many show that
BEYOND, RAREST = 24, 2e-3  # counted requests beyond a percentile, down to one in five hundred
FEWEST_COUNTED, FEWEST_FILLING, MOST_FILLING = 800, 128, 32768
FILLS = 1.5  # times what is in flight comes before latencies count, and half of that, at least, after it
DEVIATIONS = 6  # of a queue at full load, beyond which it is one of too much load
ROUNDS, FEWEST_ROUNDS, MOST_ROUNDS = 10, 40, 2000  # of a closed loop, and its requests
FEWEST_FILLED = 4  # rounds of a closed loop, however many are in flight
QUEUED, FEWEST_QUEUED = 4, 256  # largest batches, and requests, that a closed loop has with its queue
MOST_REPLICAS = 4096  # more are not tried
UNCOUNTED_SHARE = 0.2  # of a trace, and of loads of several services


def load_at(option: Option, rate_per_s: float, *, seed: int = 0) -> Load:
    """An open load of one replica, or of its phase alone."""
    load = filled_load(option.job, rate_per_s, requests_in_flight(option, rate_per_s), seed=seed)
    return phase_load(load, option.phase)


def filled_load(job: ServingJob, rate_per_s: float, in_flight: float, *, seed: int = 0) -> Load:
    """An open load of the job: requests that fill what serves it, and then enough for its percentile.

    Nothing depends on a limit: of two questions that differ in one, the looser is asked of the same requests,
    so what keeps the tighter one keeps it too. Fillings are powers of two, so loads of nearly the same rate
    are the same requests, nearer together.
    """
    filling = min(max(1 << ceil(FILLS * in_flight - 1).bit_length(), FEWEST_FILLING), MOST_FILLING)
    counted = max(ceil(BEYOND / max(1 - job.percentile / 100, RAREST)), FEWEST_COUNTED, filling // 2)
    return _drawn_at(job, rate_per_s, filling, counted, seed)


def _drawn_at(job: ServingJob, rate_per_s: float, filling: int, counted: int, seed: int = 0) -> Load:
    """So many requests of the job at a rate; those of another rate are the same, further apart."""
    drawn = _drawn(
        filling,
        counted,
        Lengths(mean=job.input_tokens, p99=job.input_tokens_p99),
        Lengths(mean=job.output_tokens, p99=job.output_tokens_p99),
        job.cached_share,
        job.burstiness,
        seed,
    )
    return replace(drawn, arrival_s=drawn.arrival_s / rate_per_s)


@lru_cache(maxsize=256)
def _drawn(
    filling: int,
    counted: int,
    inputs: Lengths,
    outputs: Lengths,
    cached_share: float,
    burstiness: float,
    seed: int,
) -> Load:
    """Requests that arrive once a second."""
    load = open_load(
        rate_per_s=1.0,
        count=filling + counted,
        inputs=inputs,
        outputs=outputs,
        cached_share=cached_share,
        burstiness=burstiness,
        seed=seed,
    )
    return replace(load, filling=filling)


def requests_in_flight(option: Option, rate_per_s: float) -> float:
    """Requests that a replica works on at a rate, about; at most its tables' batch.

    Little: the least b of which b = rate · outputs · step(b), where steps that hold prompts alone take the
    share of the time that their seconds are; the prompts themselves as if each had the replica alone.
    """
    job, times = option.job, option.times
    prompt = max(int(job.input_tokens * (1 - job.cached_share)), 1)
    prompts = rate_per_s * times.prefill_s(prompt) if option.phase != OUTPUT_ONLY else 0.0
    if option.phase == PROMPT_ONLY or job.output_tokens == 1:
        return prompts
    step_s = times.decode_steps_s(times.max_batch, job.input_tokens + job.output_tokens / 2)
    needed = (
        rate_per_s * job.output_tokens / times.tokens_per_step * step_s / max(1 - prompts / times.ranks, 1e-9)
    )
    enough = np.arange(1, times.max_batch + 1) >= needed
    outputs = max(float(needed[0]), float(np.argmax(enough))) if enough.any() else float(times.max_batch)
    return prompts + outputs


def phase_load(load: Load, phase: str) -> Load:
    """The part of a load that a worker of this phase sees."""
    if phase == WHOLE:
        return load
    return prompts_of(load) if phase == PROMPT_ONLY else outputs_of(load)


def meets(option: Option, load: Load, simulation: Simulation) -> bool:
    """Whether one replica keeps the limits of its phase under a load, and keeps up with it."""
    if broken_limits(option, simulation):
        return False
    return keeps_up(load, simulation, partial(admissions, option.times, option.rules))


def broken_limits(option: Option, simulation: Simulation) -> tuple[str, ...]:
    """The limits of the option's phase that the job's percentile breaks: ttft, tpot, end_to_end."""
    phase = option.phase
    job, steady = option.job, after_warm_up(simulation)
    limits = []
    if phase != OUTPUT_ONLY and job.ttft_s is not None:
        limits.append(("ttft", simulation.ttft_s, job.ttft_s))
    if phase != PROMPT_ONLY and job.tpot_s is not None and job.output_tokens > 1:
        limits.append(("tpot", simulation.tpot_s, job.tpot_s))
    stay_s = job.end_to_end_s if phase == WHOLE else option.stay_s
    if stay_s is not None:
        limits.append(("end_to_end", simulation.end_to_end_s, stay_s))
    return tuple(
        name
        for name, values, limit in limits
        if not float(np.nanpercentile(values[steady], job.percentile)) <= limit
    )


def after_warm_up(simulation: Simulation) -> slice:
    """The requests that count: those after the ones that fill, or of other loads after a fifth."""
    return slice(simulation.filling or int(UNCOUNTED_SHARE * len(simulation.finish_s)), None)


def serves(option: Option, rate_per_s: float) -> bool:
    """Whether one replica keeps the limits at this rate, by simulation.

    Lengths are drawn by strata: few requests that hardly meet show them all, so where they keep the limits no
    more are asked. A simulation ends when more requests are beyond a limit than its percentile lets be,
    whatever the others do. What a fleet and the one that is surer ask of a replica alike is simulated once.
    """
    known, question = option.times.served, (option.rules, option.job, option.phase, option.stay_s, rate_per_s)
    if question not in known:
        known[question] = _serves(option, rate_per_s)
    return known[question]


def _serves(option: Option, rate_per_s: float) -> bool:
    """The same, simulated."""
    working = requests_in_flight(option, rate_per_s)
    if working < ALONE and ALONE_REQUESTS * (1 - option.job.percentile / 100) >= 2:
        few = _drawn_at(option.job, rate_per_s, 1, ALONE_REQUESTS)
        if _keeps(option, phase_load(few, option.phase)):
            return True
    return _keeps(option, load_at(option, rate_per_s))


def _keeps(option: Option, load: Load) -> bool:
    """Whether the limits hold in this load."""
    late = _Late(option, load)
    simulation = simulate_while(option.times, option.rules, load, lambda seen: not late.too_many(seen))
    return simulation is not None and meets(option, load, simulation)


class _Late:
    """The requests of a load that count and are certain to be beyond a limit, each looked at once.

    Those that fill say nothing: they meet in an empty batch, run in step and end together, so that up to half
    of them are late at rates at which three of a hundred are for hours. Nothing is waited for where more
    wait than chance makes: after n requests at full load a queue has a standard deviation of √(n·(c² + 1)),
    c the variation of the gaps between them, if requests vary as much as Poisson arrivals do.
    """

    __slots__ = (
        "_arrival_s", "_beyond", "_ended", "_filling", "_limits", "_most", "_most_waiting", "_started",
        "_tokens",
    )  # fmt: skip

    def __init__(self, option: Option, load: Load) -> None:
        """Nobody has arrived."""
        job, counted = option.job, load.output_tokens[load.filling :]
        prompts, outputs = option.phase != OUTPUT_ONLY, option.phase != PROMPT_ONLY and job.output_tokens > 1
        self._limits = (
            job.ttft_s if prompts and job.ttft_s is not None else NEVER,
            job.tpot_s * (1 + 1e-12) if outputs and job.tpot_s is not None else NEVER,
            option.stay_s if option.stay_s is not None else NEVER,
            option.times.response_s,
        )
        sizes = len(counted), int((counted > 1).sum())
        most, several = (max(_too_many(size, job.percentile), 1) for size in sizes)
        self._most = most, several, most
        self._arrival_s: list[float] = load.arrival_s.tolist()
        self._tokens: list[int] = (load.output_tokens - 1).tolist()
        self._filling, self._started, self._ended = load.filling, load.filling, 0
        self._most_waiting = DEVIATIONS * (len(load) * (job.burstiness**2 + 1)) ** 0.5
        self._beyond = [0, 0, 0]  # first tokens, other tokens, stays

    def too_many(self, seen: Replica) -> bool:
        """Whether a percentile is beyond its limit whatever the others do.

        A first token that is still to come is as late as it is now, at least.
        """
        if len(seen.waiting) > self._most_waiting:
            return True
        ttft_s, tpot_s, stay_s, response_s = self._limits
        first_s, arrival_s, filling, beyond = seen.first_token_s, self._arrival_s, self._filling, self._beyond
        at, clock = self._started, seen.clock
        if ttft_s < NEVER:
            while at < len(first_s):
                known_s = min(first_s[at], seen.finish_s[at], clock)
                if known_s == clock and clock - arrival_s[at] <= ttft_s:
                    break
                beyond[0] += known_s - arrival_s[at] > ttft_s
                at += 1
            self._started = at
        if tpot_s < NEVER or stay_s < NEVER:
            for i in seen.finished[self._ended :]:
                if i >= filling:
                    last_s, tokens = seen.finish_s[i], self._tokens[i]
                    beyond[1] += (
                        tokens > 0 and last_s - min(first_s[i] + response_s, last_s) > tpot_s * tokens
                    )
                    beyond[2] += last_s - arrival_s[i] > stay_s
            self._ended = len(seen.finished)
        first, other, stay = self._most
        return beyond[0] >= first or beyond[1] >= other or beyond[2] >= stay


def _too_many(count: int, percentile: float) -> int:
    """So many of `count` values beyond a limit put the percentile, as numpy draws it, surely beyond it.

    Where the percentile falls on one of the values, one more, as rounding may draw it from the one below.

    >>> [_too_many(count, 99) for count in (101, 320, 1600)], _too_many(3, 100)
    ([3, 5, 17], 2)
    """
    return count - max(int(percentile / 100 * (count - 1) - 1e-6), 0)


def with_able_chunk(option: Option, rate_per_s: float) -> Option | None:
    """The option with the first of its chunk sizes that keeps the limits at this rate, if one does."""
    return next((chunked for chunked in with_chunks(option) if serves(chunked, rate_per_s)), None)


def capacity_per_s(option: Option, *, most_per_s: float, precision: float = 0.02) -> float:
    """Highest rate one replica is found to serve within the limits (`bracket_per_s`)."""
    return bracket_per_s(option, most_per_s=most_per_s, precision=precision)[0]


def bracket_per_s(
    option: Option, *, most_per_s: float, precision: float = 0.02, served_per_s: float = 0.0
) -> tuple[float, float]:
    """A rate that one replica serves, and one that it does not (or `most_per_s`), by bisection.

    The first is 0.0 when even a hundredth of `most_per_s` is too much. Nothing is asked up to `served_per_s`,
    which it was seen to serve: a little below, the luck of few requests may say otherwise.
    """
    low, high = 0.0, most_per_s
    while high - low > precision * high and high > most_per_s / 100:
        middle = (low + high) / 2
        known = middle <= served_per_s
        low, high = (middle, high) if known or serves(option, middle) else (low, middle)
    return max(low, min(served_per_s, high)), high


def replicas_for(rate_per_s: float, capacity_per_s: float) -> float:
    """Replicas of this capacity that share the rate; infinitely many of none.

    The share of n replicas is a capacity of which n are enough, whatever its last digit was rounded to.

    >>> replicas_for(10.0, 4.0), replicas_for(10.0, 0.0), replicas_for(3.0, 3.0 / 49)
    (3, inf, 49)
    """
    return ceil(rate_per_s / capacity_per_s * (1 - 1e-12)) if capacity_per_s > 0 else float("inf")


def best_chunk(option: Option, *, most_per_s: float, precision: float = 0.02) -> tuple[Option, float]:
    """The option with the chunk size of the highest capacity, and that capacity in requests per second."""
    best, capacity, _ = best_bracket(option, most_per_s=most_per_s, precision=precision)
    return best, capacity


def best_bracket(
    option: Option,
    *,
    most_per_s: float,
    precision: float = 0.02,
    able: Option | None = None,
    served_per_s: float = 0.0,
) -> tuple[Option, float, float]:
    """The option with its best chunk size, a rate that it serves, and one that no chunk size does.

    Args:
        option: The replica.
        most_per_s: A rate that it does not serve more than.
        precision: To which rates are told apart.
        able: It with the first chunk size that was seen to serve `served_per_s`, where that was asked.
        served_per_s: Requests a second that it was seen to serve so.
    """
    chunks = with_chunks(option)
    sizes = [chunked.rules for chunked in chunks]
    first, *others = chunks if able is None else chunks[sizes.index(able.rules) :]
    known = served_per_s if able is not None else 0.0
    capacity, ceiling = bracket_per_s(first, most_per_s=most_per_s, precision=precision, served_per_s=known)
    best = first
    for other in others:
        better = max((1 + precision) * capacity, 1e-9)
        if better > most_per_s:
            ceiling = most_per_s
        elif not serves(other, better):
            ceiling = max(ceiling, better)
        else:
            served, failed = bracket_per_s(
                other, most_per_s=most_per_s, precision=precision, served_per_s=better
            )
            ceiling = max(ceiling, failed)
            best, capacity = (other, served) if served > capacity else (best, capacity)
    return best, capacity, ceiling


def closed_run(option: Option, concurrency: int) -> Simulation:
    """One replica with a constant number of requests in flight, ten rounds of them.

    More than the largest batch wait in its queue, which has the next one at hand when one ends: with just as
    many in flight as the batch holds, its place would be empty while the client sends another. Beyond four
    batches more only lengthen that queue: with n in flight, N of which are simulated, each waits (n − N)/N
    times longer outside than a request of N in flight stays (Little at equal throughput).
    """
    most = option.rules.max_batch
    load = load_of_loop(option.job, most, concurrency)
    return with_queue(most, concurrency, simulate(option.times, option.rules, load))


Loops = dict[tuple[Scheduler, int, bool], Simulation | None]
"""Closed loops of one replica by its scheduler, the requests in flight that are simulated, and whether more
of them are there than its batch holds; None where a limit broke."""


def closed_run_unless_late(option: Option, concurrency: int, loops: Loops | None = None) -> Simulation | None:
    """The same run, or None as soon as a percentile is beyond its limit whatever the others do.

    Args:
        option: The replica.
        concurrency: Requests in flight.
        loops: Those of the same replica that were simulated: beyond four batches all are the same but for
            the wait outside.
    """
    loops, most = {} if loops is None else loops, option.rules.max_batch
    loop = option.rules, _inside(most, concurrency), concurrency > most
    if loop not in loops:
        load = load_of_loop(option.job, most, concurrency)
        late = _LateInLoop(option, load, counted_in_loop(most, concurrency))
        loops[loop] = simulate_loop_while(
            option.times, option.rules, load, lambda seen, sent_s: not late.too_many(seen, sent_s)
        )
    simulation = loops[loop]
    return None if simulation is None else with_queue(most, concurrency, simulation)


def load_of_loop(job: ServingJob, max_batch: int, concurrency: int) -> Load:
    """The requests that are sent to what runs `max_batch`, so many of them in flight as are simulated."""
    inside = _inside(max_batch, concurrency)
    return closed_load(
        concurrency=inside,
        count=max(min(ROUNDS * inside, max(MOST_ROUNDS, FEWEST_FILLED * inside)), FEWEST_ROUNDS),
        inputs=Lengths(mean=job.input_tokens, p99=job.input_tokens_p99),
        outputs=Lengths(mean=job.output_tokens, p99=job.output_tokens_p99),
        cached_share=job.cached_share,
    )


def with_queue(max_batch: int, concurrency: int, simulation: Simulation) -> Simulation:
    """A closed loop whose requests also wait with those that are not simulated."""
    inside = _inside(max_batch, concurrency)
    stay_s = float(simulation.end_to_end_s[counted_in_loop(max_batch, concurrency)].mean())
    queued_s = (concurrency - inside) / inside * stay_s
    return replace(simulation, arrival_s=simulation.arrival_s - queued_s) if queued_s else simulation


class _LateInLoop:
    """The requests of a closed loop that ended beyond a limit, each looked at once."""

    __slots__ = ("_beyond", "_ended", "_first", "_last", "_limits", "_most", "_response_s", "_tokens")

    def __init__(self, option: Option, load: Load, counted: slice) -> None:
        """Nothing has ended."""
        job, several = option.job, int((load.output_tokens[counted] > 1).sum())
        self._first, self._last, _ = counted.indices(len(load))
        limits = job.ttft_s, job.tpot_s if job.output_tokens > 1 else None, job.end_to_end_s
        self._limits = tuple(NEVER if limit is None else limit * (1 + 1e-12) for limit in limits)
        self._response_s = option.times.response_s
        most, others = (
            max(_too_many(size, job.percentile), 1) for size in (self._last - self._first, several)
        )
        self._most = most, others, most
        self._tokens: list[int] = (load.output_tokens - 1).tolist()
        self._ended, self._beyond = 0, [0, 0, 0]

    def too_many(self, seen: Replica, sent_s: Sequence[float]) -> bool:
        """Whether a percentile is beyond its limit whatever the others do."""
        ttft_s, tpot_s, stay_s = self._limits
        for i in seen.finished[self._ended :]:
            if self._first <= i < self._last:
                last_s, tokens = seen.finish_s[i], self._tokens[i]
                first_s = min(seen.first_token_s[i] + self._response_s, last_s)
                self._beyond[0] += first_s - sent_s[i] > ttft_s
                self._beyond[1] += tokens > 0 and last_s - first_s > tpot_s * tokens
                self._beyond[2] += last_s - sent_s[i] > stay_s
        self._ended = len(seen.finished)
        return any(beyond >= most for beyond, most in zip(self._beyond, self._most, strict=True))


def counted_in_loop(max_batch: int, concurrency: int) -> slice:
    """The requests of a closed loop that count: where some wait, all but the first and last of each client.

    The first all come at once and find a queue that is not yet as long as it stays; during the last it ends.
    """
    inside = _inside(max_batch, concurrency)
    return slice(inside, -inside) if concurrency > max_batch else slice(None)


def _inside(max_batch: int, concurrency: int) -> int:
    """How many requests in flight are simulated."""
    return min(concurrency, max(QUEUED * max_batch, FEWEST_QUEUED))
