"""One candidate replica.

Its scheduler and step times, and bounds on what it can serve.

Bounds come first, because a simulation (`planner.serving.capacity`) costs a thousand of them: no request
waits less than its own prefill, no token is decoded faster than in a batch of one, and a step serves at most
the batch that the cache and the limit allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import NormalDist

import numpy as np

from costmodel.job import ServingJob
from costmodel.kernels.tables import Calibration
from costmodel.serving.deployment import Deployment
from costmodel.serving.engine import ServingStack, scheduler_default
from costmodel.serving.held import most_requests, sampled_requests
from costmodel.serving.memory import kv_capacity_tokens
from costmodel.serving.simulation.load import Lengths, lognormal_parameters
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.step import step_times
from costmodel.serving.step_table import StepTimes
from planner.serving.latency import LeastLatency, least_attention_s
from topology.base.arrays import Floats

PROMPT_ONLY, OUTPUT_ONLY, WHOLE = "prefill", "decode", "whole"
OUT_OF_MEMORY = "does not fit in memory"
LEAST_LIMIT_S = 1e-6
"""Of a first token whose whole limit its cache needs on the way: nothing keeps it."""
RARE_LENGTH = 1e-6
"""Share of lengths that are as good as never drawn: a load has some ten thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A replica that could be deployed.

    `phase` is whole, prefill (prompts only) or decode (outputs only). `schedulers` are the ways in which it
    may be scheduled (one for each size of prompt chunks), and `rules` the one in use. `sampled` are the
    requests for whose samples its engine keeps memory. `stay_s` is how long a request may stay under an
    end-to-end limit: the whole of it, or of a pool what the other takes least.
    """

    deployment: Deployment
    rules: Scheduler
    schedulers: tuple[Scheduler, ...]
    times: StepTimes
    job: ServingJob
    sampled: int
    phase: str = WHOLE
    stay_s: float | None = None

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.deployment.layout.num_gpus

    @property
    def label(self) -> str:
        """Layout, precision and phase."""
        label = f"{self.deployment.layout.label} {self.deployment.weights}"
        return label if self.phase == WHOLE else f"{self.phase} {label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Why a layout is no option."""

    reason: str
    best_ttft_s: float | None = None
    best_tpot_s: float | None = None


