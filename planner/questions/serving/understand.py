"""From the words of `plan serve` to serving requests.

One for each GPU kind and precision that may be used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from costmodel.job import ServingJob
from costmodel.models.catalog import model as find_model
from costmodel.models.catalog import uncompared_note
from costmodel.models.hf.by_keys import is_read_by_keys
from costmodel.models.names import weight_format
from costmodel.models.parameters import parameter_count, without_tower
from costmodel.models.spec import ModelSpec
from costmodel.serving.deployment import KvDtype, Weights, cache_dtype_of, weight_bytes
from costmodel.serving.engine import serving_stack
from costmodel.serving.levels import ServingLevel
from costmodel.serving.simulation.load import Load, mean_rate_per_s, read_trace
from planner.questions.flags import ServeFlags
from planner.questions.serving.adapters import served_adapters
from planner.questions.serving.caches import counted_caches, highest_hit_rate
from planner.questions.serving.compared import (
    compared_modes,
    compared_weights,
    one_of,
    shown_only_of,
    weights_note,
)
from planner.questions.serving.lengths import length_notes, request_lengths
from planner.questions.serving.offers import Renting, in_smaller_machines, nodes_for, offered, renting
from planner.questions.serving.speculation import drafted_pins, speculated, speculation_note
from planner.questions.training import MOST_GPUS
from planner.questions.words import number_of, share_of
from planner.serving.plan import ServingObjective, ServingRequest
from planner.serving.space import LARGEST_REPLICA
from topology.base.counts import parse_count, suffix_note
from topology.base.errors import InputError
from topology.base.units import parse_rate, parse_seconds
from topology.builders import default_cluster
from topology.catalog import cluster as named_cluster
from topology.catalog import gpu_name, price
from topology.catalog import gpus as known_gpus
from topology.fabric.hierarchy import Hierarchy
from topology.hardware.datasheets import default_gpu, die_notes, fleet_gpus, generation_of

FLEET_NODE_GPUS = 64  # hierarchy on which replicas of a fleet without a size are laid out
ROOM = 0.75  # share of all memory that weights may take where a machine is chosen: the rest is for requests
MOST_SPARE = 64  # workers of a pool that may be lost; more is another fleet
PINS = ("tp", "pp", "attention_dp", "ep", "dcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Complete requests with the fabric of each, the trace if there is one.

    And what had to be interpreted. Precisions that are `shown_only` are compared and not proposed, as is an
    eight-bit cache where no format of it was named.
    """

    requests: tuple[tuple[ServingRequest, Hierarchy], ...]
    trace: Load | None
    notes: tuple[str, ...]
    shown_only: frozenset[Weights] = frozenset()
    compares_caches: bool = False


def understand_serving(
    flags: ServeFlags, *, model: ModelSpec | None = None, job: ServingJob | None = None
) -> Asked:
    """Turn flags into requests: one a GPU kind and precision.

    Args:
        flags: What was written.
        model: A model that has no name, in place of the flag.
        job: A job in place of the flags that describe one.
    """
    if model is None and not flags.model:
        raise InputError(
            what="no model was named", cause="--model is missing", fix="add for example --model 70b"
        )
    model = without_tower(model or find_model(flags.model or ""))
    trace = read_trace(flags.trace) if flags.trace is not None else None
    job = job or replace(
        _job(flags, trace, model), **speculated(flags, model), **served_adapters(flags, model)
    )
    objective = one_of(flags.objective or "usd", get_args(ServingObjective), "--objective")
    result = renting(flags)
    fabrics, left_out = offered(result, _fabrics(flags, job), sized=bool(flags.gpus))
    caches = counted_caches(flags, trace)
    if trace is not None and caches:
        trace = replace(trace, router=caches["router"])
        job = replace(job, cached_share=highest_hit_rate(trace))
    requests = [
        (_request(flags, model, job, gpu, weights, objective, result, hierarchy), hierarchy)
        for gpu, hierarchy in fabrics
        for weights in compared_weights(flags, model, hierarchy.gpu)
    ]
    if job.request_rate_per_s is not None and not flags.gpus and "aggregated" in compared_modes(flags):
        requests += [
            (
                replace(
                    _request(flags, model, job, gpu, weights, objective, result, hierarchy),
                    modes=("aggregated",),
                ),
                hierarchy,
            )
            for gpu, hierarchy in in_smaller_machines(result, fabrics)
            for weights in compared_weights(flags, model, hierarchy.gpu)
        ]
    requests = [(replace(request, **caches), hierarchy) for request, hierarchy in requests]
    shown_only = shown_only_of(flags, model) & {request.weights[0] for request, _ in requests}
    compared = (
        f"{' and '.join(sorted(shown_only))}: compared, not proposed, being another checkpoint (--weights)"
    )
    narrow = (compared,) if shown_only else ()
    return Asked(
        requests=tuple(requests),
        trace=trace,
        notes=(*_notes(flags, model, job), *die_notes(gpu for gpu, _ in fabrics), *narrow, *left_out),
        shown_only=shown_only,
        compares_caches=flags.kv_dtype is None and trace is None,
    )


