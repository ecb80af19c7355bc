"""How a serving plan is told.

The fleet, its latencies with their band, throughput, money, commands, and who lost.
"""

from __future__ import annotations

from app.quantities import format_usd
from app.reports.answer import Answer, Facts, Lines, Section, Table
from app.reports.serving.brief import brief_of_fleet, fleets_surer, steps_run
from app.reports.trade_offs.compared import comparison_table
from app.reports.trade_offs.frontier import frontier_table
from app.reports.trade_offs.limits import sensitivity_table
from planner.serving.fleet import LOADS
from planner.serving.headroom import breaks
from planner.serving.plan import (
    ROUNDING,
    SURE,
    Percentiles,
    PoolPlan,
    Rental,
    ServingPlan,
    serving_to_json,
    start_keys,
)
from topology.base.units import format_bytes, format_chance, format_seconds, three_digits

LONGEST_COMMAND = 2000  # characters of a command that is shown in full


def serving_answer(plan: ServingPlan) -> Answer:
    """Everything `plan serve` says of one plan."""
    sections: list[Section] = [_configuration(plan), _latencies(plan)]
    if any(check.in_band for check in plan.estimate.limits.values()):
        sections.append(_tight_limits(plan))
    sections.append(_throughput(plan))
    if plan.other_fleets:
        sections.append(comparison_table(plan))
    if plan.sensitivity:
        sections.append(sensitivity_table(plan))
    if plan.frontier is not None:
        sections.append(frontier_table(plan))
    if plan.alternatives:
        sections.append(_runners_up(plan))
    sections += [*_commands(plan), Lines(title="Assumptions", lines=plan.assumptions)]
    return Answer(
        headline=fleet_headline(plan),
        sections=tuple(sections),
        document=lambda: serving_to_json(plan),
        records=(record(plan),),
        brief=(brief_of_fleet(plan),),
    )


def fleet_headline(plan: ServingPlan) -> str:
    """The plan in one line."""
    return (
        f"{plan.request.model.name} on {plan.gpus_in_words}: {plan.label} in {plan.weights}, "
        f"{three_digits(plan.estimate.request_rate_per_s)} requests/s, {plan.certainty}"
        f"{_doubt(plan)}"
    )


def _doubt(plan: ServingPlan) -> str:
    """How surely the limits are kept, where that is less than nine times in ten."""
    return "" if plan.is_sure else f"; chance of keeping the limits {format_chance(plan.chance)}"


def record(plan: ServingPlan) -> dict[str, object]:
    """The plan as one row of a table."""
    estimate, decode = plan.estimate, plan.decode
    return {
        "model": plan.request.model.name,
        "gpu": plan.request.gpu,
        "num_gpus": plan.num_gpus,
        "mode": plan.mode,
        "weights": plan.weights,
        "replicas": decode.workers,
        "tp": decode.layout.tp,
        "pp": decode.layout.pp,
        "attention_dp": decode.layout.attention_dp,
        "ep": decode.layout.ep,
        "dcp": decode.layout.dcp,
        "request_rate_per_s": estimate.request_rate_per_s,
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "ttft_p50_s": estimate.ttft.p50_s,
        "ttft_p99_s": estimate.ttft.p99_s,
        "tpot_p50_s": estimate.tpot.p50_s,
        "tpot_p99_s": estimate.tpot.p99_s,
        "usd_per_query": estimate.usd_per_query,
        "usd_per_million_output_tokens": estimate.usd_per_million_output_tokens,
    }


def _configuration(plan: ServingPlan) -> Facts:
    """The fleet."""
    pairs = [
        ("latency", _in_short(plan)),
        *_daring(plan),
        *_narrower_cache(plan),
        *_experts(plan),
        ("engine", plan.request.engine),
        ("mode", plan.mode),
        ("weights, KV cache", f"{plan.weights}, {plan.kv_dtype}"),
    ]
    if plan.prefill is not None:
        pairs.append(("prefill pool", _pool(plan.prefill)))
    pairs.append(("decode pool" if plan.prefill else "replicas", _pool(plan.decode)))
    pairs.append(("memory of a GPU", _memory(plan.decode)))
    pairs.append(("start", _start(plan)))
    if plan.request.spare:
        pairs.append(("spare", _spare(plan)))
    if plan.rental is not None:
        pairs.append(("rented", _rented(plan.rental)))
    elif plan.idle_gpus:
        pairs.append(("idle GPUs", str(plan.idle_gpus)))
    optimality = plan.optimality
    pruned = sum(optimality.pruned.values())
    counted = f"{optimality.enumerated} options, {pruned} pruned, {optimality.simulated} simulated"
    pairs.append(("measured", plan.measured))
    pairs += _chance(plan)
    if (best := plan.evidence.best_measured) is not None:
        served = f"{three_digits(best.capacity_requests_per_s)} requests/s"
        pairs.append(("as measured", f"{best.label}: {best.num_gpus} GPUs, {served}, {best.why}"))
    proof = f"{plan.certainty} in {format_seconds(plan.search_time_s)}"
    proof += f", of {optimality.scope}" if plan.estimate.limits else ""
    pairs.append(("search", f"{counted}, {proof}"))
    return Facts(title="Configuration", pairs=tuple(pairs))


