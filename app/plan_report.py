"""A plan as an expert wants to read it: what it costs, how it is split, where the time goes, why it is best.

The sections quote the plan and compute nothing that the plan does not state, apart from shares and units.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields

from app.output import Answer, Facts, Lines, Section, Table, bar
from app.quantities import (
    format_count,
    format_duration,
    format_like,
    format_percent,
    format_share,
    format_usd,
)
from app.records import plan_records
from costmodel.estimate import Estimate, TimeBreakdown
from costmodel.layout import LayoutTable, ParallelLayout, num_axes, num_microbatches
from costmodel.memory import MemoryBreakdown
from costmodel.workload import TrainingJob
from planner.plan import Alternative, Optimality, Plan, PlanRequest, to_json
from topology.cluster import Cluster
from topology.gpu import Gpu
from topology.units import KILO, format_bytes, format_flop_per_s, format_seconds, three_digits

_PART_NAMES: Mapping[str, str] = {
    "compute_s": "compute",
    "recompute_s": "recompute",
    "tp_s": "tensor-parallel wait",
    "cp_s": "context-parallel wait",
    "ep_s": "expert all-to-all wait",
    "pp_s": "pipeline sends",
    "dp_s": "gradient and parameter wait",
    "bubble_s": "pipeline bubble",
    "optimizer_s": "optimizer",
    "host_s": "host and launch",
}
_MEMORY_NAMES = ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")
_MOST_ROWS = 16
_NEGLIGIBLE = 5e-4
"""Parts of the step below this share are left out of the table."""


def plan_answer(plan: Plan) -> Answer:
    """Everything `plan train` says about its plan."""
    sections: list[Section] = [
        headline_facts(plan.request, plan.estimate),
        layout_facts(plan),
        time_table(plan.estimate),
        memory_table(plan),
        proof_facts(plan.optimality, plan.search_time_s),
    ]
    if plan.alternatives:
        sections.append(alternatives_table(plan))
    notes = plan.assumptions + tuple(
        text for text in plan.estimate.assumptions if text not in plan.assumptions
    )
    if notes:
        sections.append(Lines(title="Assumed", lines=notes))
    return Answer(
        headline=headline(plan.request),
        sections=tuple(sections),
        document=to_json(plan),
        records=plan_records(plan),
    )


def headline(request: PlanRequest) -> str:
    """One line that names the question."""
    job, cluster = request.job, request.cluster
    kinds = " + ".join(dict.fromkeys(node.gpu for node in cluster.nodes))
    batch = f"{job.global_batch_size:,} sequences of {job.sequence_length:,} tokens"
    where = f"{cluster.num_gpus:,} × {kinds}"
    return f"{request.model.name} on {where} · {batch} · {job.precision} · {request.stack}"


def headline_facts(request: PlanRequest, estimate: Estimate) -> Facts:
    """Step time with its band, throughput, utilisation, memory and money."""
    pairs = [
        ("step time", step_text(estimate)),
        ("throughput", throughput_text(request, estimate)),
        ("MFU", mfu_text(request, estimate)),
        ("peak memory", memory_text(request, estimate)),
        ("money, energy", money_text(request, estimate)),
    ]
    if request.job.total_tokens is not None:
        pairs.append(("whole run", run_text(request, estimate)))
    return Facts(title="", pairs=tuple(pairs))


def step_text(estimate: Estimate) -> str:
    """Step time, its band, and what it is bound by."""
    whole = format_seconds(estimate.step_time_s)
    return f"{whole} · 80 % band {band(estimate.lower_s, estimate.upper_s)} · bound by {estimate.bound_by}"


def throughput_text(request: PlanRequest, estimate: Estimate) -> str:
    """Tokens per second, per GPU and in all."""
    job = request.job
    tokens_per_s = job.tokens_per_step / estimate.step_time_s
    return (
        f"{estimate.tokens_per_s_per_gpu:,.0f} tokens/s/GPU · {format_count(tokens_per_s)} tokens/s"
        f" · {format_count(job.tokens_per_step)} tokens a step"
    )


def band(lower_s: float, upper_s: float) -> str:
    """Write a time band with one unit.

    >>> band(0.91, 1.12)
    '910 ms – 1.12 s'
    """
    low, high = format_seconds(lower_s), format_seconds(upper_s)
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return f"{low} – {high}"


def mfu_text(request: PlanRequest, estimate: Estimate) -> str:
    """MFU with the formula that gives it."""
    peak = peak_flop_per_s(cluster_of(request).gpu, request.job)
    num_gpus = gpus_paid(request, estimate)
    flop = estimate.mfu * estimate.step_time_s * num_gpus * peak
    numbers = (
        f"{flop:.3g} / ({format_seconds(estimate.step_time_s)} × {num_gpus:,} × {format_flop_per_s(peak)})"
    )
    return (
        f"{format_percent(estimate.mfu)} = model FLOP / (step × GPUs × peak) = {numbers}"
        f" · HFU {format_percent(estimate.hfu)}"
    )


def gpus_paid(request: PlanRequest, estimate: Estimate) -> int:
    """GPUs that every figure per GPU counts: idle ones too, unless the plan says how many to rent."""
    return round(request.job.tokens_per_step / (estimate.step_time_s * estimate.tokens_per_s_per_gpu))


def peak_flop_per_s(gpu: Gpu, job: TrainingJob) -> float:
    """Dense peak of a GPU in the precision of the job, in FLOP/s."""
    dtype = "fp8" if job.is_fp8 else job.precision
    return gpu.peak_flop_per_s.get(dtype, gpu.peak_flop_per_s["bf16"])


def cluster_of(request: PlanRequest) -> Cluster:
    """Build the cluster of a request."""
    from topology.builders import build

    return build(request.cluster)


def memory_text(request: PlanRequest, estimate: Estimate) -> str:
    """Peak memory against the GPU's."""
    capacity = cluster_of(request).gpu.memory_bytes
    fullest = max(
        range(len(estimate.memory_by_stage)), key=lambda stage: estimate.memory_by_stage[stage].total_bytes
    )
    risk = (
        " · OOM risk: the band reaches past the GPU's memory"
        if estimate.memory_upper_bytes > capacity
        else ""
    )
    return (
        f"{format_bytes(estimate.peak_memory_bytes)} of {format_bytes(capacity)}"
        f" ({format_percent(estimate.peak_memory_bytes / capacity)}) on stage {fullest} · 80 % band "
        f"{format_bytes(estimate.memory_lower_bytes).removesuffix(' GiB')} – "
        f"{format_bytes(estimate.memory_upper_bytes)}{risk}"
    )


