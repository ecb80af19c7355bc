"""The full estimate of one layout: time, band, memory, money, energy, what binds, what was assumed."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from costmodel.case import Case, Workload
from costmodel.estimate import PART_NAMES, Estimate, TimeBreakdown, per_billion_tokens, usd, watt_hours
from costmodel.evidence.keys import footing
from costmodel.evidence.table import evidence_for
from costmodel.job import TrainingJob
from costmodel.kernels.precisions import TRAINING
from costmodel.kernels.stand_ins import figures_note, gemm_reference, stand_in
from costmodel.layout import SCHEDULES, LayoutTable, ParallelLayout
from costmodel.memory.fit import out_of_memory_chance
from costmodel.memory.stage import MemoryBreakdown, MemoryPieces, holds_ends, stage_memory
from costmodel.models.kinds import kind_title, mtp_kind
from costmodel.models.sizes import is_unmeasured
from costmodel.models.spec import ModelSpec, layer_order, layer_runs
from costmodel.models.tower import Tower
from costmodel.ops.cuts import ops_of_parts
from costmodel.ops.layer import forward_flop, model_flop_per_step
from costmodel.ops.mixers.attention import linear_dtype
from costmodel.ops.op import OpKind, ShardShape
from costmodel.ops.tower import images_of
from costmodel.pipeline.even_split import even_split
from costmodel.pipeline.stage_costs import AnyStages, StageCosts, StageSplit, recomputed_layers, step_time
from costmodel.stack import stack as stack_named
from costmodel.switches.profile import words_of
from costmodel.training.bands import (
    doubts_of,
    interval,
    memory_spread,
    peak_interval,
    time_deviation,
)
from costmodel.training.breakdown import time_breakdown
from costmodel.training.constants import Constants, default_constants
from costmodel.training.priced import Priced, price_layout
from costmodel.training.raw_times import Features
from costmodel.training.score import part_shares
from costmodel.training.slowdowns import host_s_per_layer
from costmodel.training.stages import stage_costs_of
from topology.base.counts import counted
from topology.base.units import HOUR, format_seconds
from topology.pools.rates import mean_usd_per_gpu_hour, rates_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an estimate is put together from: the layout as it is priced, its stages, and what they sum to."""

    priced: Priced
    costs: AnyStages
    split: StageSplit
    time: TimeBreakdown
    memory: tuple[MemoryBreakdown, ...]


def estimate(
    case: Case,
    layout: ParallelLayout,
    split: StageSplit | None = None,
    *,
    constants: Constants | None = None,
    paid_gpus: int | None = None,
) -> Estimate:
    """Estimate one layout.

    Args:
        case: What they are judged against.
        layout: How the job is split; taken as legal (`planner.rules.check`).
        split: Layers and recomputed layers of every rank; the even split by default.
        constants: Constants of the composition, the shipped ones by default.
        paid_gpus: GPUs that are paid for, by default all of the cluster, whether they work or idle.
    """
    return estimate_and_costs(case, layout, split, constants=constants, paid_gpus=paid_gpus)[0]


def estimate_and_costs(
    case: Case,
    layout: ParallelLayout,
    split: StageSplit | None = None,
    *,
    constants: Constants | None = None,
    paid_gpus: int | None = None,
) -> tuple[Estimate, StageCosts]:
    """The estimate of one layout, and the costs of its stages that it was made from; see `estimate`."""
    model, cluster, job = case.model, case.cluster, case.job
    c = constants or default_constants()
    runs = [run.count for run in layer_runs(model)]
    priced = price_layout(case, layout, constants=c)
    order = layer_order(model)
    costs = stage_costs_of(priced, layout, job, runs, cluster.gpu.memory_bytes, order)
    split = split or even_split(runs, layout, order, job.mtp_layers)
    parts = Parts(
        priced=priced,
        costs=costs,
        split=split,
        time=time_breakdown([priced.features], c, costs, split),
        memory=rank_memory(priced.pieces, layout, costs, split),
    )
    return composed_estimate(case, layout, parts, paid_gpus or max(cluster.num_gpus, layout.num_gpus)), costs


