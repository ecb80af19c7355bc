"""What was asked, in one line, and what the plan costs: step, throughput, utilisation, memory, money."""

from __future__ import annotations

from app.limits import kept_words
from app.quantities import format_count, format_duration, format_percent, format_sum, format_usd
from app.reports.answer import Facts
from costmodel.campaign.record import Band
from costmodel.estimate import Estimate
from costmodel.evidence.table import unmeasured
from costmodel.job import TrainingJob
from costmodel.kernels.precisions import TRAINING
from costmodel.memory.fit import fit_text
from costmodel.updates.optimizers import USUAL
from planner.engines.contracts import engine_of_stack
from planner.plan import FREE, Plan, PlanRequest, steps_of_request
from planner.pricing import capacity_of_fullest
from topology.base.counts import counted
from topology.base.units import (
    KILO,
    format_bytes,
    format_flop_per_s,
    format_seconds,
    format_seconds_band,
    three_digits,
)
from topology.cluster import Cluster
from topology.pools.kinds import kinds_of
from topology.pools.rates import rate_of, unpriced
from topology.spec import ClusterSpec


def headline_of(plan: Plan) -> str:
    """The question of a plan in one line, with the GPUs that work where some idle."""
    return headline(plan.request, plan.layout.num_gpus)


def headline(request: PlanRequest, working_gpus: int | None = None) -> str:
    """One line that names the question.

    Args:
        request: What was asked.
        working_gpus: GPUs that the answer uses, where there is one.
    """
    job, cluster = request.job, request.cluster
    kinds = " + ".join(dict.fromkeys(node.gpu for node in cluster.nodes))
    batch = f"{counted(job.global_batch_size, 'sequence')} of {counted(job.sequence_length, 'token')}"
    if request.model.module is not None:
        each = request.model.module.sample_tokens
        batch = counted(job.global_batch_size, "sample") + (f" of {counted(each, 'token')}" if each else "")
    where = f"{cluster.num_gpus:,} × {kinds}"
    if working_gpus is not None and working_gpus < cluster.num_gpus:
        where = f"{working_gpus:,} of {where}"
    launched = () if request.engine in (FREE, engine_of_stack(request.stack)) else (f"for {request.engine}",)
    return " · ".join(
        (
            f"{request.model.name} on {where}", batch, job.precision, *unusual(job), request.stack,
            *_switches(request), *launched,
        )
    )  # fmt: skip


def _switches(request: PlanRequest) -> tuple[str, ...]:
    """Switches that the question sets, the first by name and value, the rest counted."""
    named = [f"{name} {value}" for name, value in request.switches.items()]
    shown, further = named[:SWITCHES_NAMED], len(named) - SWITCHES_NAMED
    return (
        (*shown, f"{further} more {'switch' if further == 1 else 'switches'}") if further > 0 else (*shown,)
    )


SWITCHES_NAMED = 2


def unusual(job: TrainingJob) -> tuple[str, ...]:
    """What of a job is not as most have it, in words."""
    row = (
        job.adapter and job.adapter.words,
        job.optimizer != USUAL and job.optimizer,
        job.offload and f"offload {job.offload.words}",
        job.gradient_compression and f"gradients as {job.gradient_compression}",
        job.local_steps and f"workers apart, {job.local_steps}",
        job.bucket_bytes and f"buckets of {format_bytes(job.bucket_bytes)}",
        job.images and counted(job.images, "image"),
        job.image_tokens and f"{counted(job.image_tokens, 'token')} an image",
        job.frozen_tower and "tower frozen",
        job.mtp_layers and f"{counted(job.mtp_layers, 'further token')} predicted",
        job.document_tokens and f"documents of {counted(job.document_tokens, 'token')}",
        job.expert_load and "experts as measured",
    )
    return tuple(words for words in row if words)


def unit_of_work(request: PlanRequest) -> str:
    """What a step is counted in: a module has samples, whose tokens nobody knows."""
    return "tokens" if request.model.module is None else "samples"


def headline_facts(plan: Plan) -> Facts:
    """Step time with its band, throughput, utilisation, memory and money."""
    request, estimate = plan.request, plan.estimate
    pairs = [
        ("step time", step_text(estimate)),
        ("throughput", throughput_text(request, estimate)),
        ("MFU", mfu_text(request, estimate, mean_peak(plan))),
        ("peak memory", memory_text(estimate, capacity_of_fullest(plan))),
        *([("evidence", evidence_text(request, estimate))] if estimate.evidence else []),
        ("money, energy", money_text(request, estimate)),
    ]
    if request.job.total_tokens is not None:
        pairs += [("time to train", finish_words(plan)), ("steps alone", steps_text(request, estimate))]
    return Facts(title="", pairs=tuple(pairs))


