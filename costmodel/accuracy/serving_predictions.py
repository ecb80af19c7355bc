"""Predict measured serving runs and compare: mean time to first token and per output token of a closed loop.

A benchmark client keeps `concurrency` requests in flight and reports means over all of them, so the
prediction simulates that client, the first burst included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from costmodel.accuracy.serving_runs import MeasuredPool, ServingRun, deployment_of_run, keeps_prompts
from costmodel.kernels.tables import Calibration
from costmodel.runs.cells import UnsupportedRunError
from costmodel.serving.benchmarks import benchmark_named, polling_steps, prompt_pool, started_server
from costmodel.serving.deployment import Deployment
from costmodel.serving.engine import ServingStack, serving_stack
from costmodel.serving.memory import kv_capacity_tokens
from costmodel.serving.simulation.disaggregated import PoolRules, simulate_pools, transfer_of
from costmodel.serving.simulation.load import Lengths, Load, closed_load
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.simulation.simulator import Simulation, simulate
from costmodel.serving.step import step_times
from costmodel.serving.step_table import StepTimes
from topology.base.arrays import Ints
from topology.fabric.hierarchy import Hierarchy

ROUNDS = 10  # benchmark clients send ten requests per concurrent one (InferenceMAX, aiperf defaults)
UNLIKE_FIRST, UNLIKE_LAST = 2, 1  # rounds: the burst and what is left of it, and the one that drains
FEWEST_ALIKE = 3  # rounds between these that are simulated, and stand for all between
ENOUGH_ALIKE = 96  # requests of theirs: the mean of so many no longer depends on their lengths
ENOUGH_IN_FLIGHT = 4096  # requests: ten rounds of them take about a second to simulate
ENOUGH_IN_POOLS = 256  # requests: a part of two pools differs from the whole by rounding and by lengths drawn

USUAL_LENGTH_SHARES = (1.0, 0.8)
"""All alike (`vllm bench serve`, genai-perf and aiperf by default), and as InferenceMAX's client draws."""