def _in_short(plan: ServingPlan) -> str:
    """Medians of the first token and of each token, with their bands."""
    first, each = plan.estimate.ttft, plan.estimate.tpot
    words = [f"first token {format_seconds(first.p50_s)} (80 %: {_band(first)})"]
    if plan.request.job.output_tokens > 1:
        words.append(f"{format_seconds(each.p50_s)} a token ({_band(each)})")
    return ", ".join(words)


def _band(latency: Percentiles) -> str:
    return f"{format_seconds(latency.lower_s)}–{format_seconds(latency.upper_s)}"


PUBLISHED_APART = 0.25
"""Share by which measured pairs of experts dealt to ranks and split over tp differ at most, in either sign
(vllm issue 28887, sglang pull 3602, kaito issue 2305)."""


def _experts(plan: ServingPlan) -> list[tuple[str, str]]:
    """How experts are cut, and that the other way is no further off than predictions are."""
    layout, each = plan.decode.layout, plan.estimate.tpot
    if not plan.request.model.is_moe or layout.attention_dp > 1 or layout.tp == 1 or each.lower_s <= 0:
        return []
    error = (each.upper_s / each.lower_s) ** 0.5 - 1
    if error < PUBLISHED_APART:
        return []
    now, other = (
        (f"dealt to ranks (ep {layout.ep})", "splitting each over tp")
        if layout.ep > 1
        else ("each split over tp", f"dealing them to ranks (ep {layout.tp})")
    )
    pairs = f"measured pairs differ by up to {100 * PUBLISHED_APART:.0f} % either way"
    apart = f"{pairs}, predictions err by {100 * error:.0f} %"
    return [("experts", f"{now}; {other} is within the error: {apart}")]


LEAST_SAVED = 0.03
"""Share of a bill that a narrower cache saves, from which it stands among the first lines."""


def _narrower_cache(plan: ServingPlan) -> list[tuple[str, str]]:
    """What a cache of eight bits saves, with its note on quality."""
    other = next((fleet for fleet in plan.other_fleets if fleet.kv_dtype), None)
    if other is None or other.saved < LEAST_SAVED:
        return []
    sized = plan.request.num_gpus is not None and plan.request.job.request_rate_per_s is None
    gain = (
        f"serves {1 + other.saved:.3g} times as much"
        if sized
        else f"saves {100 * other.saved:.0f} % of the bill"
    )
    fleet = f"{other.label} on {other.num_gpus} × {other.gpu}"
    words = (
        f"a cache of {other.kv_dtype} {gain} ({fleet}); it changes answers, so check them first (--kv fp8)"
    )
    return [("narrower cache", words)]


def _chance(plan: ServingPlan) -> list[tuple[str, str]]:
    """How surely the limits are kept."""
    pairs = []
    if plan.estimate.limits:
        among = f" of up to {plan.request.num_gpus} GPUs" if plan.request.num_gpus else ""
        reached = any(other.chance >= SURE - ROUNDING for other in plan.surer)
        why = (
            "costs more than twice the best by prediction" if reached else f"no measured fleet{among} reaches"
        )
        short = "" if plan.is_sure else f": short of {format_chance(SURE)}, which {why}"
        pairs.append(("chance of limits", f"{format_chance(plan.chance)}{short}"))
    if plan.surer:
        pairs.append(("surer", fleets_surer(plan)))
    return pairs


def _daring(plan: ServingPlan) -> list[tuple[str, str]]:
    """The fleet that is best by prediction, where it is another one."""
    pairs = []
    if (other := plan.daring) is not None:
        sized = plan.request.num_gpus is not None and plan.request.job.request_rate_per_s is None
        gain = f"serves {1 + other.saved:.3g} times as much" if sized else f"saves {100 * other.saved:.0f} %"
        hold = f" if {' and '.join(other.not_measured)} hold: not measured" if other.not_measured else ""
        fleet = f"{other.label} in {other.weights} on {other.num_gpus} × {other.gpu}"
        runs = f"; {other.rows or 'no'} measured run{'s' * (other.rows != 1)}"
        limits = (
            f"; chance of keeping the limits {format_chance(other.chance)}" if plan.estimate.limits else ""
        )
        pairs.append(("daring", f"{fleet} {gain}{hold}{runs}{limits}"))
    return pairs