def _request(
    flags: ServeFlags,
    model: ModelSpec,
    job: ServingJob,
    gpu: str,
    weights: Weights,
    objective: ServingObjective,
    result: Renting,
    hierarchy: Hierarchy,
) -> ServingRequest:
    """One request."""
    offer = result.offer(gpu, hierarchy)
    budget = offer or price(gpu)
    dollars = (
        float(number_of(flags.usd_per_gpu_hour, "--usd-per-gpu-hour")) if flags.usd_per_gpu_hour else None
    )
    engine = serving_stack(flags.engine or "vllm").name
    maker = generation_of(known_gpus()[gpu]).maker
    only = None if flags.kv_dtype else cache_dtype_of(serving_stack(engine), model, maker=maker)
    return ServingRequest(
        model=model,
        job=replace(job, weight_precision=weights, kv_dtype=only or job.kv_dtype),
        gpu=gpu,
        num_gpus=_size(flags, model, job, weights, hierarchy),
        engine=engine,
        weights=(weights,),
        modes=compared_modes(flags),
        objective=objective,
        pins=_pins(flags, engine) | drafted_pins(job, engine),
        usd_per_gpu_hour=dollars if dollars is not None else (budget.usd_per_gpu_hour if budget else None),
        level=_level(flags.anchor, engine, gpu) if flags.anchor else None,
        offer=offer,
        offers=result.sizes(gpu) if flags.gpus else (),
        owned=result.owned,
        spare=_spare(flags),
        node_gpus=_node_gpus(flags),
    )


def _pins(flags: ServeFlags, engine: str) -> dict[str, int]:
    """Degrees that were fixed, of those that the engine has."""
    pins, stack = serving_pins(flags.settings), serving_stack(engine)
    if pins.get("tp", 1) > 1 and pins.get("attention_dp", 1) > 1 and not stack.splits_attention_ranks:
        ranks = pins["tp"] * pins["attention_dp"]
        raise InputError(
            what=f"the attention ranks of {engine} are of one GPU each",
            cause=f"--set layout.tp={pins['tp']} beside layout.attention_dp={pins['attention_dp']}",
            fix=f"ask for layout.tp=1 and layout.attention_dp={ranks}, or --engine vllm",
        )
    if pins.get("dcp", 1) > 1 and not stack.decode_context_parallel:
        raise InputError(
            what=f"{engine} holds all tokens of a head on every rank",
            cause=f"--set layout.dcp={pins['dcp']}, decode context parallelism",
            fix="ask for --engine vllm, or leave layout.dcp out",
        )
    return pins


def _spare(flags: ServeFlags) -> int:
    """Workers of a pool that may be lost."""
    if not flags.spare or flags.spare.strip() == "0":
        return 0
    if flags.concurrency:
        raise InputError(
            what="spare workers need a rate",
            cause=f"--spare {flags.spare} beside --concurrency {flags.concurrency}",
            fix="give --rate, or leave out --spare",
        )
    return parse_count(flags.spare, "--spare", largest=MOST_SPARE)


def _level(name: str, engine: str, gpu: str) -> ServingLevel:
    """The level of the user's own server of this engine and GPU kind."""
    from costmodel.accuracy.kept_anchors import kept_anchor

    measured = kept_anchor(name).serving
    serving_level = next((level for level in measured if (level.engine, level.gpu) == (engine, gpu)), None)
    if serving_level is None:
        others = ", ".join(f"{level.engine} on {level.gpu}" for level in measured) or "no server"
        raise InputError(
            what=f"the anchor {name} says nothing about {engine} on {gpu}",
            cause=f"it was fitted on {others}",
            fix=f"plan calibrate --serving BENCH.json --engine {engine} --gpu {gpu} --name {name}",
        )
    return serving_level