BENCHMARK_MEMORY_FRACTION = (
    0.96  # published benchmarks raise the engines' memory fraction to what the GPU holds
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Mean seconds to first token and per further output token."""

    ttft_s: float
    tpot_s: float


def predict(
    cal: Calibration, run: ServingRun, hierarchy: Hierarchy, stack: ServingStack | None = None
) -> Latency:
    """Predict what the run's client measured on this fabric, with the shipped engine profile or another."""
    if run.prefill is not None:
        return closed_loop_pools(cal, run, run.prefill, hierarchy, stack)
    deployment = deployment_of_run(run, run.decode, hierarchy, stack)
    rules = scheduler_of(deployment, run, batch=run.concurrency)
    times = _times(cal, deployment, run, rules)
    return closed_loop(times, rules, run)


def length_shares(run: ServingRun) -> tuple[float, ...]:
    """Shortest request over the nominal length: as stated, as the benchmark draws, or both that are usual.

    Requests of one length that start together end together, and their prompts queue behind one another in
    every round; lengths that differ by a few percent spread them. The first is what is simulated: a client
    of which nothing is stated is taken to send what all but one send by default.
    """
    if run.lowest_length_share is not None:
        return (run.lowest_length_share,)
    benchmark = benchmark_named(run.benchmark)
    return (benchmark.lowest_share,) if benchmark else USUAL_LENGTH_SHARES


def _polled(run: ServingRun, deployment: Deployment, latency: Latency, running: int) -> Latency:
    """Two pools whose servers look for requests every n steps: (n − 1)/2 steps later in the mean.

    The server that decodes looks so for requests whose cache it shall hold; with nothing to decode it looks
    at once.
    """
    if running == 1 or deployment.layout.attention_dp > 1:
        return latency
    benchmark = benchmark_named(run.benchmark)
    steps = polling_steps(benchmark, deployment.stack.name, run.gpu, run.concurrency, pools=True)
    return replace(latency, ttft_s=latency.ttft_s + (steps - 1) / 2 * latency.tpot_s)


def closed_loop_pools(
    cal: Calibration, run: ServingRun, prefill: MeasuredPool, hierarchy: Hierarchy, stack: ServingStack | None
) -> Latency:
    """Simulate the client of a disaggregated run."""
    given = prompt_pool(benchmark_named(run.benchmark), serving_stack(run.engine).name)
    budget = run.token_budget or (given.token_budget if given else None)
    run = replace(run, kv_dtype=run.kv_dtype or (given.kv_dtype if given else "") or None)
    prompts, outputs = (deployment_of_run(run, pool, hierarchy, stack) for pool in (prefill, run.decode))
    if given is not None and run.weights in given.counted_weights:
        prompts = replace(prompts, stack=replace(prompts.stack, counted_exchange=True))
    per_worker = min(-(-run.concurrency // run.decode.workers), run.decode.most_running or run.concurrency)
    decode_rules = scheduler_of(outputs, run, batch=per_worker)
    prefill_rules = scheduler_of(prompts, replace(run, token_budget=budget), batch=run.concurrency)
    prefill_rules = replace(prefill_rules, lagged=prefill_rules.lagged and prompts.stack.prefill_lagged)
    pools = (
        PoolRules(
            workers=prefill.workers, times=_times(cal, prompts, run, prefill_rules), rules=prefill_rules
        ),
        PoolRules(
            workers=run.decode.workers, times=_times(cal, outputs, run, decode_rules), rules=decode_rules
        ),
    )
    share = ranks_alike(
        gcd(*(pool.workers * pool.times.ranks for pool in pools)), run.concurrency, enough=ENOUGH_IN_POOLS
    )
    prefilling, decoding = (_part(pool, share) for pool in pools)
    part = replace(run, concurrency=run.concurrency // share)
    simulation = simulate_pools(prefilling, decoding, transfer_of(prompts, outputs), closed_loop_client(part))
    return _polled(run, outputs, mean_latency(simulation, part), per_worker)


def _part(pool: PoolRules, share: int) -> PoolRules:
    """One of so many equal parts of a pool: some of its workers, and of these some of their ranks."""
    fewer = gcd(pool.workers, share)
    ranks = share // fewer
    rules = replace(
        pool.rules,
        max_batch=max(pool.rules.max_batch // ranks, 1),
        kv_capacity_tokens=pool.rules.kv_capacity_tokens // ranks,
    )
    return PoolRules(workers=pool.workers // fewer, times=pool.times.of_ranks(ranks), rules=rules)


def closed_loop(times: StepTimes, rules: Scheduler, run: ServingRun) -> Latency:
    """Simulate the client of an aggregated run, of many equal ranks a part of them."""
    share = ranks_alike(times.ranks, run.concurrency)
    part = _part(PoolRules(workers=1, times=times, rules=rules), share)
    few = replace(run, concurrency=run.concurrency // share)
    load = closed_loop_client(few)
    if keeps_prompts(run):
        load = replace(load, cached_tokens=prompts_in_cache(run, rules, len(load)))
    return mean_latency(simulate(part.times, part.rules, load), few)


def prompts_in_cache(run: ServingRun, rules: Scheduler, count: int) -> Ints:
    """Tokens that the cache has of each of `count` prompts, of a client that sends a few at random.

    After n requests E·(1 − (1 − 1/E)ⁿ) of its E prompts came before. Of these the cache holds as many as
    have room. A prompt is computed whole, or its last block alone, whose last token gives an answer.
    """
    benchmark, block = benchmark_named(run.benchmark), rules.kv_block_tokens
    unlike = benchmark.unlike_prompts if benchmark else 0
    held = min(rules.kv_capacity_tokens / (unlike * run.input_tokens), 1.0)
    before = (benchmark.warm_up_rounds if benchmark else 0) * run.concurrency + np.arange(count + 1)
    computed = np.cumsum(1 - held * (1 - (1 - 1 / unlike) ** before))
    is_new = np.diff(np.floor(computed)) > 0
    return np.where(is_new, 0, (run.input_tokens - 1) // block * block)


def ranks_alike(ranks: int, concurrency: int, enough: int = ENOUGH_IN_FLIGHT) -> int:
    """Into how many equal parts the ranks and their requests are cut, of which one is simulated.

    The fewest that leave a part no more requests than are `enough`: ranks differ only in the lengths
    they happen to draw, and the mean of so many requests no longer does.

    >>> ranks_alike(8, 2048), ranks_alike(1000, 16_000), ranks_alike(1000, 16_001)
    (1, 4, 1)
    """
    alike = gcd(ranks, concurrency)
    parts = (part for part in range(1, alike + 1) if alike % part == 0)
    return next((part for part in parts if concurrency // part <= enough), alike)


def closed_loop_client(run: ServingRun) -> Load:
    """The benchmark client: rounds of requests, all alike or of lengths down to the run's share of them.

    Rows of two pools state the batch of a decode rank instead of a client's requests in flight; they are
    read as that batch.
    """
    share = length_shares(run)[0]
    rounds = ROUNDS if keeps_prompts(run) else simulated_rounds(run.concurrency)
    return closed_load(
        concurrency=run.concurrency,
        count=min(rounds * run.concurrency, requests_of(run)),
        inputs=Lengths(mean=run.input_tokens, lowest_share=share),
        outputs=Lengths(mean=run.output_tokens, lowest_share=share),
    )


def simulated_rounds(concurrency: int) -> int:
    """Rounds that are simulated of a client's ten; all but the first two and the last are alike.

    >>> simulated_rounds(4), simulated_rounds(16), simulated_rounds(64)
    (10, 9, 6)
    """
    alike = max(-(-ENOUGH_ALIKE // concurrency), FEWEST_ALIKE)
    return min(UNLIKE_FIRST + alike + UNLIKE_LAST, ROUNDS)


def _times(cal: Calibration, deployment: Deployment, run: ServingRun, rules: Scheduler) -> StepTimes:
    """Step times over the batches and steps the scheduler can form."""
    return step_times(
        cal,
        deployment,
        max_batch=rules.max_batch,
        token_budget=rules.token_budget,
        input_tokens=run.input_tokens,
        output_tokens=run.output_tokens,
    )


def scheduler_of(deployment: Deployment, run: ServingRun, *, batch: int) -> Scheduler:
    """The engine's scheduler as the benchmark sets it.

    Room for every request in flight and for a whole prompt.
    """
    stack = deployment.stack
    started = started_server(benchmark_named(run.benchmark), stack.name, run.engine_version)
    batch = min(batch, run.max_batch or batch)
    prompts = started.prompts_per_step * run.input_tokens if started else 0
    budget = run.token_budget or (prompts + batch if prompts else stack.token_budget)
    budget = budget if stack.chunked else max(budget, run.input_tokens)
    context = run.input_tokens + run.output_tokens
    capacity = kv_capacity_tokens(
        deployment,
        token_budget=budget,
        max_batch=batch,
        memory_fraction=run.memory_fraction or BENCHMARK_MEMORY_FRACTION,
        context=context,
    )
    if capacity < context + stack.kv_block_tokens:
        raise UnsupportedRunError(f"the model does not fit: room for {capacity} tokens of cache")
    return Scheduler(
        token_budget=budget,
        max_batch=max(batch, deployment.layout.attention_dp),
        kv_capacity_tokens=capacity,
        mixed=stack.mixed or (started is not None and started.mixed),
        chunked=stack.chunked,
        output_reserve=stack.output_reserve,
        spare_blocks=stack.spare_blocks,
        holds_slot=stack.holds_slot,
        kv_block_tokens=stack.kv_block_tokens,
        lagged=stack.lagged,
        balance_steps=stack.balance_steps,
        polling_steps=polling_steps(benchmark_named(run.benchmark), stack.name, run.gpu, run.concurrency),
    )


def requests_of(run: ServingRun) -> int:
    """Requests that the run's client sends; at least one for each in flight."""
    return max(run.requests or ROUNDS * run.concurrency, run.concurrency)


def mean_latency(simulation: Simulation, run: ServingRun) -> Latency:
    """Means over all requests, as benchmark clients report them.

    Those of the rounds that are alike count for all that were not simulated.
    """
    tpot, ttft = simulation.tpot_s, simulation.ttft_s
    weight = np.ones(len(ttft))
    alike = weight[UNLIKE_FIRST * run.concurrency : len(ttft) - UNLIKE_LAST * run.concurrency]
    alike *= 1 + (requests_of(run) - len(ttft)) / max(len(alike), 1)
    several = ~np.isnan(tpot)
    return Latency(
        ttft_s=float(np.average(ttft, weights=weight)),
        tpot_s=float(np.average(tpot[several], weights=weight[several])) if several.any() else math.nan,
    )