def money_text(request: PlanRequest, estimate: Estimate) -> str:
    """Dollars and energy for a billion tokens."""
    energy = f"{three_digits(estimate.wh_per_billion_tokens / KILO)} kWh per billion tokens at design power"
    rate = request.cluster.usd_per_gpu_hour
    if estimate.usd_per_billion_tokens is None or rate is None:
        return f"no price known (--set cluster.usd_per_gpu_hour=…) · {energy}"
    as_of = f", {request.cluster.price_as_of}" if request.cluster.price_as_of else ""
    price = f"at ${rate:.2f} per GPU-hour{as_of}"
    return f"{format_usd(estimate.usd_per_billion_tokens)} per billion tokens {price} · {energy}"


def run_text(request: PlanRequest, estimate: Estimate) -> str:
    """Time and money for all tokens of the job."""
    tokens = request.job.total_tokens or 0
    steps = -(-tokens // request.job.tokens_per_step)
    total_s = steps * estimate.step_time_s
    text = f"{format_count(tokens)} tokens in {format_count(steps)} steps take {format_duration(total_s)}"
    if estimate.usd_per_step is not None:
        text += f" and {format_usd(steps * estimate.usd_per_step)}"
    if request.job.deadline_s is not None:
        met = "meets" if total_s <= request.job.deadline_s else "misses"
        text += f"; {met} the deadline of {format_duration(request.job.deadline_s)}"
    return text


def layout_facts(plan: Plan) -> Facts:
    """How the job is split, and where each axis lives."""
    request, layout, idle_gpus = plan.request, plan.layout, plan.idle_gpus
    pairs = [
        ("degrees", degrees_text(layout)),
        ("placement", placement_text(request, layout)),
        ("pipeline", pipeline_text(request, layout)),
        ("sharding", f"{sharding_text(layout)}; {recompute_text(plan)}"),
    ]
    if idle_gpus and request.objective in ("cost", "gpus"):
        pairs.append(("not needed", f"{idle_gpus:,} GPUs, not counted in any figure"))
    elif idle_gpus:
        reason = "using fewer is faster or is all that divides"
        pairs.append(("idle", f"{idle_gpus:,} GPUs: {reason}; money, MFU and tokens/s/GPU count them"))
    return Facts(title="Layout", pairs=tuple(pairs))


def degrees_text(layout: ParallelLayout) -> str:
    """The degrees that are more than one.

    >>> degrees_text(ParallelLayout(tp=4, pp=2, dp=4, sequence_parallel=True))
    'tp 4 (sequence parallel) · pp 2 · dp 4'
    """
    parts = []
    for axis in ("tp", "cp", "pp", "dp", "ep", "expert_tp"):
        degree = getattr(layout, axis)
        if degree > 1:
            parts.append(f"{axis.replace('_', ' ')} {degree}{_detail(layout, axis)}")
    return " · ".join(parts) or "one GPU"


def layout_words(layout: ParallelLayout, recompute: str = "") -> str:
    """A layout in one short line: its degrees, and what is not the default of the rest.

    >>> layout_words(ParallelLayout(tp=4, pp=2, dp=4, virtual_stages=3, zero_stage=1, recompute="full"))
    'tp 4 · pp 2 × 3 · dp 4 · ZeRO-1 · recompute layers'

    Args:
        layout: The layout.
        recompute: What to say of recomputation, if more is known than the policy (`recompute_text`).
    """
    words = []
    for axis in ("tp", "cp", "pp", "dp", "ep", "expert_tp"):
        degree = getattr(layout, axis)
        chunks = f" × {layout.virtual_stages}" if axis == "pp" and layout.virtual_stages > 1 else ""
        if degree > 1:
            words.append(f"{axis.replace('_', ' ')} {degree}{chunks}")
    if layout.microbatch_size > 1:
        words.append(f"microbatch {layout.microbatch_size}")
    if layout.zero_stage and layout.effective_shard_degree > 1:
        words.append(f"ZeRO-{layout.zero_stage}")
    if layout.recompute != "none":
        words.append(recompute or f"recompute {'layers' if layout.recompute == 'full' else layout.recompute}")
    if layout.schedule not in ("1f1b", "interleaved"):
        words.append(layout.schedule)
    return " · ".join(words) or "one GPU"


def plan_words(plan: Plan | Alternative) -> str:
    """The layout of a plan in one short line, with how many layers it recomputes."""
    return layout_words(plan.layout, recompute_text(plan))


def recompute_text(plan: Plan | Alternative) -> str:
    """What is recomputed: a policy by name, whole layers by their number."""
    again, layers = sum(plan.recompute_of_stage), sum(plan.layers_of_stage)
    if plan.layout.recompute != "full":
        return f"recompute {plan.layout.recompute}"
    return "recompute all layers" if again == layers else f"recompute {again} of {layers} layers"


def _detail(layout: ParallelLayout, axis: str) -> str:
    """What else is to know about an axis."""
    if axis == "tp" and layout.sequence_parallel:
        return " (sequence parallel)"
    return f" ({layout.cp_kind})" if axis == "cp" else ""


def placement_text(request: PlanRequest, layout: ParallelLayout) -> str:
    """Which axes stay inside a scale-up domain, fastest axis first, then where experts are exchanged."""
    from costmodel.placement import axis_strides
    from topology.hierarchy import nodes_spanned

    hierarchy = cluster_of(request).hierarchy
    stride, words = 1, []
    for axis in reversed(layout.axis_order):
        degree = getattr(layout, axis)
        if degree > 1:
            spanned = int(nodes_spanned(hierarchy, degree, stride))
            words.append(f"{axis} inside a node" if spanned == 1 else f"{axis} across {spanned} nodes")
        stride *= degree
    if layout.ep > 1:
        spanned = int(
            nodes_spanned(hierarchy, layout.ep, int(axis_strides(LayoutTable.of([layout]))["ep"][0]))
        )
        words.append("ep inside a node" if spanned == 1 else f"ep across {spanned} nodes")
    return " · ".join(words) or "nothing to place"


def pipeline_text(request: PlanRequest, layout: ParallelLayout) -> str:
    """Microbatches, and the schedule that runs them."""
    count = num_microbatches(layout, request.job)
    batches = f"{count} microbatch{'es' if count > 1 else ''} of {layout.microbatch_size}"
    if layout.pp == 1:
        return f"none; {batches} accumulate"
    chunks = f" × {layout.virtual_stages} virtual stages" if layout.virtual_stages > 1 else ""
    return f"{layout.schedule} over {layout.pp} stages{chunks}; {batches}"


def sharding_text(layout: ParallelLayout) -> str:
    """ZeRO stage, and over how many of the replicas.

    >>> sharding_text(ParallelLayout(dp=8, zero_stage=3, shard_degree=4)), sharding_text(ParallelLayout(tp=8))
    ('ZeRO-3 over 4 of 8 replicas', 'one replica')
    """
    degree, replicas = layout.effective_shard_degree, layout.dp * layout.cp
    if replicas == 1 and (layout.ep * layout.expert_tp == 1 or layout.expert_dp == 1):
        return "one replica"
    if not layout.zero_stage or degree == 1:
        return "replicated state"
    shown = f"{degree}" if degree == replicas else f"{degree} of {replicas}"
    return f"ZeRO-{layout.zero_stage} over {shown} replicas"


def time_table(estimate: Estimate) -> Table:
    """Where the step goes, part by part."""
    total = estimate.step_time_s
    names = [part.name for part in fields(TimeBreakdown) if part.name != "hidden_s"]
    parts = [(_PART_NAMES[name], float(getattr(estimate.time, name))) for name in names]
    rows = [
        (name, format_like(value, total), format_share(value / total), bar(value / total))
        for name, value in parts
        if value > total * _NEGLIGIBLE
    ]
    rows.append(("total", format_like(total, total), "100 %", ""))
    communication = estimate.time.hidden_s.items()
    hidden = " · ".join(
        f"{axis} {format_like(s, total)}" for axis, s in communication if s > total * _NEGLIGIBLE
    )
    return Table(
        title="Time of a step", columns=("", "time", "share", ""), rows=tuple(rows), align="lrrl",
        note=f"hidden under compute, outside the sum: {hidden}" if hidden else "",
    )  # fmt: skip


def memory_table(plan: Plan) -> Table:
    """Memory of every stage, beside its layers; neighbouring stages that are equal share a row."""
    capacity = cluster_of(plan.request).gpu.memory_bytes
    stages = plan.estimate.memory_by_stage
    layers = layers_of_rank(plan.layers_of_stage, plan.layout)
    cells = [
        _memory_cells(stages[rank], layers[rank], plan.recompute_of_stage[rank], capacity)
        for rank in range(len(stages))
    ]
    ranges = equal_ranges(cells)
    shown = [ranges[number] for number in _shown(len(ranges), _fullest_range(ranges, stages))]
    hidden = len(ranges) - len(shown)
    return Table(
        title=f"Memory per stage, GiB of {format_bytes(capacity)}",
        columns=("stage", "layers", "recomputed", *_MEMORY_NAMES, "total", "of HBM", ""),
        rows=tuple((_range_name(*ends), *cells[ends[0]]) for ends in shown),
        align="rrr" + "r" * (len(_MEMORY_NAMES) + 2) + "l",
        note=f"{hidden} rows between these are not shown; --json has all" if hidden else "",
    )


def _memory_cells(memory: MemoryBreakdown, layers: str, recomputed: int, capacity: float) -> tuple[str, ...]:
    """One stage as cells."""
    share = memory.total_bytes / capacity
    parts = [_gib(getattr(memory, f"{name}_bytes")) for name in _MEMORY_NAMES]
    return (layers, str(recomputed), *parts, _gib(memory.total_bytes), format_share(share), bar(share, 16))


def equal_ranges(cells: Sequence[tuple[str, ...]]) -> list[tuple[int, int]]:
    """First and last index of every run of equal rows.

    >>> equal_ranges([("a",), ("b",), ("b",), ("a",)])
    [(0, 0), (1, 2), (3, 3)]
    """
    starts = [i for i in range(len(cells)) if i == 0 or cells[i] != cells[i - 1]]
    return [(start, end - 1) for start, end in zip(starts, [*starts[1:], len(cells)], strict=True)]


def _range_name(first: int, last: int) -> str:
    """Name a run of stages."""
    return str(first) if first == last else f"{first}–{last}"


def _fullest_range(ranges: Sequence[tuple[int, int]], stages: Sequence[MemoryBreakdown]) -> int:
    """Index of the run that needs most memory."""
    return max(range(len(ranges)), key=lambda number: stages[ranges[number][0]].total_bytes)


def _shown(count: int, fullest: int) -> list[int]:
    """All rows, or when there are many: the first ones, the fullest, the last."""
    if count <= _MOST_ROWS:
        return list(range(count))
    return sorted({0, 1, 2, 3, fullest, count - 2, count - 1})


def layers_of_rank(layers_of_stage: tuple[int, ...], layout: ParallelLayout) -> list[str]:
    """Layers of every pipeline rank; with virtual stages, the layers of each of its chunks.

    >>> layers_of_rank((3, 3, 2, 2), ParallelLayout(pp=2, virtual_stages=2, schedule="interleaved"))
    ['3+2', '3+2']
    """
    pp, chunks = layout.pp, len(layers_of_stage) // max(1, layout.pp)
    v_shaped = layout.schedule in ("zbv", "dualpipev")
    ranks = []
    for rank in range(pp):
        index = [chunk * pp + (pp - 1 - rank if v_shaped and chunk % 2 else rank) for chunk in range(chunks)]
        ranks.append(_runs([layers_of_stage[i] for i in index]))
    return ranks


def _runs(counts: Sequence[int]) -> str:
    """Numbers as a sum, equal neighbours together from three up.

    >>> _runs([1, 1]), _runs([2, 2, 2]), _runs([1, 1, 1, 0])
    ('1+1', '3×2', '3×1+0')
    """
    words = []
    for value, same in itertools.groupby(counts):
        length = len(list(same))
        words += [f"{length}×{value}"] if length > 2 else [str(value)] * length
    return "+".join(words)


def _gib(value: float) -> str:
    """GiB without the unit."""
    return format_bytes(value).removesuffix(" GiB")


def proof_facts(optimality: Optimality, search_time_s: float) -> Facts:
    """How sure the search is that nothing is better."""
    if optimality.enumerated == 1:
        return Facts(title="Proof", pairs=(("answer", "the one layout asked for, its stages split best"),))
    if optimality.status == "proven":
        status = "proven optimal under the cost model"
    else:
        status = f"best found; nothing can be more than {format_percent(optimality.gap)} better"
    pruned = sorted(optimality.pruned.items(), key=lambda item: -item[1])
    dismissed = sum(optimality.pruned.values())
    looked = f"{optimality.enumerated:,} layouts enumerated · {dismissed:,} dismissed"
    effort = f"{looked} · {optimality.solved:,} solved"
    pairs = (
        ("answer", f"{status} (bound {format_seconds(optimality.bound_s)})"),
        ("search", f"{effort} · {format_seconds(search_time_s)}"),
        ("dismissed by", " · ".join(f"{rule} {count:,}" for rule, count in pruned)),
    )
    return Facts(title="Proof", pairs=tuple((name, text) for name, text in pairs if text))


def alternatives_table(plan: Plan) -> Table:
    """The other plans worth considering."""
    rows = [
        (
            str(number),
            plan_words(other),
            format_seconds(other.step_time_s),
            format_percent(other.slower_by, signed=True) + (" (tie)" if other.tied else ""),
            format_bytes(other.peak_memory_bytes),
        )
        for number, other in enumerate(plan.alternatives, start=1)
    ]
    return Table(
        title="Also considered", columns=("", "layout", "step time", "slower by", "peak memory"),
        rows=tuple(rows), align="rlrrr",
        note=_ties_text(plan),
    )  # fmt: skip


def _ties_text(plan: Plan) -> str:
    """What a tie is, and which tied plans are simpler or leave more memory free than the fastest."""
    ties = {number: other for number, other in enumerate(plan.alternatives, start=1) if other.tied}
    if not ties:
        return ""
    text = "tie: the error band cannot tell it from the plan above"
    simplest = min(ties, key=lambda number: (num_axes(ties[number].layout), number))
    emptiest = min(ties, key=lambda number: (ties[number].peak_memory_bytes, number))
    if num_axes(ties[simplest].layout) < num_axes(plan.layout):
        text += f"; {simplest} splits fewer axes"
    if ties[emptiest].peak_memory_bytes < plan.estimate.peak_memory_bytes:
        text += f"; {emptiest} leaves most memory free"
    return text
