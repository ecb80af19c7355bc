"""Which ways of splitting a replica are considered.

Every legal combination of tp, pp, attention data parallel and ep, also with decode context parallelism.

Tensor parallelism stays inside a scale-up domain unless it is pinned wider; attention data parallelism and
expert parallelism go together and only for mixtures of experts, where whole attention on every rank pays
(latent attention above all).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.parallel.divisions import EXPERTS, HEADS
from costmodel.serving.deployment import Deployment, ServingLayout, Weights
from costmodel.serving.engine import scheduler_default, serving_stack
from costmodel.serving.held import most_requests
from costmodel.serving.levels import at_levels
from costmodel.serving.partition import roomiest_layers
from planner.serving.plan import ServingRequest
from topology.catalog import gpus
from topology.fabric.hierarchy import Hierarchy

PIPELINES = (1, 2, 3, 4, 6, 8)
LARGEST_REPLICA = 72  # GPUs; wider single replicas than any published deployment of the engines
_WHOLE_CUTS = ("attention-heads", "recurrence-heads", "output-groups")
"""Laws of cuts that servers keep; heads of keys and values they hold several times."""
MOST_COPIES = 0.25  # of the experts that are held twice so that a whole domain has as many on every GPU


def serving_layouts(
    model: ModelSpec,
    *,
    most_gpus: int,
    domain_gpus: int,
    host_gpus: int,
    pins: Mapping[str, int] | None = None,
    shares_cache: bool = False,
    copies_experts: bool = False,
    splits_ranks: bool = True,
) -> tuple[ServingLayout, ...]:
    """Layouts of one replica that engines can start.

    Args:
        model: what is served.
        most_gpus: most GPUs of the replica.
        domain_gpus: GPUs that share a scale-up domain.
        host_gpus: GPUs of one host.
        pins: degrees by name that are not chosen.
        shares_cache: whether the engine has decode context parallelism.
        copies_experts: whether it holds some experts twice.
        splits_ranks: whether attention ranks may be of several GPUs.

    >>> from costmodel.models.catalog import model
    >>> [layout.label for layout in serving_layouts(model("8b"), most_gpus=4, domain_gpus=8, host_gpus=8)]
    ['tp1', 'pp2', 'pp3', 'pp4', 'tp2', 'tp2·pp2', 'tp4']
    """
    limit = min(most_gpus, LARGEST_REPLICA)
    widest = max(domain_gpus, (pins or {}).get("tp", 1))
    layouts = [
        ServingLayout(tp=tp, pp=pp, ep=ep)
        for tp in _tensor_degrees(model, min(limit, widest))
        for pp in PIPELINES
        if tp * pp <= limit and pp <= model.num_layers
        for ep in _expert_degrees(model, tp)
    ]
    if model.is_moe:
        layouts += [
            ServingLayout(tp=tp, attention_dp=ranks // tp, ep=ranks)
            for tp in ((1, 2) if splits_ranks else (1,))
            for ranks in _expert_ranks(model, limit, domain_gpus, copied=copies_experts)
            if tp <= domain_gpus and ranks % tp == 0 and ranks > tp
        ]
    pinned = pins or {}
    if shares_cache:
        layouts += [
            replace(layout, dcp=dcp)
            for layout in layouts
            for dcp in _cache_degrees(model, layout, pinned.get("dcp"))
        ]
    return tuple(
        layout
        for layout in layouts
        if _tiles_hosts(layout, host_gpus)
        and all(getattr(layout, name) == degree for name, degree in pinned.items())
    )


def layouts_of(
    request: ServingRequest, hierarchy: Hierarchy, pins: Mapping[str, int] | None = None
) -> tuple[ServingLayout, ...]:
    """The layouts of one replica that are searched for a request, under its pins unless others are given."""
    engine = serving_stack(request.engine)
    pinned = request.pins if pins is None else pins
    return serving_layouts(
        request.model,
        most_gpus=min(request.num_gpus or hierarchy.num_gpus, hierarchy.num_gpus),
        domain_gpus=hierarchy.gpus_per_node,
        host_gpus=hierarchy.gpus_per_host,
        pins=pinned,
        shares_cache=engine.decode_context_parallel,
        copies_experts=engine.expert_copies,
        splits_ranks=engine.splits_attention_ranks,
    ) + tuple(
        layout
        for layout in _over_kinds(request, hierarchy)
        if all(getattr(layout, name) == degree for name, degree in (pinned or {}).items())
    )


def _over_kinds(request: ServingRequest, hierarchy: Hierarchy) -> Iterator[ServingLayout]:
    """One pipeline over all GPUs of a cluster of several kinds, its stages in the order of the nodes.

    With the layers that hold most tokens, and with layers in proportion to what the GPUs read a second.
    """
    kinds, model = request.node_gpus, request.model
    if request.engine not in STAGED or not kinds:
        return
    runs = [len(list(run)) for _, run in groupby(kinds)]
    for tp in _tensor_degrees(model, min(runs)):
        stages = kinds[::tp]
        if any(run % tp for run in runs) or not 1 < len(stages) <= min(max(PIPELINES), model.num_layers):
            continue
        layout = ServingLayout(tp=tp, pp=len(stages), gpus=stages)
        rates = [gpus()[kind].memory_bandwidth_bytes_per_s for kind in stages]
        deployment = deployment_of(request, hierarchy, request.weights[0], layout)
        step = scheduler_default(deployment.stack, hierarchy.gpu).token_budget
        roomy = roomiest_layers(deployment, token_budget=step, max_batch=most_requests(deployment))
        fast = _in_proportion(rates, model.num_layers)
        yield from (replace(layout, layers=layers) for layers in _between(roomy, fast))


def _between(roomy: tuple[int, ...], fast: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Both splits of the layers; of two stages all between them, too, and the next on either side.

    >>> _between((15, 33), (17, 31))
    ((14, 34), (15, 33), (16, 32), (17, 31), (18, 30))
    """
    if len(fast) != STAGES_SPLIT_ANYHOW or not roomy:
        return tuple(layers for layers in dict.fromkeys((roomy, fast)) if layers)
    total, ends = sum(fast), sorted((roomy[0], fast[0]))
    return tuple(
        (layers, total - layers) for layers in range(max(ends[0] - 1, 1), min(ends[1] + 1, total - 1) + 1)
    )