def rank_memory(
    pieces: MemoryPieces, layout: ParallelLayout, costs: AnyStages, split: StageSplit
) -> tuple[MemoryBreakdown, ...]:
    """Peak memory of every pipeline rank."""
    recomputed, code = recomputed_layers(costs, split), SCHEDULES.index(layout.schedule)
    ranks = []
    for rank, layers in enumerate(split.layers_of_stage):
        first, last = holds_ends(code, layout.pp, rank)
        memory = stage_memory(
            pieces,
            layers=layers,
            recomputed=[float(count) for count in recomputed[rank]],
            in_flight=costs.in_flight[rank],
            first=float(first),
            last=float(last),
        )
        ranks.append(memory)
    return tuple(ranks)


def composed_estimate(case: Case, layout: ParallelLayout, parts: Parts, paid_gpus: int) -> Estimate:
    """Put the estimate together from its parts."""
    model, job, gpu, memory, time = case.model, case.job, case.cluster.gpu, parts.memory, parts.time
    seconds = step_time(parts.costs, parts.split)
    rests_on = footing(case, layout)
    evidence = evidence_for(rests_on)
    tabled = stand_in(case.cal, gpu) == gpu.name
    host_share = float(parts.priced.costs.host_share[0])
    doubts = doubts_of(
        rests_on, evidence, untabled_gpu=not tabled, recurrent=is_unmeasured(model), host_share=host_share
    )
    lower_s, upper_s = interval(seconds, time_deviation(doubts, _level_deviation(case, layout)))
    peak, spread = max(stage.total_bytes for stage in memory), memory_spread(doubts)
    memory_lower, memory_upper = peak_interval(peak, spread)
    tokens = job.tokens_per_step
    mfu = _model_flop(model, job) / (seconds * paid_gpus * gpu.peak(TRAINING[job.precision].peak))
    price = mean_usd_per_gpu_hour(case.cluster.spec, paid_gpus)
    dollars = None if price is None else float(usd(seconds, paid_gpus, price))
    energy = float(watt_hours(seconds, layout.num_gpus, gpu.tdp_w))
    return Estimate(
        time=time,
        step_time_s=seconds,
        lower_s=lower_s,
        upper_s=upper_s,
        memory_by_stage=memory,
        peak_memory_bytes=peak,
        memory_lower_bytes=memory_lower,
        memory_upper_bytes=memory_upper,
        out_of_memory_chance=out_of_memory_chance(peak, gpu.memory_bytes, spread),
        evidence=evidence,
        mfu=mfu,
        hfu=mfu * (1 + _recomputed_share(case.workload, layout, parts) / 3),
        tokens_per_s_per_gpu=tokens / seconds / paid_gpus,
        usd_per_step=dollars,
        usd_per_billion_tokens=None if dollars is None else float(per_billion_tokens(dollars, tokens)),
        wh_per_step=energy,
        wh_per_billion_tokens=float(per_billion_tokens(energy, tokens)),
        bound_by=_bound_by(time),
        assumptions=(*_assumptions(case, layout), *_doubted(job, seconds)),
        provenance=_provenance(case, _extrapolated_share(parts.priced.features) if tabled else 0.0),
    )


@functools.lru_cache(maxsize=64)
def _model_flop(model: ModelSpec, job: TrainingJob) -> float:
    """FLOPs of the model per step; estimates of one job share them."""
    return model_flop_per_step(model, job)


def _recomputed_share(work: Workload, layout: ParallelLayout, parts: Parts) -> float:
    """FLOPs repeated over those of a forward pass: whole layers, modules of all, or some products."""
    costs, modules = parts.costs, work.stack.timing.recomputed_modules
    forward, layers, attention, recomputed_share = _forward_flop(work.model, work.job, modules)
    if layout.recompute == "full":
        return float(recomputed_layers(costs, parts.split).sum(axis=0) @ np.array(layers)) / forward
    runs = np.array(costs.runs, dtype=np.float64)
    if layout.recompute == "selective":
        return float(runs @ np.array(recomputed_share)) / forward
    if layout.recompute == "selective-op":
        return float(runs @ np.subtract(layers, attention)) / forward
    return 0.0


