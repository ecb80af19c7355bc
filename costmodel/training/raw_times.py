"""Everything about a set of layouts that the composition needs and that no fitted constant changes.

Costs are evaluated once per distinct cut of a layer, once per distinct placement of such a cut, and once per
distinct way of replicating it, then gathered; that is how half a million layouts a second are possible, and
why a fit can evaluate the whole set of measured runs in milliseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.collectives import collective_time
from costmodel.kernels.compute import gemm_time
from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable, num_microbatches
from costmodel.models.spec import layer_runs
from costmodel.ops.compressed import spared_parameters
from costmodel.ops.cuts import Cuts, cuts_of
from costmodel.ops.feed_forward import copies_sent
from costmodel.ops.op import HALF_BYTES, LINEAR, Op, OpKind
from costmodel.ops.shards import distinct_rows
from costmodel.ops.updates import update_products
from costmodel.parallel.axes import AXES, LAYER_AXES
from costmodel.pipeline.in_flight import copied_parameters
from costmodel.pipeline.pairing import paired_share
from costmodel.stack import SoftwareStack
from costmodel.training.data_parallel import GradientTraffic, Replication, gradient_traffic, least_traffic
from costmodel.training.op_times import KernelTimes, TransferTimes, kernel_times, transfer_times
from costmodel.training.rank_strides import axis_strides
from costmodel.training.slowdowns import Environment, from_host_seconds, job_environment
from costmodel.updates.optimizers import Optimizer, optimizer
from topology.base.arrays import Index, Vector
from topology.base.columns import Columns, Rows
from topology.fabric.hierarchy import Hierarchy, crosses_node
from topology.hardware.gpu import Gpu

OUTER_PARTS = 2  # parts after all others: the embedding and the head, whose matrices are updated as vectors
PROBE_BYTES = (2.0**20, 2.0**26)  # two pipeline messages between which the cost of a send is taken as linear
SOCKET_GPUS = 4
"""GPUs that hang on one CPU socket of a host with two sockets and eight GPUs.

