"""From a simulated fleet to the plan.

Percentiles with their band, money, energy, what it is bound by, who lost and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from costmodel.estimate import watt_hours
from costmodel.job import ServingJob
from costmodel.kernels.stand_ins import figures_note
from costmodel.kernels.tables import Calibration
from costmodel.serving.bands import LatencyBand
from costmodel.serving.breakdown import decode_parts_s
from costmodel.serving.memory import memory_breakdown
from planner.serving.alternatives import FleetRunnerUp
from planner.serving.capacity import after_warm_up
from planner.serving.closed_pools import short_of_prefill
from planner.serving.evidence import fleet_evidence, is_measured, runs_behind, unmeasured_in
from planner.serving.fleet import FleetRun
from planner.serving.limit_checks import least_chance, limit_checks
from planner.serving.plan import (
    CachedPrompts,
    Headroom,
    Percentiles,
    PoolPlan,
    Rental,
    ServingAlternative,
    ServingEstimate,
    ServingEvidence,
    ServingOptimality,
    ServingPlan,
    ServingRequest,
    proven_where_sure,
)
from planner.serving.replica import Option
from planner.serving.started import held_by
from topology.base.arrays import Floats
from topology.base.units import HOUR, MEGA, format_chance
from topology.fabric.hierarchy import Hierarchy
from topology.hardware.gpu import Gpu

MOSTLY = 0.5  # share of the time above which prompts are what a mixed replica is bound by


def plan_of_fleet(
    cal: Calibration,
    request: ServingRequest,
    hierarchy: Hierarchy,
    run: FleetRun,
    *,
    optimality: ServingOptimality,
    runners_up: Sequence[FleetRunnerUp],
    measured: FleetRun | None = None,
    headroom: Headroom | None = None,
    drawn_anew: Mapping[str, tuple[float, float]] | None = None,
    search_time_s: float,
) -> ServingPlan:
    """Write the plan of a simulated fleet."""
    deployment, spare = run.decode.deployment, run.selection.spare
    rental = rental_of(request, run)
    rented = rental.machines * rental.offer.gpus if rental else request.num_gpus or run.num_gpus
    plan = ServingPlan(
        request=request,
        mode="disaggregated" if run.prefill else "aggregated",
        weights=deployment.weights,
        kv_dtype=deployment.kv_dtype,
        decode=_pool(request, run.decode, run.decode_workers + spare),
        prefill=_pool(request, run.prefill, run.prefill_workers + spare) if run.prefill else None,
        num_gpus=run.num_gpus,
        idle_gpus=rented - run.num_gpus,
        gpus_per_node=hierarchy.gpus_per_host,
        estimate=replace(estimate_fleet(cal, request, hierarchy, run, headroom), drawn_anew=drawn_anew or {}),
        alternatives=tuple(_alternative(request, run, other) for other in runners_up),
        optimality=optimality,
        evidence=_evidence(run, measured),
        rental=rental,
        search_time_s=search_time_s,
        assumptions=(*_assumptions(request, hierarchy.gpu), *figures_note(cal, hierarchy.gpu)),
        provenance=(
            f"engine profile {deployment.stack.name}: {deployment.stack.source} ({deployment.stack.as_of})",
            "kernel and collective times: see costmodel/data/kernels/fits.json",
        ),
    )
    return proven_where_sure(plan)


def rental_of(request: ServingRequest, run: FleetRun) -> Rental | None:
    """The whole machines to rent for the workers; None where none is rented.

    For a rate they are those that the fleet was sized in. Of a given number of GPUs they are the cheapest
    that its workers fit in: a worker is within one machine, or on whole ones of the size that was planned
    for, and two pools stay on these.
    """
    host = run.decode.deployment.hierarchy.gpus_per_host
    largest = max(pool.num_gpus for pool in (run.decode, run.prefill) if pool is not None)
    offers = [
        offer
        for offer in request.offers
        if offer.gpus >= host or (run.prefill is None and offer.gpus >= largest)
    ] or ([request.offer] if request.offer is not None else [])
    rentals = []
    for offer in offers:
        machines = run.machines(offer.gpus)
        rentals.append(Rental(offer=offer, machines=machines, idle_gpus=machines * offer.gpus - run.num_gpus))
    return min(rentals, key=lambda rental: (rental.usd_per_hour, rental.machines), default=None)


def _evidence(run: FleetRun, measured: FleetRun | None) -> ServingEvidence:
    """Measured runs behind the fleet, and the best fleet beside it where it has what no run has."""
    evidence = fleet_evidence(run)
    best = None
    if measured is not None:
        workers = [(measured.prefill_workers, measured.prefill), (measured.decode_workers, measured.decode)]
        best = ServingAlternative(
            label=", ".join(f"{count} × {option.label}" for count, option in workers if option is not None),
            num_gpus=measured.num_gpus,
            capacity_requests_per_s=measured.request_rate_per_s,
            why=f"has no {' or '.join(unmeasured_in(run))}",
        )
    return ServingEvidence(
        rows=evidence.rows,
        rows_of_model=evidence.rows_of_model,
        rows_of_tp=evidence.rows_of_tp,
        not_measured=evidence.not_measured,
        best_measured=best,
    )


def _capacity_per_s(request: ServingRequest, run: FleetRun, headroom: Headroom | None) -> float | None:
    """The highest rate that was simulated; None of a fleet that was sized for the one rate asked for."""
    if headroom is not None:
        return headroom.served_per_s
    return None if request.job.request_rate_per_s is not None else run.request_rate_per_s


def estimate_fleet(
    cal: Calibration,
    request: ServingRequest,
    hierarchy: Hierarchy,
    run: FleetRun,
    headroom: Headroom | None = None,
) -> ServingEstimate:
    """What the fleet does under its load, in latencies, rates, money and energy."""
    simulation, job = run.simulation, request.job
    steady = after_warm_up(simulation) if job.concurrency is None else slice(None)
    ttft, tpot = simulation.ttft_s[steady], simulation.tpot_s[steady]
    whole = simulation.end_to_end_s[steady]
    rate, completed = run.request_rate_per_s, run.completed_per_s
    batch = simulation.mean_batch
    parts = decode_parts_s(
        cal, run.decode.deployment, max(round(batch), 1), job.input_tokens + job.output_tokens / 2
    )
    gpus = request.num_gpus or run.num_gpus
    money = _money(request, run, gpus, mean_batch=batch)
    bands = fleet_evidence(run)
    return ServingEstimate(
        request_rate_per_s=rate,
        capacity_requests_per_s=_capacity_per_s(request, run, headroom),
        completed_per_s=completed,
        output_tokens_per_s=completed * float(simulation.output_tokens.mean()),
        tokens_per_s_per_gpu=completed * float(simulation.output_tokens.mean()) / run.num_gpus,
        ttft=_percentiles(ttft, bands.ttft),
        tpot=_percentiles(tpot[~np.isnan(tpot)], bands.tpot),
        end_to_end=_percentiles(whole, bands.tpot),
        goodput_requests_per_s=completed * _kept_share(request, ttft, tpot, whole),
        utilisation=simulation.utilisation,
        mean_queue=simulation.mean_queue,
        mean_batch=batch,
        kv_used_share=simulation.peak_kv_tokens / run.decode.rules.kv_capacity_tokens,
        preemptions=simulation.preemptions,
        usd_per_hour=money["hour"],
        usd_per_query=money["query"],
        usd_per_million_input_tokens=money["input"],
        usd_per_million_output_tokens=money["output"],
        wh_per_query=float(watt_hours(1.0 / completed, gpus, hierarchy.gpu.tdp_w)),
        bound_by=bound_by(run, parts, mean_batch=batch),
        prompts_found=_cached_prompts(request, run),
        step_parts_s=parts,
        limits=limit_checks(request, run),
        headroom=headroom,
    )


def bound_by(run: FleetRun, parts: Mapping[str, float], *, mean_batch: float) -> str:
    """What takes most of a replica's time: its prompts, or the largest part of a decode step.

    And whether the cache limits the batch before that does. Of two pools the prefill pool where it is busy.
    """
    if (short := short_of_prefill(run)) is not None:
        return f"the prefill pool ({100 * short.busy:.0f} % busy; {short.words})"
    prompts = _prompt_share(run, mean_batch)
    if run.prefill is None and prompts > MOSTLY:
        return f"computing prompts ({100 * prompts:.0f} % of the time)"
    largest = max(parts, key=lambda name: parts[name])
    words = {
        "weights": "reading weights",
        "experts": "reading experts",
        "attention": "reading the KV cache",
        "communication": "communication",
        "host": "host overhead",
        "head": "the output projection",
        "small kernels": "small kernels",
        "drafting": "drafting tokens",
        "launches": "waiting for launches that no graph holds",
    }
    share = parts[largest] / sum(parts.values())
    tail = (
        "; the KV cache is full"
        if run.simulation.peak_kv_tokens > 0.95 * run.decode.rules.kv_capacity_tokens
        else ""
    )
    return f"{words[largest]} ({100 * share:.0f} % of a decode step){tail}"


def _cached_prompts(request: ServingRequest, run: FleetRun) -> CachedPrompts | None:
    """What the fleet's caches had of the prompts; None where every prompt was computed in full."""
    if run.hits is None:
        return None
    return CachedPrompts(router=request.router, found=run.hits.rate, on_hosts=run.hits.host_rate)


