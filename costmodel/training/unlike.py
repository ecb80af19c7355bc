"""Layouts whose pipeline stages run on unlike GPUs: costs by kind of node, and the estimate of one of them.

A stage computes, sums gradients and gathers parameters on the nodes of its own kind. What crosses stages
(hidden states, gradients of tied embeddings) goes at the pace of the cluster of all kinds, whose links are
the slowest of each; stragglers are counted over as many nodes as its smallest would make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel.case import Case, Workload
from costmodel.estimate import Estimate, per_billion_tokens, usd
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.memory.stage import MemoryBreakdown, memory_pieces
from costmodel.models.spec import layer_order, layer_runs
from costmodel.ops.cuts import cuts_of
from costmodel.pipeline.stage_costs import StageSplit, UnlikeStages
from costmodel.training.breakdown import time_breakdown
from costmodel.training.constants import Constants, default_constants
from costmodel.training.estimate import Parts, composed_estimate, rank_memory
from costmodel.training.priced import BLOCK_ROWS, Priced, row_slices
from costmodel.training.raw_times import Features, features_of
from costmodel.training.stages import stage_costs_of
from costmodel.training.step_time import CostColumns, compose
from topology.cluster import Cluster
from topology.pools.kinds import kinds_of
from topology.pools.rates import mean_usd_per_gpu_hour


def price_unlike(
    case: Case, each: Sequence[Cluster], table: LayoutTable, *, constants: Constants | None = None
) -> tuple[Priced, ...]:
    """Time and memory of layouts on each kind of node, as a stage of that kind would have them.

    Args:
        case: What they are judged against, on the cluster of all kinds.
        each: The cluster that the nodes of each kind make.
        table: The layouts.
        constants: Constants of the composition, the shipped ones by default.
    """
    c, cuts = constants or default_constants(), cuts_of(case.workload, table)
    shared = features_of(case, table, cuts=cuts)
    pieces = memory_pieces(case.workload, table, cuts=cuts)
    unlike = []
    for cluster in each:
        features = _joined(features_of(replace(case, cluster=cluster), table, cuts=cuts), shared)
        costs = CostColumns.concat(
            [compose(features.take(rows), c) for rows in row_slices(len(table), BLOCK_ROWS)]
        )
        unlike.append(Priced(table=table, features=features, costs=costs, pieces=pieces))
    return tuple(unlike)


def _joined(features: Features, shared: Features) -> Features:
    """Raw times of one kind, with what crosses stages as it is between all kinds."""
    return replace(
        features,
        send_s=shared.send_s,
        send_s_per_byte=shared.send_s_per_byte,
        traffic=replace(features.traffic, tied_s=shared.traffic.tied_s),
        layout_numbers=replace(features.layout_numbers, nodes=shared.layout_numbers.nodes),
    )


def unlike_costs(
    work: Workload,
    priced: Sequence[Priced],
    layout: ParallelLayout,
    capacities_bytes: Sequence[float],
    kind_of_stage: tuple[int, ...],
) -> UnlikeStages:
    """Costs of the only layout that was priced, whose stages run on these kinds of these capacities."""
    runs, order = [run.count for run in layer_runs(work.model)], layer_order(work.model)
    each = zip(priced, capacities_bytes, strict=True)
    costs = tuple(
        stage_costs_of(priced, layout, work.job, runs, capacity, order) for priced, capacity in each
    )
    return UnlikeStages(kinds=costs, kind_of_stage=kind_of_stage)


def estimate_unlike(
    case: Case,
    layout: ParallelLayout,
    each: tuple[Cluster, ...],
    split: StageSplit,
    kind_of_stage: tuple[int, ...],
    *,
    paid_gpus: int | None = None,
) -> tuple[Estimate, UnlikeStages]:
    """The estimate of a layout whose stages run on unlike kinds of node, and the costs of its stages.

    Args:
        case: what it is judged against, on the cluster of all kinds.
        layout: how the job is split.
        each: the cluster that the nodes of each kind make.
        split: layers and recomputed layers of every rank.
        kind_of_stage: kind of every stage, by its place in `each`.
        paid_gpus: GPUs that are paid for, by default all.
    """
    c, gpus = default_constants(), paid_gpus or case.cluster.num_gpus
    table = LayoutTable.from_rows([layout])
    priced = price_unlike(case, each, table, constants=c)
    capacities = [cluster.gpu.memory_bytes for cluster in each]
    costs = unlike_costs(case.workload, priced, layout, capacities, kind_of_stage)
    time = time_breakdown([item.features for item in priced], c, costs, split)
    memory = rank_memory(priced[0].pieces, layout, costs, split)
    used, answers = sorted(set(kind_of_stage)), []
    for kind in used:
        of_kind = tuple(
            breakdown for breakdown, its in zip(memory, kind_of_stage, strict=True) if its == kind
        )
        parts = Parts(priced=priced[kind], costs=costs, split=split, time=time, memory=of_kind)
        answers.append(composed_estimate(replace(case, cluster=each[kind]), layout, parts, gpus))
    stages = [kind_of_stage.count(kind) / layout.pp for kind in used]
    working = [kind_of_stage.count(kind) * layout.stage_ranks for kind in range(len(each))]
    nodes = (kinds_of(cluster.spec)[0].gpus_per_node for cluster in each)
    of_kinds = tuple(-(-gpus // size) * size for gpus, size in zip(working, nodes, strict=True))
    rented = gpus == sum(of_kinds)  # of whole nodes; where these are all there are it is the same
    paid = of_kinds if rented else tuple(cluster.num_gpus for cluster in each)
    estimate = _together(answers, memory, stages, [paid[kind] / sum(paid) for kind in used])
    price = mean_usd_per_gpu_hour(case.cluster.spec, gpus, of_kinds if rented else None)
    dollars = None if price is None else float(usd(estimate.step_time_s, gpus, price))
    per_tokens = None if dollars is None else float(per_billion_tokens(dollars, case.job.tokens_per_step))
    return replace(estimate, usd_per_step=dollars, usd_per_billion_tokens=per_tokens), costs


def _together(
    answers: Sequence[Estimate],
    memory: tuple[MemoryBreakdown, ...],
    stages: Sequence[float],
    paid: Sequence[float],
) -> Estimate:
    """One estimate of those by kind: the widest band, the fullest stage, peaks and power of all GPUs.

    Args:
        answers: per kind, the step as if all GPUs were of that kind, with the memory of its stages.
        memory: of every stage.
        stages: share of the stages on each kind.
        paid: share of the GPUs that are paid for of each kind.
    """
    widest = max(answers, key=lambda estimate: estimate.upper_s)
    fullest = max(answers, key=lambda estimate: estimate.peak_memory_bytes)
    mfu = 1 / sum(share / estimate.mfu for share, estimate in zip(paid, answers, strict=True))
    return replace(
        widest,
        memory_by_stage=memory,
        peak_memory_bytes=fullest.peak_memory_bytes,
        memory_lower_bytes=fullest.memory_lower_bytes,
        memory_upper_bytes=fullest.memory_upper_bytes,
        out_of_memory_chance=max(estimate.out_of_memory_chance for estimate in answers),
        mfu=mfu,
        hfu=mfu * answers[0].hfu / answers[0].mfu,
        wh_per_step=sum(
            share * estimate.wh_per_step for share, estimate in zip(stages, answers, strict=True)
        ),
        wh_per_billion_tokens=sum(
            share * estimate.wh_per_billion_tokens for share, estimate in zip(stages, answers, strict=True)
        ),
        assumptions=tuple(dict.fromkeys(text for estimate in answers for text in estimate.assumptions)),
        provenance=tuple(dict.fromkeys(text for estimate in answers for text in estimate.provenance)),
    )
