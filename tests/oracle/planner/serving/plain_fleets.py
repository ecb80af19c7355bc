"""Fleets the plain way: every replica of a question, each simulated at each share, and the best by counting.

It shares no code with the search (`planner.serving.search` and what that imports), only the space of layouts,
the step times and the simulator: what the certificate speaks of. A replica serves a rate when it keeps the
limits at it and at every smaller share that is looked at; so luck at one rate is not a capacity.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from costmodel.job import ServingJob
from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment
from costmodel.serving.engine import scheduler_default
from costmodel.serving.memory import kv_capacity_tokens
from costmodel.serving.simulation.load import Lengths, Load, closed_load, open_load
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.simulation.simulator import Simulation, simulate
from costmodel.serving.step import step_times
from costmodel.serving.step_table import StepTimes
from planner.serving.plan import ServingInfeasible, ServingPlan, ServingRequest
from planner.serving.space import deployment_of, serving_layouts
from tests.counts import tries
from topology.base.arrays import Floats
from topology.base.errors import InputError
from topology.builders import default_cluster
from topology.fabric.hierarchy import Hierarchy

ENGINE_BATCH = 512  # of an attention rank
EXTRA_CHUNKS = (2048, 8192)
FILLING, COUNTED = 3000, 12000  # requests of a load of hours
MOST_WAITING = 0.02  # of them, at the last arrival; eight per cent too many leave seven waiting
JUST_ABOVE = 1.002  # of a bound: what a fleet must not serve
TENTHS = tuple(step / 10 for step in range(1, 10))
"""Shares of a rate that is served: a capacity is the rate up to which nothing fails."""


@cache
def calibration() -> Calibration:
    """The shipped constants, read once."""
    return load_calibration()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One replica under one scheduler, in one phase; what it computes is seen `handed_over_s` later.

    Of its requests each stays with a worker of the other pool for `elsewhere_s` at least.
    """

    name: str
    phase: str
    num_gpus: int
    times: StepTimes
    rules: Scheduler
    handed_over_s: float = 0.0
    elsewhere_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request, its GPUs, and how it is told."""

    name: str
    request: ServingRequest
    hierarchy: Hierarchy


def questions(cases: int, seed: int) -> Iterator[Question]:
    """Random small questions: dense, experts, latent attention; quantised, tight, pools, closed loops."""
    rng = random.Random(seed)
    while cases:
        question = _question(rng)
        if question is not None:
            cases -= 1
            yield question


def _question(rng: random.Random) -> Question | None:
    """One question; None where it contradicts itself."""
    name, gpus = rng.choice(
        [("8b", "h100-sxm"), ("qwen3-4b", "a100-sxm-80gb"), ("llama-2-13b", "rtx-4090"), ("8b", "rtx-4090"),
         ("deepseek-v2-lite", "h100-sxm"), ("qwen3-30b-a3b", "h200-sxm"), ("mixtral-8x7b", "h100-sxm"),
         ("gpt-oss-20b", "h100-sxm"), ("gemma-3-12b", "a100-sxm-80gb")]
    )  # fmt: skip
    fixed, closed = rng.random() < 0.5, rng.random() < 0.2
    disaggregated = not closed and rng.random() < 0.3
    inputs, outputs = rng.choice([64, 300, 1000, 2048, 2900]), rng.choice([1, 2, 8, 60, 200, 500])
    job = ServingJob(
        input_tokens=inputs,
        output_tokens=outputs,
        input_tokens_p99=2 * inputs if rng.random() < 0.15 else None,
        output_tokens_p99=3 * outputs if rng.random() < 0.15 else None,
        request_rate_per_s=None if fixed or closed else 10 ** rng.uniform(-0.3, 1.7),
        concurrency=rng.choice([1, 3, 10, 32, 70]) if closed else None,
        ttft_s=rng.choice([None, 10 ** rng.uniform(-1.3, 0.7)]),
        tpot_s=rng.choice([None, 10 ** rng.uniform(-2.4, -1.0)]),
        end_to_end_s=10 ** rng.uniform(-0.3, 1.2) if rng.random() < 0.15 else None,
        percentile=rng.choice([50.0, 90.0, 99.0, 99.0]),
        cached_share=rng.choice([0.0, 0.0, 0.5]),
        draft_tokens=(drafts := rng.choice([0, 0, 0, 3])),
        acceptance=0.6 if drafts else 0.0,
    )
    weights = rng.choice([("bf16",), ("bf16", "int4"), ("fp8",), ("int8",)])
    if "fp8" in weights and gpus.startswith("a100"):
        return None
    size = rng.choice([1, 2, 4, 8])
    request = ServingRequest(
        model=model(name),
        job=job,
        gpu=gpus,
        num_gpus=size if fixed else None,
        engine=rng.choice(["vllm", "sglang", "trtllm"]),
        weights=weights,
        modes=("aggregated", "disaggregated") if disaggregated else ("aggregated",),
    )
    told = f"{name} {gpus} {size if fixed else '?'} {request.engine} {'/'.join(weights)} {job}"
    return Question(name=told, request=request, hierarchy=default_cluster(gpus, max(size, 4)).hierarchy)


def kinds(question: Question) -> list[Kind]:
    """Every replica of the question that holds two of its longest requests, under every scheduler."""
    request, hierarchy = question.request, question.hierarchy
    layouts = serving_layouts(
        request.model,
        most_gpus=min(request.num_gpus or hierarchy.num_gpus, hierarchy.num_gpus),
        domain_gpus=hierarchy.gpus_per_node,
        host_gpus=hierarchy.gpus_per_host,
        pins=request.pins,
    )
    phases = (["whole"] if "aggregated" in request.modes else []) + (
        ["prefill", "decode"] if "disaggregated" in request.modes else []
    )
    offered = [
        kind
        for weights, layout, phase in product(request.weights, layouts, phases)
        for kind in _schedulers(deployment_of(request, hierarchy, weights, layout), request.job, phase)
    ]
    if request.job.end_to_end_s is None:
        return offered
    least_s = {
        phase: min((_alone_s(kind, request.job) for kind in offered if kind.phase == phase), default=0.0)
        for phase in ("prefill", "decode")
    }
    other = {"whole": 0.0, "prefill": least_s["decode"], "decode": least_s["prefill"]}
    return [replace(kind, elsewhere_s=other[kind.phase]) for kind in offered]


def _alone_s(kind: Kind, job: ServingJob) -> float:
    """Least seconds that a request stays with a worker: the shortest in an empty one, as company may quicken it."""
    drawn, times = spread_load(job, 1.0, FILLING + COUNTED), kind.times
    prompt, output = int(drawn.input_tokens.min()), int(drawn.output_tokens.min())
    alone = spread_load(
        replace(
            job, input_tokens=prompt, input_tokens_p99=None, output_tokens=output, output_tokens_p99=None
        ),
        1.0,
        1,
    )
    stay_s = float(simulate(times, kind.rules, seen_by(kind, alone)).end_to_end_s[0])
    decoding = [times.decode_s(batch, batch * prompt) for batch in range(1, kind.rules.max_batch + 1)]
    return stay_s / max(_quickened(times.linear[1:]), _quickened(decoding))


def _quickened(seconds: Sequence[float] | Floats) -> float:
    """By how much a larger step is quicker than a smaller one at most: measured tables have dips."""
    from_here = np.asarray(seconds)[::-1]
    return float((from_here / np.minimum.accumulate(from_here)).max())


def _schedulers(deployment: Deployment, job: ServingJob, phase: str) -> Iterator[Kind]:
    """One replica under each size of its chunks; none in a pool whose cache the engine cannot move."""
    stack, layout = deployment.stack, deployment.layout
    if phase != "whole" and layout.pp > 1 and phase not in stack.pools_with_stages:
        return
    context, most = job.input_tokens + job.output_tokens, ENGINE_BATCH * layout.attention_dp
    longest = sum(  # twice its 99th percentile, where a length spreads
        2 * p99 if p99 and p99 > mean else mean
        for mean, p99 in (
            (job.input_tokens, job.input_tokens_p99),
            (job.output_tokens, job.output_tokens_p99),
        )
    )
    if stack.chunked:
        default = scheduler_default(stack, deployment.hierarchy.gpu).token_budget
        sizes = [2048] if phase == "decode" else [default, *(one for one in EXTRA_CHUNKS if one != default)]
    else:
        sizes = [max(stack.token_budget, job.input_tokens_p99 or job.input_tokens)]
    ranks = layout.attention_dp

    def held_by(size: int, requests: int) -> int:
        """Tokens of cache beside what sampling so many requests takes."""
        return kv_capacity_tokens(deployment, token_budget=size, max_batch=requests, context=context)

    def fits(size: int, requests: int) -> bool:
        return held_by(size, requests) // ranks >= longest + stack.kv_block_tokens

    if not fits(min(sizes), ranks):
        return
    most = next(each for each in range(most, 0, -ranks) if fits(min(sizes), each))
    cache_of = {size: held_by(size, most) for size in sizes}
    batch = max(min(max(cache_of.values()) // context, most), layout.attention_dp)
    times = step_times(
        calibration(), deployment, max_batch=batch, token_budget=max(sizes),
        input_tokens=job.input_tokens, output_tokens=job.output_tokens,
    )  # fmt: skip
    running = batch if phase == "prefill" else _most_running(times, job, batch)
    waits = stack.balance_steps if layout.attention_dp > 1 and phase == "whole" else 0
    handed_s = stack.transfer_s if phase == "prefill" else 0.0
    started = {
        size: held_by(size, running) for size in sizes if fits(size, running)
    }  # it is told how many run at once, and keeps no memory for samples of more
    for (size, held), steps in product(started.items(), {waits, 0}):
        rules = Scheduler(
            token_budget=size, max_batch=running, kv_capacity_tokens=held, mixed=stack.mixed,
            chunked=stack.chunked, output_reserve=stack.output_reserve,
            spare_blocks=stack.spare_blocks, holds_slot=stack.holds_slot,
            kv_block_tokens=stack.kv_block_tokens, balance_steps=steps,
            lagged=stack.lagged and not (stack.name == "trtllm" and phase == "prefill"),  # no overlap scheduler
        )  # fmt: skip
        name = f"{phase} {layout.label} {deployment.weights} {size} {steps}"
        yield Kind(
            name=name, phase=phase, num_gpus=layout.num_gpus, times=times, rules=rules, handed_over_s=handed_s
        )


def _most_running(times: StepTimes, job: ServingJob, batch: int) -> int:
    """The engine's limit on running requests: as many as decode within the limit, and at least one."""
    if job.tpot_s is None:
        return batch
    context = job.input_tokens + job.output_tokens / 2
    step = [times.decode_s(b, b * context) / times.tokens_per_step for b in range(1, batch + 1)]
    return max([b for b, seconds in enumerate(step, 1) if seconds <= job.tpot_s], default=1)