def _size(
    flags: ServeFlags, model: ModelSpec, job: ServingJob, weights: Weights, hierarchy: Hierarchy
) -> int | None:
    """GPUs of the fleet: those asked for, or one machine where neither they nor a load were given.

    A model that is larger than a machine takes two, four or eight of them.
    """
    if flags.gpus:
        return parse_count(flags.gpus, "--gpus", largest=MOST_GPUS)
    if not capacity_asked(flags, job):
        return _cluster_size(flags)
    host = hierarchy.gpus_per_host
    gpus = host
    needed = parameter_count(model) * weight_bytes(weights)
    while needed > ROOM * gpus * hierarchy.gpu.memory_bytes and gpus < FLEET_NODE_GPUS:
        gpus *= 2
    return gpus


def capacity_asked(flags: ServeFlags, job: ServingJob) -> bool:
    """Whether neither a load nor GPUs were given, so that the question is what a machine serves."""
    loaded = job.request_rate_per_s is not None or job.concurrency is not None
    return not (loaded or flags.gpus or flags.cluster)


def _cluster_size(flags: ServeFlags) -> int | None:
    """GPUs of a named cluster, which is a fleet of a given size."""
    return named_cluster(flags.cluster).num_gpus if flags.cluster else None


def _node_gpus(flags: ServeFlags) -> tuple[str, ...]:
    """The kinds of all GPUs of a cluster of several kinds that the catalog has, node by node; else none."""
    if not flags.cluster:
        return ()
    nodes = named_cluster(flags.cluster).spec.nodes
    kinds = tuple(node.gpu for node in nodes for _ in range(node.count * node.gpus_per_node))
    return kinds if len(set(kinds)) > 1 and set(kinds) <= known_gpus().keys() else ()


def _fabrics(flags: ServeFlags, job: ServingJob) -> list[tuple[str, Hierarchy]]:
    """The GPU kinds to consider and the fabric of each."""
    if flags.cluster and flags.gpu:
        raise InputError(
            what="two kinds of GPU were named", cause=f"--cluster {flags.cluster} and --gpu {flags.gpu}",
            fix="give --cluster or --gpu",
        )  # fmt: skip
    if flags.cluster:
        cluster = named_cluster(flags.cluster, parse_count(flags.gpus, "--gpus") if flags.gpus else None)
        if cluster.gpu.name not in known_gpus():
            nearest = cluster.gpu.derived_from or default_gpu()
            raise InputError(
                what="fleets of servers are planned of the catalog's GPUs",
                cause=f"{cluster.gpu.name} is described by {flags.cluster}",
                fix=f"ask for the card that is nearest, --gpu {nearest}, or train on it: plan",
            )
        return [(cluster.gpu.name, cluster.hierarchy)]
    asked = parse_count(flags.gpus, "--gpus", largest=MOST_GPUS) if flags.gpus else None
    named = [gpu_name(name) for name in flags.gpu.split(",")] if flags.gpu else []
    alone = flags.gpus or capacity_asked(flags, job)
    kinds = named or ([default_gpu()] if alone else [kind for kind in fleet_gpus() if kind in known_gpus()])
    return [(kind, nodes_for(kind, asked or _laid_out(kind), of=_laid_out(kind))) for kind in kinds]


def _laid_out(kind: str) -> int:
    """GPUs on which replicas of a fleet without a size are laid out: a whole domain where that is larger."""
    return max(FLEET_NODE_GPUS, default_cluster(kind, LARGEST_REPLICA).hierarchy.gpus_per_node)


def _job(flags: ServeFlags, trace: Load | None, model: ModelSpec) -> ServingJob:
    """Read the job; lengths of a trace are its own."""
    given = [
        name
        for name, value in (
            ("--rate", flags.rate),
            ("--concurrency", flags.concurrency),
            ("--trace", flags.trace),
        )
        if value
    ]
    if len(given) > 1:
        raise InputError(what="two loads were given", cause=" and ".join(given), fix=f"give {given[0]} alone")
    lengths = request_lengths(flags, trace, model)
    rate = parse_rate(flags.rate) if flags.rate else (mean_rate_per_s(trace) if trace is not None else None)
    if trace is not None and rate == float("inf"):
        raise InputError(
            what="the trace has no rate",
            cause=f"all arrivals are at one moment (rows: {len(trace)})",
            fix="give a trace of requests that arrive at two times or more",
        )
    if rate is not None and not 0 < rate < float("inf"):
        raise InputError(
            what="no load to serve",
            cause=f"the request rate is {rate:g} per second",
            fix="give --rate a positive rate",
        )
    return ServingJob(
        **lengths,
        request_rate_per_s=rate,
        concurrency=parse_count(flags.concurrency, "--concurrency") if flags.concurrency else None,
        ttft_s=parse_time(flags.ttft, "--ttft"),
        tpot_s=parse_time(flags.tpot, "--tpot"),
        end_to_end_s=parse_time(flags.end_to_end, "--e2e"),
        percentile=_percentile(flags.percentile or "99"),
        kv_dtype=one_of(flags.kv_dtype or "bf16", get_args(KvDtype), "--kv"),
        cached_share=_cached(flags.cached or "0"),
        burstiness=number_of(flags.burstiness or "1", "--burstiness"),
        memory_fraction=share_of(flags.memory_fraction, "--memory-fraction", most=1)
        if flags.memory_fraction
        else None,
    )


