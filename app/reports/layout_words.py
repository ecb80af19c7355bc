"""A layout in words: its degrees, where each axis lives, its pipeline, its sharding, its layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby, islice

from app.reports.answer import Facts
from app.reports.plan_headline import cluster_of
from costmodel.layout import LayoutTable, ParallelLayout, layout_words, num_microbatches
from costmodel.parallel.axes import AXES, STAGE_AXES
from costmodel.pipeline.schedules import RECORDS
from planner.campaign.rental import paid_gpus_of
from planner.plan import RENTS_WHAT_IT_USES, Alternative, Plan, PlanRequest
from topology.base.units import format_seconds
from topology.discover.places import MOST_NAMED
from topology.fabric.degraded import host_names, left_out_words
from topology.fabric.seats import idle_nodes
from topology.pools.kinds import kinds_of, nodes_in_words, nodes_left_out, stages_on

UNLIKE = "stages run on unlike kinds of node, each with links and memory of its own"
"""Why a picture of one kind of GPU is not drawn."""


def layout_lines(plan: Plan) -> Facts:
    """How the job is split, and where each axis lives."""
    request, layout, idle_gpus = plan.request, plan.layout, plan.idle_gpus
    pairs = [
        ("degrees", degrees_text(layout)),
        ("placement", _unlike_text(plan) or placement_text(request, layout)),
        ("pipeline", pipeline_text(request, layout)),
        ("sharding", f"{sharding_text(layout)}; {recompute_text(plan)}"),
    ]
    if idle_gpus and request.objective in RENTS_WHAT_IT_USES:
        pairs.append(("not needed", not_needed_text(plan)))
    elif idle_gpus:
        reason = "using fewer is faster or is all that divides"
        pairs.append(("idle", f"{idle_gpus:,} GPUs: {reason}; money, MFU and tokens/s/GPU count them"))
    if plan.pool is not None:
        pairs.append(("pool", pool_text(plan)))
    if idle := idle_text(plan):
        pairs.append(("idle nodes", idle))
    pairs.extend(("left out", words) for words in left_out_words(request.cluster))
    return Facts(title="Layout", pairs=tuple(pairs))


def not_needed_text(plan: Plan) -> str:
    """GPUs that the plan does without: those of nodes that need not be rented, and idle ones."""
    paid = paid_gpus_of(plan.request, plan.layout, plan.kind_of_stage) or plan.request.cluster.num_gpus
    free, idle = plan.request.cluster.num_gpus - paid, paid - plan.layout.num_gpus
    result = [f"{free:,} GPUs, not counted in any figure"] if free else []
    if idle:
        result.append(f"{idle:,} of rented nodes: money, MFU and tokens/s/GPU count them")
    return "; ".join(result)


def idle_text(plan: Plan) -> str:
    """The nodes of the cluster, and of the pool it is a part of, that the plan does without."""
    names: list[str] = []
    used = plan.request.cluster.hosts
    if plan.pool is not None and used and plan.pool.offered.hosts:
        names += [host for host in plan.pool.offered.hosts if host not in set(used)]
    elif plan.pool is not None:
        kinds, places = (
            nodes_left_out(plan.pool.offered, plan.request.cluster),
            iter(host_names(plan.pool.offered)),
        )
        for node in plan.pool.offered.nodes:
            hosts = list(islice(places, node.count))
            names += hosts if node in kinds else []
    if plan.pool is None or plan.request.cluster.hosts:  # else numbers are those of a part of the pool
        names += idle_nodes(plan.mesh, plan.request.cluster)
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _unlike_text(plan: Plan) -> str:
    """Where the stages run, if not all on the same kind of node; empty else."""
    return ", ".join(stages_on(plan.request.cluster, plan.kind_of_stage))


def other_nodes(plan: Plan, other: Alternative) -> str:
    """On which nodes of a pool an alternative runs; empty where all plans have the same."""
    if plan.pool is None:
        return ""
    kinds = [kind for place, kind in enumerate(kinds_of(plan.pool.offered)) if place in other.kinds]
    used = tuple(kinds) or kinds_of(plan.request.cluster)
    if not other.kind_of_stage:
        return f"all on {nodes_in_words(used)}" + (", as the slowest" if len(used) > 1 else "")
    stages = Counter(used[kind].gpu for kind in other.kind_of_stage)
    return " + ".join(f"{count} stage{'s' if count > 1 else ''} on {gpu}" for gpu, count in stages.items())


def pool_text(plan: Plan) -> str:
    """Which nodes of a pool are left idle, and the step of every other choice of kinds, GPUs all alike."""
    pool = plan.pool
    if pool is None:
        return ""
    idle = nodes_left_out(pool.offered, plan.request.cluster)
    used = "each as what it is" if plan.kind_of_stage else "as the slowest and smallest"
    words = f"{nodes_in_words(idle)} left idle" if idle else f"every kind of node is used, {used}"
    others = ", ".join(
        f"{part.nodes} {format_seconds(part.step_time_s) if part.step_time_s else 'no plan'}"
        for part in pool.others
    )
    return f"{words}; a step on others: {others}"


def degrees_text(layout: ParallelLayout) -> str:
    """The degrees that are more than one.

    >>> degrees_text(ParallelLayout(tp=4, pp=2, dp=4, sequence_parallel=True))
    'tp 4 (sequence parallel) · pp 2 · dp 4'
    """
    parts = []
    for name, axis in AXES.items():
        degree = getattr(layout, name)
        if degree > 1:
            parts.append(f"{axis.words} {degree}{_detail(layout, name)}")
    return " · ".join(parts) or "one GPU"


def plan_words(plan: Plan | Alternative) -> str:
    """The layout of a plan in one short line, with how many layers it recomputes."""
    return layout_words(plan.layout, recompute_text(plan))


def recompute_text(plan: Plan | Alternative) -> str:
    """What is recomputed: a policy by name, whole layers by their number."""
    recomputed, layers = sum(plan.recompute_of_stage), sum(plan.layers_of_stage)
    if plan.layout.recompute != "full":
        return f"recompute {plan.layout.recompute}"
    return "recompute all layers" if recomputed == layers else f"recompute {recomputed} of {layers} layers"


def _detail(layout: ParallelLayout, axis: str) -> str:
    """What else is to know about an axis."""
    if axis == "tp" and layout.sequence_parallel:
        return " (sequence parallel)"
    return f" ({layout.cp_kind})" if axis == "cp" else ""


def placement_text(request: PlanRequest, layout: ParallelLayout) -> str:
    """Which axes stay inside a scale-up domain, fastest axis first, then where experts are exchanged."""
    from costmodel.training.rank_strides import axis_strides
    from topology.fabric.hierarchy import nodes_spanned

    hierarchy = cluster_of(request).hierarchy
    stride, words = 1, []
    for axis in reversed(layout.axis_order):
        degree = getattr(layout, axis)
        if degree > 1:
            spanned = int(nodes_spanned(hierarchy, degree, stride))
            words.append(f"{axis} inside a node" if spanned == 1 else f"{axis} across {spanned} nodes")
        stride *= degree
    strides = axis_strides(LayoutTable.from_rows([layout]))
    for axis in STAGE_AXES:
        degree = getattr(layout, axis)
        if degree > 1 and AXES[axis].leads_part:
            spanned = int(nodes_spanned(hierarchy, degree, int(strides[AXES[axis].group][0])))
            words.append(f"{axis} inside a node" if spanned == 1 else f"{axis} across {spanned} nodes")
    return " · ".join(words) or "nothing to place"


def pipeline_text(request: PlanRequest, layout: ParallelLayout) -> str:
    """Microbatches, and the schedule that runs them."""
    count = num_microbatches(layout, request.job)
    batches = f"{count} microbatch{'es' if count > 1 else ''} of {layout.microbatch_size}"
    if layout.pp == 1:
        return f"none; {batches}{' accumulate' if count > 1 else ''}"
    chunks = f" × {layout.virtual_stages} virtual stages" if layout.virtual_stages > 1 else ""
    return f"{layout.schedule} over {layout.pp} stages{chunks}; {batches}"


def sharding_text(layout: ParallelLayout) -> str:
    """ZeRO stage, and over how many of the replicas.

    >>> sharding_text(ParallelLayout(dp=8, zero_stage=3, shard_degree=4)), sharding_text(ParallelLayout(tp=8))
    ('ZeRO-3 over 4 of 8 replicas', 'one replica')
    """
    degree, replicas = layout.effective_shard_degree, layout.replicas
    if replicas == 1 and (layout.expert_shards == 1 or layout.expert_dp == 1):
        return "one replica"
    if not layout.zero_stage or degree == 1:
        return "replicated state"
    shown = f"{degree}" if degree == replicas else f"{degree} of {replicas}"
    return f"ZeRO-{layout.zero_stage} over {shown} replicas"


def layer_words(layers_of_stage: tuple[int, ...], layout: ParallelLayout) -> list[str]:
    """Layers of every pipeline rank; with virtual stages, the layers of each of its chunks.

    >>> layer_words((3, 3, 2, 2), ParallelLayout(pp=2, virtual_stages=2, schedule="interleaved"))
    ['3+2', '3+2']
    """
    pp, chunks = layout.pp, len(layers_of_stage) // max(1, layout.pp)
    v_shaped = RECORDS[layout.schedule].v_shaped
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
    for value, same in groupby(counts):
        length = len(list(same))
        words += [f"{length}×{value}"] if length > 2 else [str(value)] * length
    return "+".join(words)