def step_text(estimate: Estimate) -> str:
    """Step time, its band, and what it is bound by."""
    whole = format_seconds(estimate.step_time_s)
    return f"{whole} · 80 % band {band_text(estimate)} · bound by {estimate.bound_by}"


def throughput_text(request: PlanRequest, estimate: Estimate) -> str:
    """Tokens (samples of a module) per second, per GPU and in all."""
    job, unit = request.job, unit_of_work(request)
    tokens_per_s = job.tokens_per_step / estimate.step_time_s
    return (
        f"{estimate.tokens_per_s_per_gpu:,.0f} {unit}/s/GPU · {format_count(tokens_per_s)} {unit}/s"
        f" · {format_count(job.tokens_per_step)} {unit} a step"
    )


def band_text(estimate: Estimate) -> str:
    """The band of the step, both ends in the unit of the step time."""
    return format_seconds_band(estimate.step_time_s, estimate.lower_s, estimate.upper_s)


def mean_peak(plan: Plan) -> float | None:
    """Peak of a GPU in the mean over those that are paid for, where stages run on unlike kinds of node."""
    if not plan.kind_of_stage:
        return None
    from topology.builders import build
    from topology.pools.kinds import each_kind

    dtype, kinds = (
        TRAINING[plan.request.job.precision].peak,
        [build(x) for x in each_kind(plan.request.cluster)],
    )
    counts = [kind.num_gpus for kind in kinds]
    if gpus_paid(plan.request, plan.estimate) == plan.layout.num_gpus:
        counts = [plan.kind_of_stage.count(kind) for kind in range(len(kinds))]
    return sum(cluster.gpu.peak(dtype) * n for cluster, n in zip(kinds, counts, strict=True)) / sum(counts)


def mfu_text(request: PlanRequest, estimate: Estimate, peak: float | None = None) -> str:
    """MFU with the formula that gives it; `peak` is a GPU's, by default that of the cluster's GPU."""
    peak = peak or cluster_of(request).gpu.peak(TRAINING[request.job.precision].peak)
    num_gpus = gpus_paid(request, estimate)
    step_s = estimate.step_time_s
    flop = f"{estimate.mfu * step_s * num_gpus * peak:.4g}".replace("e+", "e")
    seconds = f"{step_s:,.1f} s" if step_s >= 100 else f"{step_s:.4g} s"
    numbers = f"{flop} / ({seconds} × {num_gpus:,} × {format_flop_per_s(peak)})"
    return (
        f"{format_percent(estimate.mfu)} = model FLOP / (step × GPUs × peak) = {numbers}"
        f" · HFU {format_percent(estimate.hfu)}"
    )


def gpus_paid(request: PlanRequest, estimate: Estimate) -> int:
    """GPUs that every figure per GPU counts: idle ones too, unless the plan says how many to rent."""
    return round(request.job.tokens_per_step / (estimate.step_time_s * estimate.tokens_per_s_per_gpu))


def cluster_of(request: PlanRequest) -> Cluster:
    """Build the cluster of a request."""
    from topology.builders import build

    return build(request.cluster)


def memory_text(estimate: Estimate, capacity: float) -> str:
    """Peak memory against the GPU's."""
    fullest = max(
        range(len(estimate.memory_by_stage)), key=lambda stage: estimate.memory_by_stage[stage].total_bytes
    )
    allocated = format_bytes(estimate.memory_by_stage[fullest].allocated_bytes)
    return (
        f"{format_bytes(estimate.peak_memory_bytes)} of {format_bytes(capacity)}"
        f" ({format_percent(estimate.peak_memory_bytes / capacity)}) on stage {fullest}, "
        f"{allocated.removesuffix(' GiB')} of it by the allocator · 80 % band "
        f"{format_bytes(estimate.memory_lower_bytes).removesuffix(' GiB')} – "
        f"{format_bytes(estimate.memory_upper_bytes)} · {fit_text(estimate.out_of_memory_chance)}"
    )