def serving_pins(settings: tuple[str, ...]) -> dict[str, int]:
    """Degrees fixed by --set layout.tp=8."""
    pins: dict[str, int] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        field = name.removeprefix("layout.")
        if not equals or field not in PINS:
            raise InputError(
                what=f"--set {setting} is not understood",
                cause=f"serving layouts have the fields {', '.join(PINS)}",
                fix="write for example --set layout.tp=8",
            )
        pins[field] = parse_count(value, f"--set {name}")
    return pins


def parse_time(text: str | None, flag: str) -> float | None:
    """A positive time with its unit, or none: a bare 1000 is seconds to some and milliseconds to others."""
    if text is None:
        return None
    value = parse_seconds(text)
    number = text.strip()
    if not number[-1].isalpha():
        raise InputError(
            what=f"{flag} {number} has no unit",
            cause=f"it could be {number} seconds or {number} milliseconds",
            fix=f"write {flag} {number}ms, or {flag} {number}s",
        )
    if value <= 0:
        raise InputError(
            what=f"{flag} {text} is not possible",
            cause="a limit is a positive time",
            fix=f"give {flag} a time above zero, with its unit",
        )
    return value


def _percentile(text: str) -> float:
    """A percentile in percent; a share of one is one typed by mistake."""
    percentile = share_of(text, "--percentile", most=100)
    if 0 < percentile < 1:
        raise InputError(
            what=f"--percentile {text} is not possible",
            cause="it is counted in percent, and fewer than one of a hundred requests would be held",
            fix=f"give --percentile {100 * percentile:g}",
        )
    return percentile


def _cached(text: str) -> float:
    """Share of prompts that a prefix cache holds: never all, as the last token is computed for its answer."""
    share = share_of(text, "--cached", most=1)
    if share == 1:
        raise InputError(
            what="--cached 1 is not possible",
            cause="an engine computes at least the last token of a prompt, whatever its cache holds",
            fix="give the share of prompt tokens that the cache holds, such as --cached 0.95",
        )
    return share


def _notes(flags: ServeFlags, model: ModelSpec, job: ServingJob) -> tuple[str, ...]:
    """What was assumed."""
    notes = [f"model {flags.model} is {model.name}"] if flags.model != model.name else []
    notes += (
        *suffix_note(flags.input_tokens, job.input_tokens, "--input", "token"),
        *suffix_note(flags.output_tokens, job.output_tokens, "--output", "token"),
        *suffix_note(flags.concurrency, job.concurrency or 0, "--concurrency", "request"),
    )
    notes += (*length_notes(flags, job), *weights_note(flags))
    if kinds := dict.fromkeys(_node_gpus(flags)):
        notes.append(
            f"replicas of one kind take all GPUs ({', '.join(kinds)}) for the least of them; "
            "a pipeline over all has its own layers for each"
        )
    uncompared = uncompared_note(model)
    if model.weight_format and flags.weights is None:
        read = "model card" if uncompared else "config.json"
        by = "name" if weight_format(flags.model or "") else read
        notes.append(f"weights are {model.weight_format}, as the checkpoint's {by} says (--weights)")
    if capacity_asked(flags, job):
        whole = "a machine, or as many as hold the model,"
        notes.append(f"no load and no GPUs were given: what {whole} serves (--rate, --gpus)")
    elif flags.gpus is None and flags.gpu is None and flags.cluster is None:
        notes.append(f"GPU kinds compared: {', '.join(fleet_gpus())} (--gpu names others)")
    if uncompared:
        notes.append(uncompared)
    if is_read_by_keys(model):
        notes.append(f"config.json: {'; '.join(model.unmodelled)}")
    if model.left_out:
        notes.append(f"the language model of {model.name} alone is served, without {model.left_out}")
    return (*notes, *speculation_note(flags, model))