def _pool(request: ServingRequest, option: Option, workers: int) -> PoolPlan:
    """The pool of one kind of worker; its memory is the one from which its cache was counted."""
    rules, deployment = option.rules, option.deployment
    held = held_by(request, option)
    return PoolPlan(
        layout=deployment.layout,
        workers=workers,
        max_batch=rules.max_batch,
        token_budget=rules.token_budget,
        balance_steps=rules.balance_steps,
        gather_steps=rules.gather_steps,
        kv_capacity_tokens=rules.kv_capacity_tokens,
        cache_tokens=held.cache_tokens,
        longest_context=held.longest_tokens,
        memory=memory_breakdown(deployment, token_budget=rules.token_budget, max_batch=option.sampled),
    )


def _percentiles(values: Floats, band: LatencyBand) -> Percentiles:
    """Percentiles of a latency and the calibrated band of its median; zeros when there is none."""
    p50, p90, p99 = (
        (float(x) for x in np.percentile(values, (50, 90, 99))) if len(values) else (0.0, 0.0, 0.0)
    )
    return Percentiles(p50_s=p50, p90_s=p90, p99_s=p99, lower_s=p50 * band.lower, upper_s=p50 * band.upper)


def _kept_share(request: ServingRequest, ttft: Floats, tpot: Floats, whole: Floats) -> float:
    """Share of requests within every limit (a request of one token has no time per token)."""
    job = request.job
    kept = np.ones(len(ttft), dtype=bool)
    if job.ttft_s is not None:
        kept &= ttft <= job.ttft_s
    if job.tpot_s is not None:
        kept &= np.isnan(tpot) | (tpot <= job.tpot_s)
    if job.end_to_end_s is not None:
        kept &= whole <= job.end_to_end_s
    return float(kept.mean())