def evidence_text(request: PlanRequest, estimate: Estimate) -> str:
    """How many measured runs stand behind the plan, the thinnest key of it, and what no run has."""
    evidence, missing, model = estimate.evidence[0], unmeasured(estimate.evidence), request.model
    kinds = () if model.module else (model.attention, model.recurrence)
    mixers = [kind.title for kind in kinds if kind and not kind.is_measured]
    words = [f"{counted(evidence.runs, 'measured run')} of {evidence.used}"]
    thinnest = min((e for e in estimate.evidence if e.runs), key=lambda e: e.runs, default=evidence)
    if 0 < thinnest.runs < evidence.runs:
        words.append(f"fewest with {thinnest.used}: {thinnest.runs}")
    if missing or mixers:
        names = [*mixers, *(e.used for e in missing if e is not evidence)]
        words.append(f"not measured: {', '.join(names) or evidence.used}")
        words[-1] += f" on {cluster_of(request).gpu.name}"
    if request.anchor is not None:
        words.insert(0, f"{counted(request.anchor.runs, 'run')} of your own ({request.anchor.name})")
    return " · ".join(words)


def money_text(request: PlanRequest, estimate: Estimate) -> str:
    """Dollars and energy for a billion tokens (samples of a module)."""
    unit = unit_of_work(request)
    energy = f"{three_digits(estimate.wh_per_billion_tokens / KILO)} kWh per billion {unit} at design power"
    price = price_text(request.cluster)
    if estimate.usd_per_billion_tokens is None:
        return f"{price} (--set cluster.usd_per_gpu_hour=…) · {energy}"
    as_of = f", {request.cluster.price_as_of}" if request.cluster.price_as_of else ""
    money = f"{format_usd(estimate.usd_per_billion_tokens)} per billion {unit}"
    if request.job.total_tokens is not None:
        money += " of steps alone"
    return f"{money} at {price} per GPU-hour{as_of} · {energy}"


def price_text(cluster: ClusterSpec) -> str:
    """Dollars an hour of a GPU, of each kind of node where they differ; or which kinds lack a price.

    >>> from topology.catalog import cluster
    >>> price_text(cluster("dgx-h100", 32).spec)
    '$6.88'
    """
    lacking = ", ".join(unpriced(cluster))
    if lacking:
        return f"no price known of {lacking}" if len(cluster.nodes) > 1 else "no price known"
    kinds = [(kind.gpu, rate_of(cluster, kind)) for kind in kinds_of(cluster)]
    each = " and ".join(f"${rate:.2f} ({gpu})" for gpu, rate in kinds)
    text = each if len({rate for _, rate in kinds}) > 1 else f"${kinds[0][1]:.2f}"
    idle = cluster.idle_usd_per_hour
    return f"{text}, with ${idle:.2f} an hour of idle nodes," if idle else text


def run_s(request: PlanRequest, estimate: Estimate) -> float:
    """Seconds of all steps of the job, one after the other."""
    return steps_of_request(request) * estimate.step_time_s


def finish_words(plan: Plan) -> str:
    """Days and dollars for all tokens, failures included, and whether the deadline is kept."""
    from planner.campaign.finish import campaign_or_none

    run, deadline_s = campaign_or_none(plan), plan.request.job.deadline_s
    if run is None:
        return "never finished: failures leave this run no headway"
    text = f"{three_digits(run.days.p50)} days in the median, {days_text(run.days)} in 8 of 10 runs"
    if run.usd is not None:
        text += f" · {format_usd(run.usd.p50)}"
    if deadline_s is not None and run.deadline_chance is not None:
        text += f" · deadline of {format_duration(deadline_s)} {kept_words(run.deadline_chance)}"
    if plan.request.job.budget_usd is not None and run.budget_chance is not None:
        text += f" · budget of {format_sum(plan.request.job.budget_usd)} {kept_words(run.budget_chance)}"
    return text


def days_text(days: Band) -> str:
    """Both ends of a band of days.

    >>> days_text(Band(p10=3.456, p50=4.0, p90=4.943))
    '3.46 – 4.94'
    """
    return f"{three_digits(days.p10)} – {three_digits(days.p90)}"


def steps_text(request: PlanRequest, estimate: Estimate) -> str:
    """What all steps take where nothing fails: no time to train, since something does."""
    steps = steps_of_request(request)
    asked = f"{format_count(request.job.total_tokens or 0)} {unit_of_work(request)}"
    text = f"{asked} in {format_count(steps)} steps of {format_duration(run_s(request, estimate))}"
    if estimate.usd_per_step is not None:
        text += f" and {format_usd(steps * estimate.usd_per_step)}"
    return f"{text}, nothing failing"
