"""A fleet at one glance: its replicas, latencies and limits, load and cost, and what stands behind them.

Every figure is one of the whole answer (`app.reports.serving.plan`), which `--full` prints.
"""

from __future__ import annotations

from app.quantities import format_usd
from app.reports.answer import Facts
from planner.serving.headroom import breaks
from planner.serving.plan import Percentiles, ServingEstimate, ServingPlan
from topology.base.counts import counted
from topology.base.units import format_bytes, format_chance, format_seconds, three_digits


def brief_of_fleet(plan: ServingPlan) -> Facts:
    """The fleet, its latencies and limits, load, memory, money, proof and evidence, a line or two each."""
    pairs = [
        ("fleet", _fleet(plan)),
        ("latency", _latency(plan)),
        ("limits", _limits(plan)),
        ("load", _load(plan)),
        ("memory", _memory(plan)),
        ("money", _money(plan)),
        ("proof", f"{plan.certainty}, {counted(plan.optimality.enumerated, 'option')}"),
        ("evidence", plan.measured),
        ("measured", _as_measured(plan)),
        ("daring", _daring(plan)),
        ("surer", fleets_surer(plan)),
        ("more", "--full (commands, other fleets, percentiles) · --save-dir DIR"),
    ]
    return Facts(title="", pairs=tuple((name, text) for name, text in pairs if text))


def _fleet(plan: ServingPlan) -> str:
    """Its replicas, or both pools."""
    pools = [pool for pool in (plan.prefill, plan.decode) if pool is not None]
    workers = " + ".join(f"{pool.workers} × {pool.layout.label}" for pool in pools)
    each = " of each pool" if plan.prefill is not None else ""
    spare = f", {plan.request.spare}{each} to spare" if plan.request.spare else ""
    return f"{workers}{spare}, {plan.mode}, {plan.request.engine}; {plan.kv_dtype} cache"


def _latency(plan: ServingPlan) -> str:
    """Medians of the first token and of each token, with their 80 % bands."""
    first, each = plan.estimate.ttft, plan.estimate.tpot
    words = [f"first token {_median(first)}"]
    if plan.request.job.output_tokens > 1:
        words.append(f"each {_median(each)}")
    return ", ".join(words)


def _median(latency: Percentiles) -> str:
    lower, upper = format_seconds(latency.lower_s), format_seconds(latency.upper_s)
    return f"{format_seconds(latency.p50_s)} ({lower}–{upper})"


_NAMES = {"ttft": "first token", "tpot": "each", "end_to_end": "whole"}


def _limits(plan: ServingPlan) -> str:
    """Latencies at the percentile that limits are asked at, beside these, and the chance that all hold."""
    checks = [
        f"{_NAMES[key]} {format_seconds(check.predicted_s)} of {format_seconds(check.limit_s)}"
        for key, check in plan.estimate.limits.items()
    ]
    if not checks:
        return ""
    chance = f"chance of keeping them {format_chance(plan.chance)}"
    return f"p{plan.request.job.percentile:g} {', '.join(checks)}; {chance}"


def _load(plan: ServingPlan) -> str:
    """Requests and tokens, and what the fleet serves at most."""
    estimate, headroom = plan.estimate, plan.estimate.headroom
    rate, tokens = three_digits(estimate.request_rate_per_s), three_digits(estimate.output_tokens_per_s)
    words = f"{rate} requests/s, {tokens} output tokens/s, {steps_run(estimate)}"
    if headroom is None:
        return words
    failed = three_digits(headroom.failed_per_s)
    return f"{words}; at {failed}/s {breaks(headroom.broken, plan.request.job.percentile)}"


def steps_run(estimate: ServingEstimate) -> str:
    """Share of the time in which a GPU has a step to run: near 100 % long before its capacity.

    A step of one request and one of a hundred count alike.
    """
    return f"steps run {100 * estimate.utilisation:.0f} % of the time"


def _memory(plan: ServingPlan) -> str:
    """What the fullest GPU holds, and the longest request where that is less than the model's context."""
    pool, whole = plan.decode, plan.request.model.max_sequence_length
    weights, cache = format_bytes(pool.memory.weights_bytes), format_bytes(pool.memory.kv_cache_bytes)
    words = f"weights {weights}, KV cache {cache} a GPU"
    if plan.request.length_limit is None and 0 < pool.longest_context < whole:
        words += f"; requests of up to {pool.longest_context:,} tokens of the model's {whole:,}"
    return words


def _money(plan: ServingPlan) -> str:
    """Dollars an hour of which machines, and of a million tokens: inputs and outputs share the hour's."""
    estimate, rental = plan.estimate, plan.rental
    if estimate.usd_per_hour is None:
        return f"no price of {plan.request.gpu}: --usd-per-gpu-hour N"
    hour, inputs, outputs = (
        format_usd(usd)
        for usd in (
            estimate.usd_per_hour,
            estimate.usd_per_million_input_tokens,
            estimate.usd_per_million_output_tokens,
        )
    )
    gpus = plan.request.num_gpus if plan.request.owned else None
    on = f" (your {gpus} GPUs, {plan.idle_gpus} idle)" if gpus and plan.idle_gpus else ""
    if rental is not None:
        idle = f", {counted(rental.idle_gpus, 'GPU')} idle" if rental.idle_gpus else ""
        on = f" ({rental.machines} × {rental.offer.machine}{idle}, {rental.offer.as_of})"
    return f"{hour} an hour{on}; {inputs} per million input and {outputs} per million output tokens"


def _as_measured(plan: ServingPlan) -> str:
    """The best fleet that has measured runs, where this one has none."""
    best = plan.evidence.best_measured
    if best is None:
        return ""
    return f"{best.label}: {best.num_gpus} GPUs, {three_digits(best.capacity_requests_per_s)} requests/s"


def _daring(plan: ServingPlan) -> str:
    """The fleet that is best by prediction, where it is another one."""
    other = plan.daring
    if other is None:
        return ""
    sized = plan.request.num_gpus is not None and plan.request.job.request_rate_per_s is None
    gain = f"serves {1 + other.saved:.3g} times as much" if sized else f"saves {100 * other.saved:.0f} %"
    limits = f", chance of limits {format_chance(other.chance)}" if plan.estimate.limits else ""
    runs = counted(other.rows, "measured run")
    return f"{other.label} in {other.weights} on {other.num_gpus} × {other.gpu} {gain}; {runs}{limits}"


def fleets_surer(plan: ServingPlan) -> str:
    """What a higher chance of keeping the limits costs, where that is more than is proposed; "" elsewhere."""
    rungs = []
    for other in plan.surer:
        usd = f" at {format_usd(other.usd_per_hour)} an hour" if other.usd_per_hour is not None else ""
        fleet = f"{other.label} in {other.weights} on {other.num_gpus} × {other.gpu}"
        rungs.append(f"{format_chance(other.chance)}: {fleet}{usd}")
    return "; ".join(rungs)