def load_of(kind: Kind, job: ServingJob, rate_per_s: float) -> tuple[Load, int]:
    """The open load that stands for a rate, as the phase sees it, and how many requests come before any counts.

    Three halves of what is in flight, up to a power of two and 128 at least, fill the replica. Of those after
    them 800 count, or 24 beyond the percentile, or half as many as fill it.
    """
    working = working_of(kind, job, rate_per_s)
    filling = 128
    while filling < 1.5 * working:
        filling *= 2
    counted = max(800, filling // 2, -int(-24 // max(1 - job.percentile / 100, 2e-3)))
    return seen_by(kind, spread_load(job, rate_per_s, filling + counted)), filling


def spread_load(job: ServingJob, rate_per_s: float, count: int) -> Load:
    """An open load of so many requests of the job, with its lengths."""
    return open_load(
        rate_per_s=rate_per_s,
        count=count,
        inputs=Lengths(mean=job.input_tokens, p99=job.input_tokens_p99),
        outputs=Lengths(mean=job.output_tokens, p99=job.output_tokens_p99),
        cached_share=job.cached_share,
        burstiness=job.burstiness,
    )


def working_of(kind: Kind, job: ServingJob, rate_per_s: float) -> float:
    """Requests at work by Little's law: seconds of prompts alone, and the least batch that keeps up."""
    times = kind.times
    prompts = 0.0
    if kind.phase != "decode":
        prompts = rate_per_s * times.prefill_s(max(int(job.input_tokens * (1 - job.cached_share)), 1))
    if kind.phase == "prefill" or job.output_tokens == 1:
        return prompts
    context, share = job.input_tokens + job.output_tokens / 2, max(1 - prompts / times.ranks, 1e-9)
    steps_per_s = rate_per_s * job.output_tokens / times.tokens_per_step / share
    alone = steps_per_s * times.decode_s(1, context)
    for batch in range(1, times.max_batch + 1):
        if steps_per_s * times.decode_s(batch, batch * context) <= batch:
            return prompts + max(alone, batch - 1)
    return prompts + times.max_batch


def keeps(kind: Kind, job: ServingJob, rate_per_s: float) -> bool:
    """Whether one replica keeps the limits of its phase at this rate, which it serves in the long run."""
    load, first = load_of(kind, job, rate_per_s)
    found = handed_over(kind, job, simulate(kind.times, kind.rules, load))
    kept = within(found, job, kind, slice(first, None)) and rate_per_s <= sustained_per_s(kind, job)
    return kept and lasts(kind, job, rate_per_s)


@cache
def lasts(kind: Kind, job: ServingJob, rate_per_s: float) -> bool:
    """Whether the limits hold in fifteen thousand requests, the first of which fill the replica.

    And whether few of them wait at the last arrival: prompts and outputs that come when they like keep fewer
    requests running than a closed loop, whose rate an open load may then not reach.
    """
    load = seen_by(kind, spread_load(job, rate_per_s, FILLING + COUNTED))
    found = handed_over(kind, job, simulate(kind.times, kind.rules, load))
    waiting = int((found.admitted_s > found.arrival_s[-1]).sum())
    steady = waiting < MOST_WAITING * (FILLING + COUNTED)
    return steady and within(found, job, kind, slice(FILLING, None))


def keeps_up_to(kind: Kind, job: ServingJob, rate_per_s: float, *, shares: Sequence[float] = ()) -> bool:
    """Whether it keeps them at this rate and at others up to a tenth below: some of few requests have luck.

    One of the others is the rate that a certificate rules out, when this one is just above it. The suite looks at
    every third of the others, with which more is kept, so that no certificate is refuted less. `shares` of the
    rate are looked at before.
    """
    near = (1.0, 1 / JUST_ABOVE, *(1 - step / 300 for step in range(tries(3, 1), 31, tries(3, 1))))
    return all(keeps(kind, job, rate_per_s * share) for share in (*shares, *near))


@cache
def sustained_per_s(kind: Kind, job: ServingJob) -> float:
    """Requests per second in the long run, of as many in flight as is best for it.

    A short simulation gets through at higher rates before a queue breaks a limit.
    """
    count = 5000
    rates = []
    for share in (0.25, 0.5, 1.0, 2.0):
        load = closed_load(
            concurrency=max(int(share * kind.rules.max_batch), 1),
            count=count,
            inputs=Lengths(mean=job.input_tokens, p99=job.input_tokens_p99),
            outputs=Lengths(mean=job.output_tokens, p99=job.output_tokens_p99),
            cached_share=job.cached_share,
        )
        rates.append(count / simulate(kind.times, kind.rules, seen_by(kind, load)).makespan_s)
    return max(rates)


def seen_by(kind: Kind, load: Load) -> Load:
    """The part of a load that the phase of a replica has to do with."""
    if kind.phase == "prefill":
        return replace(load, output_tokens=np.ones(len(load), dtype=np.int64))
    return replace(load, cached_tokens=load.input_tokens) if kind.phase == "decode" else load


def handed_over(kind: Kind, job: ServingJob, found: Simulation) -> Simulation:
    """What a client sees of a worker: first tokens once the cache is handed over, but of requests that end with it."""
    more = spread_load(job, 1.0, len(found.arrival_s)).output_tokens > 1
    return replace(found, first_token_s=found.first_token_s + kind.handed_over_s * more)


def within(found: Simulation, job: ServingJob, kind: Kind, counted: slice) -> bool:
    """Whether these requests keep the limits of the kind's phase at the job's percentile.

    A request stays with a pool for a part of its end-to-end time: for what the fastest of the other pool leaves.
    """
    limits = (
        (found.ttft_s, job.ttft_s, kind.phase != "decode"),
        (found.tpot_s, job.tpot_s, kind.phase != "prefill" and job.output_tokens > 1),
        (found.end_to_end_s + kind.elsewhere_s, job.end_to_end_s, True),
    )
    return all(
        limit is None or not counts or float(np.nanpercentile(values[counted], job.percentile)) <= limit
        for values, limit, counts in limits
    )


def fewest_gpus(offered: Sequence[Kind], job: ServingJob, rate_per_s: float, most_gpus: int) -> int | None:
    """Fewest GPUs, up to `most_gpus`, that serve the rate: one kind of replica, or one of each phase.

    Few questions have any, so what is near the rate is looked at first, and all that is less where some have.
    """
    if _fewest_gpus(offered, job, rate_per_s, most_gpus, ()) is None:
        return None
    return _fewest_gpus(offered, job, rate_per_s, most_gpus, TENTHS)


def _fewest_gpus(
    offered: Sequence[Kind], job: ServingJob, rate_per_s: float, most_gpus: int, shares: Sequence[float]
) -> int | None:
    """The same, of those that keep the limits at these shares too."""
    whole, first, second = (
        [kind for kind in offered if kind.phase == phase] for phase in ("whole", "prefill", "decode")
    )
    found = _fewest_of(whole, job, rate_per_s, most_gpus, shares)
    most = most_gpus if found is None else found - 1
    if first and second:
        smallest = min(kind.num_gpus for kind in second)
        prompts = _fewest_of(first, job, rate_per_s, most - smallest, shares)
        outputs = prompts and _fewest_of(second, job, rate_per_s, most - prompts, shares)
        if prompts and outputs:
            return prompts + outputs
    return found


def _fewest_of(
    offered: Sequence[Kind], job: ServingJob, rate_per_s: float, most_gpus: int, shares: Sequence[float]
) -> int | None:
    """Fewest GPUs, up to `most_gpus`, of one kind of replica that serves the rate."""
    best = None
    for kind in offered:
        budget = most_gpus if best is None else best - 1
        count = _fewest(kind, job, rate_per_s, max(budget, 0) // kind.num_gpus, shares)
        if count:
            best = count * kind.num_gpus
    return best


def _fewest(kind: Kind, job: ServingJob, rate_per_s: float, most: int, shares: Sequence[float]) -> int:
    """Fewest replicas, from `most` down, of which none smaller in number fails; 0 when `most` fail."""
    count = most
    while count and keeps_up_to(kind, job, rate_per_s / count, shares=shares):
        count -= 1
    return count + 1 if count < most else 0


def closed_rate(kind: Kind, job: ServingJob, replicas: int) -> float | None:
    """Requests per second of equal replicas that share the job's requests in flight; None beyond a limit.

    Where more are in flight than run, the first and the last of each client do not count: those come all at
    once and wait in a queue that still grows, of these fewer and fewer run.
    """
    each = -(-(job.concurrency or 1) // replicas)
    load = closed_load(
        concurrency=each,
        count=max(min(10 * each, max(2000, 4 * each)), 40),
        inputs=Lengths(mean=job.input_tokens, p99=job.input_tokens_p99),
        outputs=Lengths(mean=job.output_tokens, p99=job.output_tokens_p99),
        cached_share=job.cached_share,
    )
    found = simulate(kind.times, kind.rules, load)
    steady = slice(each, -each) if each > kind.rules.max_batch else slice(None)
    rate = (job.concurrency or 1) / float(found.end_to_end_s[steady].mean())
    return rate if within(found, job, kind, steady) else None


def refuted(question: Question, answer: ServingPlan | ServingInfeasible) -> str | None:
    """What contradicts the answer of a search, in words; None when nothing does."""
    job, offered = question.request.job, kinds(question)
    if job.concurrency is not None:
        return _refuted_closed(question, answer, offered)
    most = question.request.num_gpus or 16
    if isinstance(answer, ServingInfeasible):
        rate = job.request_rate_per_s or (answer.capacity_requests_per_s or 1e-3) * JUST_ABOVE
        fits = fewest_gpus(offered, job, rate, most)
        return f"said to be impossible, but {fits} GPUs serve {rate:.4g}/s" if fits else None
    bound = answer.optimality.bound
    if job.request_rate_per_s is not None:
        fewer = fewest_gpus(offered, job, job.request_rate_per_s, min(int(bound) - 1, 16))
        return f"{fewer} GPUs do, the bound is {bound}" if fewer else None
    fits = fewest_gpus(offered, job, bound * JUST_ABOVE, most)
    return f"{fits} GPUs serve {bound * JUST_ABOVE:.5g}/s, the bound is {bound:.5g}/s" if fits else None


def _refuted_closed(
    question: Question, answer: ServingPlan | ServingInfeasible, offered: Sequence[Kind]
) -> str | None:
    """Every number of every replica in a closed loop against the answer."""
    job, size = question.request.job, question.request.num_gpus
    infeasible = isinstance(answer, ServingInfeasible)
    bound = 0.0 if size else float("inf")
    if isinstance(answer, ServingPlan):
        bound = answer.optimality.bound
    for kind in offered:
        for count in range(1, min((size or 16) // kind.num_gpus, job.concurrency or 1) + 1):
            if size is None and not infeasible and count * kind.num_gpus >= bound:
                continue
            rate = closed_rate(kind, job, count)
            if rate is not None and (infeasible or size is None or rate > bound * JUST_ABOVE):
                return f"{count} × {kind.name} serve {rate:.5g}/s, the bound is {bound:.5g}"
    return None


def answer_of(question: Question) -> ServingPlan | ServingInfeasible | None:
    """What the search says; None when it refuses the question."""
    from planner.serving.search import search_serving

    try:
        return search_serving(calibration(), question.request, question.hierarchy)
    except InputError:
        return None