def _money(
    request: ServingRequest, run: FleetRun, gpus: int, *, mean_batch: float
) -> dict[str, float | None]:
    """Dollars an hour, a query, and a million tokens; input and output share a query's cost by GPU time."""
    price, rental = request.usd_per_gpu_hour, rental_of(request, run)
    if price is None and rental is None:
        return {"hour": None, "query": None, "input": None, "output": None}
    paid = gpus if request.owned else run.num_gpus
    hour = rental.usd_per_hour if rental is not None else (price or 0.0) * paid
    query = hour / HOUR / run.completed_per_s
    share = _prompt_share(run, mean_batch)
    job = request.job
    return {
        "hour": hour,
        "query": query,
        "input": share * query / job.input_tokens * MEGA,
        "output": (1 - share) * query / job.output_tokens * MEGA,
    }


def _prompt_share(run: FleetRun, mean_batch: float) -> float:
    """Share of a replica's time that prompts take.

    GPUs of the prefill pool, or the prompts' seconds in a mixed replica whose decode steps hold `mean_batch`
    requests.
    """
    if run.prefill is not None:
        prompts = run.prefill.num_gpus * run.prefill_workers
        return prompts / (prompts + run.decode.num_gpus * run.decode_workers)
    return prompt_time_share(run.decode, mean_batch, run.hits.rate if run.hits is not None else None)


def prompt_time_share(option: Option, mean_batch: float, cached_share: float | None = None) -> float:
    """Share of a mixed replica's time that prompts take, by which they share its bill with outputs.

    `mean_batch` requests are in its decode steps; `cached_share` is that of prompts in a cache, the job's
    own where it is None.
    """
    job, times = option.job, option.times
    cached = job.cached_share if cached_share is None else cached_share
    prompt = times.prefill_s(round(job.input_tokens * (1 - cached)))
    batch = max(round(mean_batch), 1)
    context = job.input_tokens + job.output_tokens / 2
    decode = (job.output_tokens - 1) * times.decode_s(batch, batch * context) / batch / times.tokens_per_step
    return prompt / (prompt + decode)