def _rented(rental: Rental) -> str:
    """The machines of a fleet, whose they are, and what they cost; the idle GPUs are paid for."""
    offer = rental.offer
    where = f"{offer.provider}{f' {offer.region}' if offer.region else ''}"
    idle = f"{rental.idle_gpus} of {rental.machines * offer.gpus} GPUs idle"
    price = f"{format_usd(offer.usd_per_hour)} an hour each, on demand, {offer.as_of}"
    return f"{rental.machines} × {offer.machine} ({where}) at {price}; {idle}"


def _spare(plan: ServingPlan) -> str:
    """The workers that may be lost, or replaced by new ones, while the limits hold."""
    spare = plan.request.spare
    each = " of each pool" if plan.prefill is not None else ""
    return f"{spare} worker{'s' * (spare > 1)}{each}: as many lost, or updated at a time, break no limit"


def _pool(pool: PoolPlan) -> str:
    """One pool in words."""
    gpus = f"{pool.num_gpus} GPU{'s' * (pool.num_gpus > 1)}"
    steps = pool.balance_steps
    waits = f"; a prompt waits up to {steps} steps for one on every attention rank" if steps else ""
    return (
        f"{pool.workers} × {pool.layout.label} ({gpus}), up to {pool.max_batch} requests, "
        f"{pool.token_budget:,} tokens a step, cache of {pool.kv_capacity_tokens:,} tokens of such requests"
        f"{waits}"
    )


def _memory(pool: PoolPlan) -> str:
    """The memory of the fullest GPU."""
    memory = pool.memory
    return (
        f"weights {format_bytes(memory.weights_bytes)}, KV cache {format_bytes(memory.kv_cache_bytes)}, "
        f"activations {format_bytes(memory.activations_bytes)}, engine {format_bytes(memory.overhead_bytes)}"
    )


def _start(plan: ServingPlan) -> str:
    """What a worker prints as it starts."""
    keys = start_keys(plan)
    return (
        f"starts: {keys['kv_cache_tokens']:,} tokens of cache, longest context {keys['longest_context']:,}, "
        f"maximum concurrency of such requests {keys['max_concurrency']:.2f}x"
    )


def _latencies(plan: ServingPlan) -> Table:
    """Percentiles, band and limit of every latency."""
    job, estimate = plan.request.job, plan.estimate
    rows = (
        _latency("time to first token", estimate.ttft, job.ttft_s),
        _latency("time per output token", estimate.tpot, job.tpot_s),
        _latency("end to end", estimate.end_to_end, job.end_to_end_s),
    )
    return Table(
        title="Latency",
        columns=("", "p50", "band (80 %)", "p90", "p99", f"limit at p{job.percentile:g}"),
        rows=rows,
        note=_drawn_anew(plan),
    )


def _drawn_anew(plan: ServingPlan) -> str:
    """Between which ends a latency lies when the load is drawn anew; nothing where it was not."""
    names = {"ttft": "first token", "tpot": "each token", "end_to_end": "end to end"}
    value = (
        f"{words} {format_seconds(interval[0])} to {format_seconds(interval[1])}"
        for name, words in names.items()
        if (interval := plan.estimate.drawn_anew.get(name)) is not None
    )
    drawn_anew = ", ".join(value)
    return (
        f"p{plan.request.job.percentile:g} over {LOADS} loads drawn anew, 95 %: {drawn_anew}"
        if drawn_anew
        else ""
    )


def _latency(name: str, latency: Percentiles, limit_s: float | None) -> tuple[str, ...]:
    """One row of the latency table; dashes where no request has such a time."""
    if latency.p99_s == 0:
        return (name, *["–"] * 5)
    band = _band(latency)
    limit = format_seconds(limit_s) if limit_s is not None else "–"
    return (
        name,
        format_seconds(latency.p50_s),
        band,
        format_seconds(latency.p90_s),
        format_seconds(latency.p99_s),
        limit,
    )


_LATENCIES = {"ttft": "time to first token", "tpot": "time per output token", "end_to_end": "end to end"}


def _tight_limits(plan: ServingPlan) -> Lines:
    """Limits that the prediction keeps and the upper end of its band does not, and how likely they hold."""
    lines = []
    for key, check in plan.estimate.limits.items():
        if check.in_band:
            name = _LATENCIES[key]
            lines.append(
                f"{name}: p{plan.request.job.percentile:g} is {format_seconds(check.predicted_s)}, "
                f"{format_seconds(check.upper_s)} at the upper end of the band; the limit of "
                f"{format_seconds(check.limit_s)} holds with a probability of {format_chance(check.chance)}"
            )
    return Lines(title="Limits inside the error band", lines=tuple(lines))