Source: topology of the DGX A100 and DGX H100 (NVIDIA's user guides); hosts with four GPUs or fewer are taken
as one socket's, whatever their scale-up domain.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes(Columns):
    """A run of identical layers, the embedding, or the head: kernels and transfers by placed cut."""

    kernels: KernelTimes
    transfers: TransferTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Features(Columns):
    """Raw times of a set of layouts of one job.

    Attributes:
        environment: Properties of the stack, the GPU and the model that scale times.
        runs: One per run of identical layers; fields have one entry per placed cut.
        mtp: A module that predicts a further token, without its product with the head; None without any.
        mtp_layers: How many of them the head's rank holds.
        embedding: The token embedding.
        head: The final norm, the output projection and the loss.
        hidden_elements: Per placed cut: elements of a microbatch's hidden states on a rank.
        single: Per placed cut: 1 where a step has one microbatch, so that nothing is accumulated.
        paired: Per placed cut: share of passes that run beside that of another microbatch.
        tp: Per placed cut: tensor-parallel degree.
        tp_inside: Per placed cut: 1 where tensor-parallel groups stay inside a scale-up domain.
        over_sockets: Per placed cut: 1 where tensor-parallel groups sit on both CPU sockets of a host.
        placed_shard: For every layout, the row of its placed shard.
        traffic: Data-parallel traffic by replication, shape (parts, replications): of the runs, of a module
            if there is one, of the embedding, of the head.
        send_s: Per replication: latency of a pipeline send.
        send_s_per_byte: Per replication: what each further byte adds.
        replication: For every layout, its entry in `traffic`.
        layout_numbers: Columns of the layouts that the composition reads.
    """

    environment: Environment
    runs: tuple[PartTimes, ...]
    mtp: PartTimes | None
    mtp_layers: Any
    embedding: PartTimes
    head: PartTimes
    hidden_elements: Vector
    single: Vector
    paired: Vector
    tp: Vector
    tp_inside: Vector
    over_sockets: Vector
    placed_shard: Index
    traffic: GradientTraffic
    send_s: Vector
    send_s_per_byte: Vector
    replication: Index
    layout_numbers: LayoutNumbers

    def __len__(self) -> int:
        """Count the layouts."""
        return len(self.placed_shard)

    def take(self, rows: Rows) -> Features:
        """Raw times of some layouts; what cuts and replications share stays."""
        return replace(
            self,
            placed_shard=self.placed_shard[rows],
            replication=self.replication[rows],
            layout_numbers=self.layout_numbers.take(rows),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutNumbers(Columns):
    """Columns of layouts as the composition reads them, one entry per layout."""

    pp: Vector
    virtual_stages: Vector
    num_microbatches: Vector
    nodes: Vector
    schedule: NDArray[np.int64]
    recompute: NDArray[np.int64]
    sequence_parallel: Vector
    zero_stage: NDArray[np.int64]


def features_of(
    case: Case,
    table: LayoutTable,
    *,
    transfers: bool = True,
    exchanges: bool = True,
    any_sharding: bool = False,
    cuts: Cuts | None = None,
) -> Features:
    """Raw times of these layouts.

    Args:
        case: What they are judged against.
        table: The layouts.
        transfers: False as if the collectives of a layer were free.
        exchanges: False as if replicas had nothing to exchange, and stages nothing to send.
        any_sharding: Each number of the traffic between replicas is the least that any shard degree has.
        cuts: Distinct cuts of the table, when the caller has them already.
    """
    model, cluster, job, stack, cal = case.model, case.cluster, case.job, case.stack, case.cal
    hierarchy = cluster.hierarchy
    known = cuts or cuts_of(case.workload, table)
    shard, shard_of, parts = known.shard, known.of_layout, known.parts
    kernels = kernel_times(cal, cluster.gpu, parts, len(np.atleast_1d(shard.tp)))
    strides = axis_strides(table)
    M = num_microbatches(table, job)
    single, paired = M == 1, paired_share(table, M, stack)
    some = stack.timing.pairs_expert_passes
    pairs = np.unique(paired, return_inverse=True)[1] if some else paired.astype(np.int64)
    first, place = _distinct([shard_of, *(strides[axis] for axis in LAYER_AXES), single + 2 * pairs])
    placed = table.take(first)
    sizes = {axis: getattr(placed, axis).astype(float) for axis in LAYER_AXES}
    stride_of = {axis: strides[axis][first].astype(float) for axis in sizes}
    shards = shard_of[first]
    priced = parts if transfers else ((),) * len(parts)
    sent_once = model.is_moe and stack.timing.dispatches_once_per_node
    reached = functools.partial(copies_sent, model) if sent_once else None
    moves = transfer_times(cal, hierarchy, priced, shards, sizes, stride_of, reached=reached)
    times = [
        PartTimes(kernels=alone.take(shards), transfers=moved)
        for alone, moved in zip(kernels, moves, strict=True)
    ]
    traffic, sends, replication = (
        _replication(
            case, table, shard_of, kernels,
            products=update_seconds(cal, cluster.gpu, parts, job, len(kernels[0].forward_s)),
            spared=_spared(parts, job, len(kernels[0].forward_s)),
            any_sharding=any_sharding,
        )
        if exchanges
        else _nothing_exchanged(len(kernels), len(table))
    )  # fmt: skip
    return Features(
        environment=job_environment(case),
        runs=tuple(times[: len(layer_runs(model))]),
        mtp=times[-OUTER_PARTS - 1] if job.mtp_layers else None,
        mtp_layers=job.mtp_layers,
        embedding=times[-2],
        head=times[-1],
        hidden_elements=placed.microbatch_size * (job.sequence_length / placed.cp) * model.residual_width,
        single=single[first].astype(np.float64),
        paired=paired[first],
        tp=placed.tp.astype(np.float64),
        tp_inside=np.where(crosses_node(hierarchy, placed.tp, strides["tp"][first]), 0.0, 1.0),
        over_sockets=((placed.tp > SOCKET_GPUS) & (hierarchy.gpus_per_host > SOCKET_GPUS)).astype(np.float64),
        placed_shard=place,
        traffic=traffic,
        send_s=sends[0],
        send_s_per_byte=sends[1],
        replication=replication,
        layout_numbers=_layout_numbers(table, M, hierarchy),
    )


def _layout_numbers(table: LayoutTable, M: NDArray[np.int64], hierarchy: Hierarchy) -> LayoutNumbers:
    """Columns of a table as the composition reads them."""
    return LayoutNumbers(
        pp=table.pp.astype(np.float64),
        virtual_stages=table.virtual_stages.astype(np.float64),
        num_microbatches=M.astype(np.float64),
        nodes=np.maximum(1.0, table.num_gpus / hierarchy.gpus_per_node),
        schedule=table.schedule,
        recompute=table.recompute,
        sequence_parallel=(table.sequence_parallel & (table.tp > 1)).astype(np.float64),
        zero_stage=table.zero_stage,
    )


def _replication(
    case: Case,
    table: LayoutTable,
    shard_of: Index,
    kernels: Sequence[KernelTimes],
    *,
    products: tuple[Vector, Vector] | None,
    spared: tuple[Vector, Vector] | None,
    any_sharding: bool,
) -> tuple[GradientTraffic, tuple[Vector, Vector], Index]:
    """Replica traffic and pipeline sends of every distinct replication, and the one of each layout."""
    model, job, hierarchy = case.model, case.job, case.cluster.hierarchy
    columns = (*AXES, "zero_stage", "shard_degree", "axis_order")
    first, replication = _distinct([getattr(table, name) for name in columns])
    distinct = table.take(first)
    strides = axis_strides(distinct)
    shards = shard_of[first]
    tied = copied_parameters(case.workload, distinct) * (job.adapter is None) / distinct.tp
    dense = np.stack([part.dense_parameters[shards] for part in kernels])
    dense[-1] += tied * (distinct.pp > 1)
    expert = np.stack([part.expert_parameters[shards] for part in kernels])
    exchanged = Replication(
        table=distinct,
        strides=strides,
        dense=dense,
        expert=expert,
        layers=[*(run.count for run in layer_runs(model)), *[job.mtp_layers] * bool(job.mtp_layers)],
        tied_parameters=tied,
        frozen=_frozen(kernels, shards) if job.adapter else None,
        products=(products[0][:, shards], products[1][:, shards]) if products else None,
        from_host_s=from_host_seconds(case),
        sent=_sent(job, case.stack, (dense, expert), spared, shards),
        local_steps=job.apart.steps if job.apart else 1,
        bucket_bytes=job.bucket_bytes,
    )
    traffic = (least_traffic if any_sharding else gradient_traffic)(case, exchanged)
    probes = np.array(PROBE_BYTES)[:, None] * (distinct.pp > 1)
    small, large = collective_time(case.cal, hierarchy, "p2p", probes, distinct.pp, strides["pp"])
    slope = (large - small) / (PROBE_BYTES[1] - PROBE_BYTES[0])
    return traffic, (np.maximum(0.0, small - slope * PROBE_BYTES[0]), slope), replication


def _frozen(kernels: Sequence[KernelTimes], shards: Index) -> tuple[Vector, Vector]:
    """Frozen bytes of every part on a rank, dense and of routed experts."""
    dense = np.stack([part.frozen_bytes[shards] for part in kernels])
    return dense, np.stack([part.frozen_expert_bytes[shards] for part in kernels])


def _nothing_exchanged(parts: int, layouts: int) -> tuple[GradientTraffic, tuple[Vector, Vector], Index]:
    """What `_replication` gives where neither replicas nor stages have any traffic."""
    none, of_parts = np.zeros(1), np.zeros((parts, 1))
    traffic = GradientTraffic(
        step_reduce_s=of_parts,
        step_gather_s=of_parts,
        microbatch_reduce_s=of_parts,
        microbatch_gather_s=of_parts,
        microbatch_gathered_bytes=of_parts,
        microbatch_reduced_bytes=of_parts,
        updated_parameters=of_parts,
        update_s=of_parts,
        tied_s=none,
        last_bucket_s=none,
        network=none,
    )
    return traffic, (none, none), np.zeros(layouts, dtype=np.intp)


def _distinct(columns: list[NDArray[Any]]) -> tuple[Index, Index]:
    """First row of every distinct combination, and for each row the index of its own."""
    if len(columns[0]) == 1:
        return np.zeros(1, dtype=np.intp), np.zeros(1, dtype=np.intp)
    return distinct_rows(columns)


def stage_message_bytes(features: Features) -> Vector:
    """Bytes of the hidden states that a rank sends to the next stage, per layout."""
    shards = np.where(features.environment.p2p_sharded, 1.0, features.layout_numbers.sequence_parallel)
    return _hidden_bytes(features, shards)


def input_bytes(features: Features) -> Vector:
    """Bytes of a layer's input on a rank, as full recomputation keeps it, per layout."""
    return _hidden_bytes(features, features.layout_numbers.sequence_parallel)


def _hidden_bytes(features: Features, sharded: Vector) -> Vector:
    """Hidden states of a microbatch in sixteen bits; where `sharded` is 1 each rank of tp has a part."""
    ranks = sharded * (features.tp[features.placed_shard] - 1) + 1
    return np.asarray(HALF_BYTES * features.hidden_elements[features.placed_shard] / ranks)


def _spared(parts: Sequence[Sequence[Op]], job: TrainingJob, size: int) -> tuple[Vector, Vector] | None:
    """Parameters of each part whose gradients are not sent, by cut: dense ones and those of experts."""
    if job.compression is None:
        return None
    dense, expert = np.zeros((len(parts), size)), np.zeros((len(parts), size))
    for part, ops in enumerate(parts):
        dense[part] += spared_parameters(ops, job.compression, experts=False)
        expert[part] += spared_parameters(ops, job.compression, experts=True)
    return dense, expert


def _sent(
    job: TrainingJob,
    stack: SoftwareStack,
    held: tuple[Vector, Vector],
    spared: tuple[Vector, Vector] | None,
    shards: Index,
) -> tuple[Vector, Vector] | None:
    """What is sent of compressed gradients, as so many parameters uncompressed; None where all is sent."""
    if job.compression is None or spared is None:
        return None
    whole = stack.memory.gradient_reduce_bytes
    width = job.compression.value_bytes(whole) / whole
    first, second = (
        width * np.maximum(0.0, all_of - some[:, shards]) for all_of, some in zip(held, spared, strict=True)
    )
    return first, second


def update_seconds(
    cal: Calibration, gpu: Gpu, parts: Sequence[Sequence[Op]], job: TrainingJob, size: int
) -> tuple[Vector, Vector] | None:
    """Seconds of the products of one update of each part before sharding, by cut; None without any.

    Returns:
        Of matrices outside routed experts and of these, each of shape (parts, cuts).
    """
    updated = optimizer(job.optimizer)
    if not updated.multiplies:
        return None
    dense, expert = np.zeros((len(parts), size)), np.zeros((len(parts), size))
    for part, ops in enumerate(parts[:-OUTER_PARTS]):
        for op in ops:
            if op.kind in LINEAR and not op.frozen:
                into = expert if op.kind is OpKind.GROUPED_GEMM else dense
                into[part] += _op_seconds(cal, gpu, op, updated)
    return dense, expert


def _op_seconds(cal: Calibration, gpu: Gpu, op: Op, updated: Optimizer) -> Vector:
    """Seconds of the products of one operation's matrices."""
    total: Vector = np.zeros(1)
    for update_product in update_products(op, updated):
        alone = gemm_time(
            cal, gpu, update_product.dtype, update_product.m, update_product.n, update_product.k
        )
        total = total + update_product.count * alone.seconds
    return total