STAGES_SPLIT_ANYHOW = 2
STAGED = {"vllm": "VLLM_PP_LAYER_PARTITION", "sglang": "SGLANG_PP_LAYER_PARTITION"}
"""Variables with the layers of every pipeline stage, in commas, of the engines that have one."""


def partition_words(engine: str, layers: tuple[int, ...]) -> str:
    """The variable that gives stages these layers.

    >>> partition_words("vllm", (16, 32))
    'VLLM_PP_LAYER_PARTITION=16,32'
    """
    return f"{STAGED[engine]}={','.join(map(str, layers))}"


def _in_proportion(shares: Sequence[float], total: int) -> tuple[int, ...]:
    """Whole numbers that sum to all, in proportion to shares, at least one each.

    >>> _in_proportion([1.0, 2.0], 48), _in_proportion([1.0, 100.0], 10)
    ((16, 32), (1, 9))
    """
    ends = [round(total * sum(shares[: at + 1]) / sum(shares)) for at in range(len(shares))]
    ends = [max(end, at + 1) for at, end in enumerate(ends)]
    ends = [min(end, total - (len(shares) - 1 - at)) for at, end in enumerate(ends)]
    return tuple(end - start for start, end in zip((0, *ends), ends, strict=False))


def _expert_ranks(model: ModelSpec, limit: int, domain_gpus: int, *, copied: bool) -> tuple[int, ...]:
    """Ranks that may share the experts: powers of two that divide them, and a whole domain with some copied.

    An NVL72 is no power of two: its 72 GPUs hold 256 experts and 32 of them twice.
    """
    even = tuple(n for n in _powers(limit) if EXPERTS.rest(model.num_experts, n) == 0)
    copies = -model.num_experts % domain_gpus
    whole = copied and domain_gpus <= limit and copies <= MOST_COPIES * model.num_experts
    return even if not whole or domain_gpus in even else (*even, domain_gpus)