@functools.lru_cache(maxsize=64)
def _forward_flop(
    model: ModelSpec, job: TrainingJob, modules: tuple[str, ...]
) -> tuple[float, tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """FLOPs of one sequence: of a forward pass, of a layer of each run, its attention core, its modules."""
    shard, ideal = ShardShape(sequence_length=float(job.sequence_length)), stack_named("ideal")
    profile = replace(ideal, timing=replace(ideal.timing, recomputed_modules=modules))
    ops = ops_of_parts(Workload(model=model, job=job, stack=profile), shard)
    layers = tuple(float(forward_flop(part)) for part in ops)
    attention = tuple(float(forward_flop([op for op in part if op.kind is OpKind.ATTENTION])) for part in ops)
    values = tuple(float(forward_flop([op for op in part if op.repeated])) for part in ops)
    counts = [run.count for run in layer_runs(model)]
    further = job.mtp_layers * (layers[-3] + layers[-1]) if job.mtp_layers else 0.0
    whole = sum(n * flop for n, flop in zip(counts, layers, strict=False)) + layers[-1] + further
    return whole, layers[: len(counts)], attention[: len(counts)], values[: len(counts)]


def _extrapolated_share(features: Features) -> float:
    """Share of the matrix-product time that was read outside the measured shapes."""
    return float(np.mean([part.kernels.extrapolated_share[0] for part in features.runs]))


def _bound_by(time: TimeBreakdown) -> str:
    """The largest part of the step in words, and the largest overhead beside it."""
    parts = {name: getattr(time, name) for name in PART_NAMES}
    largest = max(parts, key=lambda name: parts[name])
    if largest != "compute_s":
        return PART_NAMES[largest]
    overhead = max((name for name in parts if name != "compute_s"), key=lambda name: parts[name])
    return f"compute, then {PART_NAMES[overhead]}"


def _assumptions(case: Case, layout: ParallelLayout) -> tuple[str, ...]:
    """What was taken for granted."""
    lines = [
        f"software stack {case.stack.name}: {case.stack.description}",
        f"switches: {words_of(case.stack, what_matters(case, layout))}",
        (
            "MFU = 3 × forward FLOP with causal attention counted once, "
            f"over the dense {case.job.precision} peak"
        ),
        "energy at the GPUs' design power",
    ]
    if case.job.sequence_length > case.model.max_sequence_length:
        lines.insert(0, beyond_positions(case.model, case.job.sequence_length))
    if case.model.module:
        lines.append("traced in bf16 without a loss: a token is a sample, its kernels were not measured")
        if layout.tp > 1 and case.model.module.whole:
            lines.append(f"tensor ranks multiply whole: {'; '.join(case.model.module.whole)}")
    if case.job.mtp_layers:
        lines.append(_predicted(case.workload))
    if case.model.tower:
        lines.append(_seen(case.model.tower, case.job))
    if case.job.gradient_compression:
        lines.append(
            f"gradients sent as {case.job.gradient_compression}: its statistical effect is not modelled"
        )
    if case.job.local_steps:
        lines.append(
            f"workers run apart ({case.job.local_steps}), their exchange spread over the steps between: "
            "the statistical effect is not modelled"
        )
    if case.model.is_moe:
        lines.append("tokens are routed evenly to experts")
    lines += figures_note(case.cal, case.cluster.gpu)
    if rates_of(case.cluster.spec) is not None:
        lines.append(f"price {case.cluster.spec.price_source}, {case.cluster.spec.price_as_of}")
    return (*lines, *case.cluster.notes)


def what_matters(case: Case, layout: ParallelLayout) -> frozenset[str]:
    """What of a job decides which switches matter (`costmodel.switches.switch.EngineSwitch.of`)."""
    axes = {name for name in ("tp", "cp", "pp") if getattr(layout, name) > 1}
    replicas = {"dp"} if layout.replicas > 1 else set()
    sharded = {"fsdp"} if layout.zero_stage == FULLY_SHARDED else set()
    experts = {"experts"} if case.model.is_moe else set()
    casts = {"casts"} if case.stack.timing.casts_apart and case.job.is_low_precision else set()
    return frozenset(axes | replicas | sharded | experts | casts)


def beyond_positions(model: ModelSpec, sequence_length: int) -> str:
    """What is taken for granted where sequences are longer than those that a release was trained on."""
    return (
        f"sequences of {sequence_length:,} tokens go beyond the {model.max_sequence_length:,} positions that "
        f"{model.name}'s release was trained on: its positions are computed further, not stretched"
    )


FULLY_SHARDED = 3
"""The ZeRO stage at which parameters are sharded too."""
LONGEST_USUAL_STEP_S = HOUR
"""A run sees its loss, its failures and its checkpoints by steps; published ones take seconds to minutes."""


def _doubted(job: TrainingJob, step_s: float) -> tuple[str, ...]:
    """Say that a step is so long that its batch was likely meant otherwise."""
    if step_s <= LONGEST_USUAL_STEP_S:
        return ()
    batch = f"{counted(job.global_batch_size, 'sequence')} of {counted(job.sequence_length, 'token')}"
    total = f"{counted(job.tokens_per_step, 'token')} a step"
    doubted = f"a step of {format_seconds(step_s)} is doubted: {batch} are {total}"
    return (f"{doubted} (4Mtok is a batch in tokens)",)


def _predicted(work: Workload) -> str:
    """What modules that predict further tokens are taken to be."""
    kind = kind_title(work.model, mtp_kind(work.model))
    return (
        f"{counted(work.job.mtp_layers, 'module')} on the last stage ({kind} after a projection, embedding "
        "and head the model's own), never recomputed in full"
    )


def _seen(tower: Tower, job: TrainingJob) -> str:
    """What the tower is taken to see of a sequence."""
    images, patches = images_of(tower, job)
    trained = "" if job.trains_tower else "; the tower is frozen, what joins it is trained"
    return (
        f"{counted(images, tower.given)} of {counted(patches // tower.merge, 'token')} a sequence "
        "(job.images, job.image_tokens), dealt to context ranks; a tensor rank computes the tower whole; "
        f"messages between stages are the decoder's{trained}"
    )


def _steps(count: int) -> str:
    """How many measured steps, in words."""
    return "1 measured step" if count == 1 else f"{count:,} measured steps"


def _level_deviation(case: Case, layout: ParallelLayout) -> float | None:
    """What the user's own runs leave in doubt of the level and of parts of this step, None without any."""
    level = case.stack.measured
    if level is None or not level.covariance:
        return None if level is None else level.deviation
    return level.deviation_of(part_shares(case, LayoutTable.from_rows([layout]))[:, 0].tolist())


def _provenance(case: Case, extrapolated_share: float) -> tuple[str, ...]:
    """Where calibrated numbers came from, and what was extrapolated."""
    dtype = linear_dtype(case.job)
    lines = [
        gemm_reference(case.cal, case.cluster.gpu, dtype).source,
        f"attention and memory rates of {stand_in(case.cal, case.cluster.gpu)}",
        "step constants: costmodel/data/constants.toml",
    ]
    if (anchor := case.stack.measured) is not None:
        steps = f"{_steps(anchor.runs)} of your own ({anchor.name})"
        if not anchor.covariance:
            lines.append(f"times ×{anchor.level:.3f}, the level of {steps}")
        else:
            timing = case.stack.timing
            lines.append(f"×{anchor.factor_of_steps:.3f} on {steps}, common part ×{anchor.level:.3f}")
            taught = anchor.words(host_s_per_layer(timing)) or "nothing that tells parts apart"
            lines.append(f"these steps say: {taught}")
    used = [m for m in case.cal.measurements if m.gpu == case.cluster.gpu.name]
    if used:
        kinds = ", ".join(sorted({m.what for m in used}))
        lines.append(f"{len(used)} measurements of your own ({kinds}), {max(m.when for m in used)}")
    if extrapolated_share > 0:
        share = 100 * extrapolated_share
        lines.append(f"{share:.0f} % of the matrix-product time was read outside the measured shapes")
    return tuple(lines)