def _prefix_hits(plan: ServingPlan) -> list[tuple[str, str]]:
    """What caches had of the prompts, where a trace names their blocks and a router was named."""
    prompts_found = plan.estimate.prompts_found
    if prompts_found is None:
        return []
    hosts = f", {100 * prompts_found.on_hosts:.0f} % on hosts" if plan.request.host_cache_bytes else ""
    share = f"{100 * prompts_found.found:.0f} % of their tokens found in caches{hosts}"
    return [("prompts", f"{share}, by a {prompts_found.router} router")]


def _throughput(plan: ServingPlan) -> Facts:
    """Rates, headroom, money, energy, and what bounds them."""
    estimate = plan.estimate
    rate, kept = three_digits(estimate.request_rate_per_s), three_digits(estimate.goodput_requests_per_s)
    tokens, per_gpu = three_digits(estimate.output_tokens_per_s), three_digits(estimate.tokens_per_s_per_gpu)
    batch, queue = three_digits(estimate.mean_batch), three_digits(estimate.mean_queue)
    pairs = [
        ("requests", f"{rate}/s, goodput {kept}/s"),
        *_headroom(plan),
        ("output tokens", f"{tokens}/s, {per_gpu}/s per GPU in use"),
        ("work", f"{steps_run(estimate)}, mean batch {batch}, mean queue {queue}"),
        (
            "KV cache",
            f"{100 * estimate.kv_used_share:.0f} % used at the peak, {estimate.preemptions} preemptions",
        ),
        *_prefix_hits(plan),
        ("bound by", estimate.bound_by),
        ("energy", f"{three_digits(estimate.wh_per_query)} Wh per query"),
    ]
    if estimate.usd_per_query is not None:
        hour, query = format_usd(estimate.usd_per_hour), format_usd(estimate.usd_per_query)
        inputs = format_usd(estimate.usd_per_million_input_tokens)
        outputs = format_usd(estimate.usd_per_million_output_tokens)
        per_million = f"{inputs} per million input and {outputs} per million output tokens"
        pairs.append(("cost", f"{hour} an hour, {query} per query, {per_million}"))
    else:
        unknown = f"the catalog has no price of {plan.request.gpu}"
        pairs.append(("cost", f"{unknown}: add for example --usd-per-gpu-hour 0.5"))
    return Facts(title="Throughput and cost", pairs=tuple(pairs))


def _headroom(plan: ServingPlan) -> list[tuple[str, str]]:
    """What the fleet serves at most, and what breaks above; nothing where no size was given."""
    headroom = plan.estimate.headroom
    if headroom is None:
        return []
    served, failed = three_digits(headroom.served_per_s), three_digits(headroom.failed_per_s)
    what = breaks(headroom.broken, plan.request.job.percentile)
    return [("capacity", f"serves {served}/s; at {failed}/s {what}")]


def _runners_up(plan: ServingPlan) -> Table:
    """Who lost and why."""
    rows = tuple(
        (alternative.label, str(alternative.num_gpus), alternative.why) for alternative in plan.alternatives
    )
    return Table(title="Runners-up", columns=("layout", "GPUs", "why it lost"), rows=rows, align="lrl")


def shown_command(text: str) -> str:
    """A command as it is shown: one that names hundreds of servers is told by its beginning.

    >>> shown_command("vllm serve m"), shown_command("router " + "http://node:8100 " * 1000)[-63:]
    ('vllm serve m', '8100 http://node:8100 … (1001 words; --save-dir DIR writes all)')
    """
    if max(map(len, text.splitlines()), default=0) <= LONGEST_COMMAND:
        return text
    words = text.split()
    kept = " ".join(words)[:LONGEST_COMMAND].rsplit(" ", 1)[0]
    return f"{kept} … ({len(words)} words; --save-dir DIR writes all)"


def _commands(plan: ServingPlan) -> tuple[Facts, Facts]:
    """Commands to start and to check it, and what is to know of them; the manifest goes to a file."""
    texts = {name: text for name, text in (plan.commands or {}).items() if name != "kubernetes"}
    notes = tuple((name, texts.pop(name)) for name in ("notes",) if name in texts)
    pairs = tuple((name, shown_command(text)) for name, text in texts.items())
    folder = ("folder", "plan serve … --save-dir DIR writes scripts and the Kubernetes manifest")
    return Facts(title="Commands", pairs=pairs, copied=True), Facts(title="", pairs=(*notes, folder))