def _cache_degrees(model: ModelSpec, layout: ServingLayout, pinned: int | None) -> tuple[int, ...]:
    """Ranks that may share the tokens of one cache: all that hold the same heads, or as many as are pinned.

    tp of latent attention, tp/g of grouped heads where that divides the queries of each (vLLM 0.33,
    `ModelConfig.verify_with_parallel_config`). Unless pinned, of one stage without attention ranks; not for
    windows, whose layers hold few tokens, nor for states and chosen keys, which no engine splits so.
    """
    same = layout.tp // model.attention.cached_groups
    queries = model.num_attention_heads // model.attention.cached_groups
    windowed = any(run.kind.sliding_share for run in layer_runs(model))
    chosen = model.index_topk or model.compression is not None or model.recurrence is not None
    if pinned is not None:
        degrees: tuple[int, ...] = (pinned,)
    else:
        degrees = (same,) if layout.pp == layout.attention_dp == 1 else ()
    return tuple(
        n for n in degrees if 1 < n <= same and layout.tp % n == queries % n == 0 and not (windowed or chosen)
    )


def _tiles_hosts(layout: ServingLayout, host_gpus: int) -> bool:
    """Whether every host holds as many ranks: whole stages, or an equal part of one.

    Engines start the same number of ranks on each node, so a stage must not straddle two by a part.
    """
    hosts = -(-layout.num_gpus // host_gpus)
    whole = layout.pp % hosts == 0 or hosts % layout.pp == 0
    return layout.num_gpus % hosts == 0 and whole


def _powers(limit: int) -> tuple[int, ...]:
    """Powers of two up to the limit."""
    return tuple(2**i for i in range(limit.bit_length()) if 2**i <= limit)


def _tensor_degrees(model: ModelSpec, limit: int) -> tuple[int, ...]:
    """Tensor-parallel degrees that divide heads of queries, those of a recurrence, and groups of outputs.

    An only group of a recurrence is copied to ranks that divide its heads.
    """

    def divides(tp: int) -> bool:
        recurrence = model.recurrence and model.recurrence.on_ranks(tp)
        ranked = replace(model, recurrence=recurrence) if recurrence else model
        sizes = [cut.size for cut in ranked.cuts if cut.axis == "tp" and cut.law in _WHOLE_CUTS]
        sizes += [recurrence.value_heads] if recurrence else []
        return not any(HEADS.rest(size, tp) for size in sizes)

    return tuple(tp for tp in _powers(limit) if divides(tp))


def _expert_degrees(model: ModelSpec, tp: int) -> tuple[int, ...]:
    """Expert-parallel degrees inside a tensor-parallel group: experts split by tp, or dealt to ranks."""
    if not model.is_moe or tp == 1:
        return (1,)
    whole = EXPERTS.rest(model.num_experts, tp) == 0
    split = HEADS.rest(model.moe_intermediate_size, tp) == 0
    return tuple(ep for ep, possible in ((1, split), (tp, whole)) if possible) or (1,)


def deployment_of(
    request: ServingRequest, hierarchy: Hierarchy, weights: Weights, layout: ServingLayout
) -> Deployment:
    """The deployment of a request in one layout."""
    job, stack, level = request.job, serving_stack(request.engine), request.level
    if job.memory_fraction is not None:
        stack = replace(stack, memory_fraction=job.memory_fraction)
    return Deployment(
        model=request.model,
        hierarchy=hierarchy,
        layout=layout,
        stack=at_levels(stack, host=level.host, kernel=level.kernel) if level else stack,
        weights=weights,
        kv_dtype=job.kv_dtype,
        cached_share=job.cached_share,
        draft_tokens=job.draft_tokens,
        acceptance=job.acceptance,
        drafter=job.drafter,
        adapter=job.adapter,
        adapters=job.adapters,
        host_cache_bytes=request.host_cache_bytes,
    )