def build_option(
    cal: Calibration,
    deployment: Deployment,
    job: ServingJob,
    *,
    phase: str = WHOLE,
    tables: dict[int, StepTimes] | None = None,
) -> Option | Rejected:
    """Tabulate a replica, or say why it cannot serve the job: memory, or a limit its bounds already break.

    `tables` keeps the step times of this deployment by batch, for its other phases that need no longer ones.
    """
    if phase == PROMPT_ONLY:
        job = before_handing_over(job, deployment.stack.transfer_s)
    context = job.input_tokens + job.output_tokens
    budgets = token_budgets(deployment, job, phase)
    most_batch = _most_sampled(deployment, job, min(budgets))
    if not most_batch:
        return Rejected(reason=OUT_OF_MEMORY)
    capacities = [_started_tokens(deployment, job, budget, most_batch) for budget in budgets]
    batch = int(max(min(max(capacities) // context, most_batch), deployment.layout.attention_dp))
    tables = {} if tables is None else tables
    if batch not in tables or len(tables[batch].linear_s) <= max(budgets):
        tables[batch] = step_times(
            cal,
            deployment,
            max_batch=batch,
            token_budget=max(budgets),
            input_tokens=job.input_tokens,
            output_tokens=job.output_tokens,
        )
    times = tables[batch]
    broken = _broken_limit(least_latency(times, job, deployment.stack, budgets), job, phase)
    if broken is not None:
        return broken
    most = batch if phase == PROMPT_ONLY else largest_batch(times, job, batch)
    schedulers = tuple(
        _scheduler(
            deployment.stack,
            budget,
            most,
            capacity,
            phase=phase,
            balance_steps=steps,
        )
        for budget in budgets
        for capacity in [_started_tokens(deployment, job, budget, most)]
        for steps in balances(deployment, phase)
        if _holds(deployment, job, capacity)
    )
    return Option(
        deployment=deployment,
        rules=schedulers[0],
        schedulers=schedulers,
        times=times,
        job=job,
        sampled=most,
        phase=phase,
        stay_s=job.end_to_end_s,
    )


def _started_tokens(deployment: Deployment, job: ServingJob, token_budget: int, max_batch: int) -> int:
    """Tokens of the job's requests that the cache of a replica holds which is told to run so many at once."""
    return kv_capacity_tokens(
        deployment,
        token_budget=token_budget,
        max_batch=max_batch,
        context=job.input_tokens + job.output_tokens,
    )


def before_handing_over(job: ServingJob, transfer_s: float) -> ServingJob:
    """The job of a worker that computes prompts: its share of a limit on the first token.

    A client sees that token from the worker that decodes, so no earlier than its cache can get there.

    >>> job = ServingJob(input_tokens=1000, output_tokens=200, ttft_s=0.5)
    >>> before_handing_over(job, 0.05).ttft_s, before_handing_over(replace(job, output_tokens=1), 0.05).ttft_s
    (0.45, 0.5)
    """
    if job.ttft_s is None or _may_end_at_once(job):
        return job
    return replace(job, ttft_s=max(job.ttft_s - transfer_s, LEAST_LIMIT_S))


def _may_end_at_once(job: ServingJob) -> bool:
    """Whether requests are drawn that end with their first token, whose cache nobody fetches."""
    mean, p99 = job.output_tokens, job.output_tokens_p99 or 0
    if mean == 1 or p99 <= mean:
        return mean == 1
    mu, sigma = lognormal_parameters(mean, p99)
    return NormalDist(mu, sigma).cdf(log(2)) > RARE_LENGTH


def started_option(
    cal: Calibration,
    deployment: Deployment,
    job: ServingJob,
    *,
    max_batch: int | None,
    token_budget: int | None,
    balance_steps: int = 0,
    gather_steps: int = 0,
    phase: str = WHOLE,
) -> Option | Rejected:
    """A replica as a server was started: its own batch and tokens of a step, whatever limits they keep.

    Args:
        cal: Kernel and collective tables.
        deployment: What was started.
        job: The load.
        max_batch: Requests that run at once, over all attention ranks; None is the engine's default.
        token_budget: Tokens of a step of an attention rank; None is the engine's default.
        balance_steps: Decode steps that prompts wait until every attention rank has one.
        gather_steps: Decode steps that they wait after that for others.
        phase: What it computes.
    """
    stack, ranks = deployment.stack, deployment.layout.attention_dp
    budget = token_budget or token_budgets(deployment, job, WHOLE)[0]
    sampled = sampled_requests(deployment, max_batch)
    batch = min(sampled, most_requests(deployment))
    context = job.input_tokens + job.output_tokens
    longest = (job.input_tokens_p99 or job.input_tokens) + (job.output_tokens_p99 or job.output_tokens)
    capacity = _started_tokens(deployment, job, budget, sampled)
    if capacity // ranks < longest + stack.kv_block_tokens:
        return Rejected(reason=OUT_OF_MEMORY)
    most = int(max(min(capacity // context, batch), ranks))
    rules = _scheduler(stack, budget, most, capacity, phase=phase, balance_steps=balance_steps)
    rules = replace(rules, gather_steps=gather_steps)
    times = step_times(
        cal,
        deployment,
        max_batch=most,
        token_budget=budget,
        input_tokens=job.input_tokens,
        output_tokens=job.output_tokens,
    )
    return Option(
        deployment=deployment,
        rules=rules,
        schedulers=(rules,),
        times=times,
        job=job,
        sampled=sampled,
        phase=phase,
        stay_s=job.end_to_end_s,
    )


def holds_requests(deployment: Deployment, job: ServingJob, token_budget: int) -> bool:
    """Whether the cache that the weights leave an attention rank holds the longest request that is drawn."""
    return _most_sampled(deployment, job, token_budget) > 0


def _most_sampled(deployment: Deployment, job: ServingJob, token_budget: int) -> int:
    """Most requests that a replica may be told to run whose cache then holds the longest one; 0 if none.

    The more it may run, the more memory its engine keeps to sample them. Every attention rank runs as many.
    """

    def holds(each: int) -> bool:
        return _holds(deployment, job, _started_tokens(deployment, job, token_budget, each * ranks))

    ranks = deployment.layout.attention_dp
    most = most_requests(deployment) // ranks
    if holds(most):
        return most * ranks
    held, beyond = 0, most
    while beyond - held > 1:
        middle = (held + beyond) // 2 if held else 1
        held, beyond = (middle, beyond) if holds(middle) else (held, middle)
    return held * ranks


def longest_drawn(job: ServingJob) -> int:
    """Tokens of the longest request that a load of this job has.

    >>> job = ServingJob(input_tokens=2000, output_tokens=500)
    >>> longest_drawn(job), longest_drawn(replace(job, input_tokens_p99=8000))
    (2500, 16500)
    """
    inputs = Lengths(mean=job.input_tokens, p99=job.input_tokens_p99)
    outputs = Lengths(mean=job.output_tokens, p99=job.output_tokens_p99)
    return int(inputs.longest + outputs.longest)


def _holds(deployment: Deployment, job: ServingJob, capacity_tokens: int) -> bool:
    """Whether each attention rank's part of a cache holds the longest request, and a block more."""
    rank_tokens = capacity_tokens // deployment.layout.attention_dp
    return rank_tokens >= longest_drawn(job) + deployment.stack.kv_block_tokens


def token_budgets(deployment: Deployment, job: ServingJob, phase: str) -> tuple[int, ...]:
    """Tokens of a step to consider, the engine's default on this GPU first; a whole prompt where none is cut.

    Small chunks disturb decoding less, large ones use the GPU better. A decode pool computes no prompts, so
    the smallest leaves it the most cache.
    """
    stack = deployment.stack
    if not stack.chunked:
        return (max(stack.token_budget, job.input_tokens_p99 or job.input_tokens),)
    default = scheduler_default(stack, deployment.hierarchy.gpu).token_budget
    if phase == OUTPUT_ONLY:
        return (min(default, *stack.chunk_sizes),)
    return (default, *(size for size in stack.chunk_sizes if size != default))


def least_latency(
    times: StepTimes,
    job: ServingJob,
    stack: ServingStack,
    budgets: tuple[int, ...],
    *,
    share: float | None = None,
) -> LeastLatency:
    """Bounds on the latencies of this replica; of the job's percentile, or of another share of requests."""
    return LeastLatency(
        times=times,
        job=job,
        budgets=budgets,
        chunked=stack.chunked,
        lagged=stack.lagged,
        most_riders=times.max_batch,
        share=job.percentile / 100 if share is None else share,
    )


def within_end_to_end(options: Sequence[Option]) -> list[Option | Rejected]:
    """Options, those of pools with what the fastest of the other pool leaves of an end-to-end limit.

    No request is faster through both pools than through the fastest of each, so what a pool alone cannot do
    in what is left no fleet of it can.
    """
    pools = [option for option in options if option.phase != WHOLE and option.stay_s is not None]
    least = {id(option): _least(option) for option in pools}
    prompts = min(
        (least[id(option)].any_prompt_s for option in pools if option.phase == PROMPT_ONLY), default=0.0
    )
    outputs = min(
        (least[id(option)].any_outputs_s for option in pools if option.phase == OUTPUT_ONLY), default=0.0
    )
    judged: list[Option | Rejected] = []
    for option in options:
        if option.phase == WHOLE or option.stay_s is None:
            judged.append(option)
            continue
        bounds, at = least[id(option)], option.phase == PROMPT_ONLY
        stay_s, needed_s = (
            option.stay_s - (outputs if at else prompts),
            bounds.prompts_ttft_s if at else bounds.outputs_s,
        )
        lost = Rejected(reason="end-to-end time", best_ttft_s=bounds.ttft_s, best_tpot_s=bounds.tpot_s)
        judged.append(replace(option, stay_s=stay_s) if needed_s <= stay_s else lost)
    return judged


def tightened(option: Option, *, ttft: float, tpot: float) -> Option | Rejected:
    """The option under tighter limits, or which of them an empty engine breaks.

    Args:
        option: A replica.
        ttft: By what the limit on the first token is multiplied, at most 1.
        tpot: The same of the limits on other tokens and on the whole request.
    """
    job = replace(
        option.job,
        ttft_s=None if option.job.ttft_s is None else option.job.ttft_s * ttft,
        tpot_s=None if option.job.tpot_s is None else option.job.tpot_s * tpot,
        end_to_end_s=None if option.job.end_to_end_s is None else option.job.end_to_end_s * tpot,
    )
    tight = replace(option, job=job, stay_s=None if option.stay_s is None else option.stay_s * tpot)
    broken = _broken_limit(_least(tight), job, option.phase)
    if broken is not None or option.phase == PROMPT_ONLY:
        return broken or tight
    most = largest_batch(option.times, job, option.rules.max_batch)
    schedulers = tuple(
        replace(
            scheduler,
            max_batch=most,
            kv_capacity_tokens=_started_tokens(option.deployment, job, scheduler.token_budget, most),
        )
        for scheduler in option.schedulers
    )
    return replace(tight, rules=schedulers[0], schedulers=schedulers, sampled=most)


def _least(option: Option) -> LeastLatency:
    """Bounds on the latencies of an option."""
    budgets = tuple(rules.token_budget for rules in option.schedulers)
    return least_latency(option.times, option.job, option.deployment.stack, budgets)


def _broken_limit(least: LeastLatency, job: ServingJob, phase: str) -> Rejected | None:
    """The limit that even an empty engine breaks, if there is one."""
    ttft, tpot = least.prompts_ttft_s if phase == PROMPT_ONLY else least.ttft_s, least.tpot_s
    reason = None
    if phase == WHOLE and job.end_to_end_s is not None and least.end_to_end_s > job.end_to_end_s:
        reason = "end-to-end time"
    if phase != PROMPT_ONLY and job.tpot_s is not None and job.output_tokens > 1 and tpot > job.tpot_s:
        reason = "time per output token"
    if phase != OUTPUT_ONLY and job.ttft_s is not None and ttft > job.ttft_s:
        reason = "time to first token"
    return Rejected(reason=reason, best_ttft_s=ttft, best_tpot_s=tpot) if reason else None


def balances(deployment: Deployment, phase: str) -> tuple[int, ...]:
    """For how many decode steps prompts may wait for those of other attention ranks: as measured, or none.

    A pool computes prompts or outputs, so there nothing is held up.
    """
    steps = deployment.stack.balance_steps if deployment.layout.attention_dp > 1 and phase == WHOLE else 0
    return (steps, 0) if steps else (0,)


def _scheduler(
    stack: ServingStack,
    token_budget: int,
    max_batch: int,
    kv_capacity_tokens: int,
    *,
    phase: str,
    balance_steps: int,
) -> Scheduler:
    """The engine's scheduler with this budget, batch and cache."""
    return Scheduler(
        token_budget=token_budget,
        max_batch=max_batch,
        kv_capacity_tokens=kv_capacity_tokens,
        mixed=stack.mixed,
        chunked=stack.chunked,
        output_reserve=stack.output_reserve,
        spare_blocks=stack.spare_blocks,
        holds_slot=stack.holds_slot,
        kv_block_tokens=stack.kv_block_tokens,
        lagged=stack.lagged and (phase != PROMPT_ONLY or stack.prefill_lagged),
        balance_steps=balance_steps,
    )


def with_chunks(option: Option) -> tuple[Option, ...]:
    """The option under each of its schedulers, the engine's default first."""
    return tuple(replace(option, rules=rules) for rules in option.schedulers)


def largest_batch(times: StepTimes, job: ServingJob, most: int) -> int:
    """Largest batch whose decode step, without prompts, still meets the limit on the time per token."""
    if job.tpot_s is None:
        return most
    batch = np.arange(1, most + 1)
    step_s = times.decode_steps_s(most, job.input_tokens + job.output_tokens / 2)
    within = batch[step_s / times.tokens_per_step <= job.tpot_s]
    return int(within.max(initial=1))


def rate_bound_per_s(option: Option) -> float:
    """Requests per second that no schedule of this replica can sustain more of.

    Every step is at least a line α + β·tokens below its table, and a batch holds at most B requests, so a
    request takes at least β·prompt + steps·(α/B + β') + attention of the replica's time, whatever shares
    its steps. A preempted request is spared a step for each time its prompt is computed again.
    """
    times, job, rules = option.times, option.job, option.rules
    prompt = job.input_tokens * (1 - job.cached_share)
    steps = (job.output_tokens - 1) / times.tokens_per_step
    fixed, slope = _line_below(times.linear)
    prompt_s = (prompt * slope + least_attention_s(times, prompt)) / times.ranks
    token_s = _decode_share_s(option, fixed, slope)
    if rules.output_reserve < 1:
        token_s = min(token_s, job.input_tokens * slope / times.ranks)
    busy = (option.phase != OUTPUT_ONLY) * prompt_s + (option.phase != PROMPT_ONLY) * steps * token_s
    return 1.0 / max(busy, 1e-9)


def _decode_share_s(option: Option, fixed_s: float, slope_s: float) -> float:
    """Least seconds of the replica that one output token takes, riding with prompts or not.

    A request of s steps of g tokens has input + g·(s − 1)/2 tokens in the cache on average.
    """
    times, job, most = option.times, option.job, option.rules.max_batch
    context = job.input_tokens + max(job.output_tokens - 1 - times.tokens_per_step, 0) / 2
    round_s, per_request_s = _line_below(np.asarray(times.graph_linear_s[: most + 1]))
    rest = 1 - 1 / times.stages
    shared = times.ranks * times.stages
    step_s = min(round_s, fixed_s + rest * round_s) / most
    token_s = min(per_request_s, slope_s / shared + rest * per_request_s)
    batches = np.arange(1, most + 1)
    attention_s = float((np.asarray(times.decode_attention_s[1 : most + 1]) / batches).min())
    cache_s = min(times.decode_attention_s_per_token[1 : most + 1]) * context
    return step_s + token_s + attention_s + cache_s


def _line_below(table: Floats) -> tuple[float, float]:
    """A line α + β·m below table[m] for m ≥ 1, with the slope of the table's upper half; both at least 0."""
    last = len(table) - 1
    if last < 2:
        return float(table[last]), 0.0
    middle = max(last // 2, 1)
    slope = max(float(table[last] - table[middle]) / (last - middle), 0.0)
    fixed = float((table[1:] - slope * np.arange(1, last + 1)).min())
    if fixed >= 0:
        return fixed, slope
    return 0.0, float((table[1:] / np.arange(1, last + 1)).min())