def _alternative(request: ServingRequest, run: FleetRun, other: FleetRunnerUp) -> ServingAlternative:
    """A runner-up in words; what rests on an upper bound of its capacity is said to be at least so."""
    selection = other.selection
    label = ", ".join(f"{count} × {other.options[i].label}" for i, count in selection.counts.items())
    more = selection.num_gpus - run.num_gpus
    same_bill = other.run is not None and selection.machines <= run.selection.machines
    slower = 1 - selection.rate_per_s / max(run.request_rate_per_s, 1e-9)
    least = "" if other.measured else "at least "
    sized = request.num_gpus is not None and request.job.request_rate_per_s is None
    if more > 0 and not sized and not same_bill:
        why = f"needs {least}{more} more GPU{'s' * (more > 1)}"
    elif request.job.request_rate_per_s is None and slower >= 0.0005:
        why = f"serves {least}{100 * slower:.1f} % fewer requests within the limits"
    elif other.run is not None:
        why = _less_sure(request, run, other.run)
    else:
        why = _by_capacity(request, other)
    return ServingAlternative(
        label=label, num_gpus=selection.num_gpus, capacity_requests_per_s=selection.rate_per_s, why=why
    )


def _by_capacity(request: ServingRequest, other: FleetRunnerUp) -> str:
    """What is known of a fleet that no simulation has under the load: what its workers alone carry."""
    if not other.measured:
        return "not simulated; no better by its bound"
    open_load = request.job.request_rate_per_s is not None
    alike = "as many GPUs" if open_load else "as many requests"
    runs = runs_behind(other.options.values())
    behind = f"{runs} measured run{'s' * (runs != 1)}" if runs else "no measured runs"
    return f"{alike}, of workers that were simulated alone, not as a fleet; {behind}"


def _less_sure(request: ServingRequest, run: FleetRun, other: FleetRun) -> str:
    """By what a fleet at the same bill loses: no runs, less sure limits, more GPUs or larger replicas."""
    if is_measured(run) and not is_measured(other):
        return "same bill, but no measured runs"
    ours, theirs = (format_chance(least_chance(limit_checks(request, fleet))) for fleet in (run, other))
    if ours != theirs:
        return f"same bill; chance of keeping the limits {theirs}, of the chosen one {ours}"
    more = other.num_gpus - run.num_gpus
    size = f"{more} more GPU{'s' * (more > 1)}" if more else "larger replicas"
    return f"same bill, and chance of keeping the limits ({ours}); {size}"


def _assumptions(request: ServingRequest, gpu: Gpu) -> tuple[str, ...]:
    """What the numbers rest on."""
    job = request.job
    poisson = "Poisson" if job.burstiness == 1 else f"gaps of variation {job.burstiness:g}"
    closed = job.concurrency is not None and job.request_rate_per_s is None
    arrivals = f"the next one when one of {job.concurrency} ends" if closed else poisson
    drafts = f"{job.draft_tokens} draft tokens a step, {100 * job.acceptance:.0f} % of them accepted"
    by = f"by {job.drafter}, its time and memory counted" if job.drafter else "at no cost of their own"
    speculation = (f"{drafts}; drafted {by}",) if job.draft_tokens else ()
    named = (
        (f"every request names one of {job.adapters} adapters, {job.adapter.words}, all named alike",)
        if job.adapter is not None
        else ()
    )
    followed = (
        ("prompts meet the blocks that were used last, those of running requests evicted like others",)
        if request.router
        else ()
    )
    level = request.level
    factors = f"host × {level.host:.3g}, kernels × {level.kernel:.3g}" if level else ""
    measured_levels = (f"your own server's levels: {factors}",) if level else ()
    lost = request.spare
    spare = (f"latencies and capacity are those with {lost} of each pool's workers lost",) if lost else ()
    widened = (
        ("fp8 weights are widened to bf16 as they are read (W8A16): arithmetic is bf16",)
        if request.weights == ("fp8",) and "fp8" not in gpu.peak_flop_per_s
        else ()
    )
    return (
        *speculation,
        *named,
        *followed,
        *measured_levels,
        *widened,
        *spare,
        f"request lengths: {lengths_in_words(job)}; arrivals: {arrivals}",
        "replicas share the load evenly",
        f"limits hold at the {job.percentile:g}th percentile of requests after warm-up",
        "energy at the GPUs' TDP",
    )


def lengths_in_words(job: ServingJob) -> str:
    """How the lengths of a job's requests spread.

    >>> lengths_in_words(ServingJob(input_tokens=2000, output_tokens=300, input_tokens_p99=8000))
    'prompts log-normal, 8,000 tokens at p99, outputs all alike'
    """
    sides = (
        ("prompts", job.input_tokens, job.input_tokens_p99),
        ("outputs", job.output_tokens, job.output_tokens_p99),
    )
    spreads = [
        f"{name} log-normal, {p99:,} tokens at p99" if p99 and p99 > mean else f"{name} all alike"
        for name, mean, p99 in sides
    ]
    return ", ".join(spreads)
