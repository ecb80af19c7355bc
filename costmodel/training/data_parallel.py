"""Seconds that replicas spend exchanging gradients and parameters, per layer and for the ends of the model.

ZeRO 0 all-reduces gradients once a step. ZeRO 1 reduce-scatters them and gathers updated parameters. ZeRO 2
scatters gradients in every microbatch, ZeRO 3 also gathers parameters before every use. With a shard degree
below the number of replicas (HSDP) each shard is then all-reduced among the replicas that hold it.

Traffic once per step travels in buckets, so its cost per byte is that of the whole stage's message and linear
in layers; traffic in every microbatch travels one layer at a time. Nothing fitted enters here.

Legend: ``K`` runs of layers, a module that predicts a further token counted as one more where there is any;
parts are the runs, then the embedding, then the head, so arrays have ``K + 2`` rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.case import Case
from costmodel.kernels.collectives import collective_time
from costmodel.layout import LayoutTable, divisors
from costmodel.ops.op import HALF_BYTES
from costmodel.stack import SoftwareStack
from costmodel.training.rank_strides import Counts
from topology.base.arrays import Vector
from topology.base.columns import Columns
from topology.fabric.hierarchy import crosses_node

Pair = tuple[Vector, Vector]
"""Of parts and layouts: of dense parameters, and of routed experts."""
SHARDS_GRADIENTS = 2  # the ZeRO stage from which gradients leave in every microbatch
SHARDS_PARAMETERS = 3  # the ZeRO stage from which parameters are gathered before every use


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientTraffic(Columns):
    """Seconds of gradient and parameter traffic alone; rows are parts, columns layouts.

    Attributes:
        step_reduce_s: Gradient reduction of one layer (or end), once a step.
        step_gather_s: All-gather of its updated parameters, once a step.
        microbatch_reduce_s: Gradient reduction in every microbatch.
        microbatch_gather_s: All-gather of its parameters before each use in every microbatch.
        microbatch_gathered_bytes: What gathering them moves in the GPU's memory, which layers wait for.
        microbatch_reduced_bytes: What that reduction moves there.
        updated_parameters: Parameters the rank updates after sharding.
        update_s: Products of the optimizer, and gathering what it needs whole.
        tied_s: Shape (layouts,): summing the gradients of tied embeddings held on two ranks, an all-reduce
            that sends the message once each way.
        last_bucket_s: Shape (layouts,): reducing the bucket that is full last, when no backward is left.
        network: Shape (layouts,): 1 where the replicas of a rank sit on several nodes.
    """

    step_reduce_s: Vector
    step_gather_s: Vector
    microbatch_reduce_s: Vector
    microbatch_gather_s: Vector
    microbatch_gathered_bytes: Vector
    microbatch_reduced_bytes: Vector
    updated_parameters: Vector
    update_s: Vector
    tied_s: Vector
    last_bucket_s: Vector
    network: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """What the replicas of layouts hold and exchange.

    Attributes:
        table: The layouts.
        strides: From `rank_strides.axis_strides`.
        dense: Parameters per rank of one layer of each run, the embedding, the head; shape (K + 2, layouts).
        expert: The same for routed experts.
        layers: Layers of each run.
        tied_parameters: Parameters per rank of a tied embedding that two pipeline ranks hold, else 0.
        frozen: Bytes of weights that are not trained, of the shapes of `dense` and `expert`: gathered before
            each use at ZeRO-3, once a step at ZeRO-1 and 2 by engines whose units are gathered at every
            stage, never reduced.
        products: Seconds of an optimizer's matrix products of a rank's matrices, of the same shapes.
        from_host_s: Of a parameter that ZeRO-3 shards: bringing its weight from the host before it is
            gathered, and taking its gradient there; then that of a byte of frozen weights.
        sent: Of compressed gradients: uncompressed parameters of the same bytes, of the shapes of `dense` and
            `expert`.
        local_steps: Steps that workers run apart; of a step is that part of what they exchange.
        bucket_bytes: Of the gradients that are reduced at once where they are reduced once a step; None for
            what a fitted overlap has seen.
    """

    table: LayoutTable
    strides: Mapping[str, Counts]
    dense: Vector
    expert: Vector
    layers: Sequence[int]
    tied_parameters: Vector
    frozen: Pair | None = None
    products: Pair | None = None
    from_host_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    sent: Pair | None = None
    local_steps: int = 1
    bucket_bytes: float | None = None

    def take(self, rows: NDArray[np.intp]) -> Replication:
        """What some layouts hold and exchange, in this order; a row may come several times."""
        return replace(
            self,
            table=self.table.take(rows),
            strides={axis: stride[rows] for axis, stride in self.strides.items()},
            dense=self.dense[:, rows],
            expert=self.expert[:, rows],
            tied_parameters=self.tied_parameters[rows],
            frozen=_columns(self.frozen, rows),
            products=_columns(self.products, rows),
            sent=_columns(self.sent, rows),
        )


def _columns(pair: Pair | None, rows: NDArray[np.intp]) -> Pair | None:
    """Some layouts of two arrays of parts."""
    return pair and (pair[0][:, rows], pair[1][:, rows])


def gradient_traffic(case: Case, replication: Replication) -> GradientTraffic:
    """Seconds of the traffic between replicas."""
    cal, hierarchy, stack = case.cal, case.cluster.hierarchy, case.stack
    table, strides, bucket_bytes = replication.table, replication.strides, replication.bucket_bytes
    dense, expert = replication.dense, replication.expert
    copies = table.replicas
    shards = np.minimum(table.shard_degree, copies)
    per_unit = table.zero_stage >= SHARDS_GRADIENTS
    counts = np.array([*replication.layers, 1, 1], dtype=np.float64)[:, None]
    groups = (
        _Replicas(dense, copies, shards, strides["data"]),
        _Replicas(expert, table.expert_dp, table.expert_shard_degree, strides["expert_data"]),
    )
    reduce_s, gather_s, updated, whole = (np.zeros_like(dense) for _ in range(4))
    last_s = np.zeros(dense.shape[1])
    each_use = table.zero_stage >= SHARDS_PARAMETERS
    for group, narrow in zip(groups, replication.sent or (None, None), strict=True):
        if not group.parameters.any():
            continue
        bucket = (counts * group.parameters).sum(axis=0) / table.pp
        unit = np.where(per_unit, group.parameters, bucket)
        share = group.parameters / np.maximum(unit, 1e-30)
        pieces = np.where(per_unit, stack.timing.messages_per_unit, 1.0)
        less = 1.0 if narrow is None else _share_sent(narrow, group.parameters, counts, per_unit)
        reduced = less * unit * stack.memory.gradient_reduce_bytes
        if bucket_bytes is not None:
            pieces = np.where(per_unit, pieces, np.maximum(1.0, reduced / bucket_bytes))
        reduced = reduced / pieces
        if bucket_bytes is not None:
            each = _reduce(case, replication, group, reduced)
            last_s = np.maximum(last_s, np.where(per_unit, 0.0, each)[0])
        reduce_s += share * pieces * _reduce(case, replication, group, reduced)
        gathered = unit * stack.memory.parameter_gather_bytes * (table.zero_stage > 0)
        gather_s += (
            share
            * pieces
            * collective_time(cal, hierarchy, "all_gather", gathered / pieces, group.shards, group.stride)
        )
        updated += group.parameters / np.where(table.zero_stage > 0, group.shards, 1)
        whole += group.parameters * (group.shards > 1)
        moved = each_use * group.parameters / group.shards
        gather_s += replication.from_host_s[0] * moved
        reduce_s += replication.from_host_s[1] * moved
    by_unit = stack.memory.gathers_from_master and stack.memory.reduces_by_unit
    cut = each_use | (by_unit & (table.zero_stage > 0))
    for group, held in zip(groups, replication.frozen or (), strict=False):
        messages = stack.timing.messages_per_unit
        once = collective_time(
            cal, hierarchy, "all_gather", held * cut / messages, group.shards, group.stride
        )
        gather_s += messages * once + replication.from_host_s[2] * held * each_use / group.shards
    gathered_bytes, reduced_bytes = _memory_bytes(stack)
    tied = replication.tied_parameters * stack.memory.gradient_reduce_bytes * (table.pp > 1)
    return GradientTraffic(
        step_reduce_s=np.where(per_unit, 0.0, reduce_s),
        step_gather_s=np.where(each_use, 0.0, gather_s),
        microbatch_reduce_s=np.where(per_unit, reduce_s, 0.0),
        microbatch_gather_s=np.where(each_use, gather_s, 0.0),
        microbatch_gathered_bytes=each_use * gathered_bytes * whole,
        microbatch_reduced_bytes=each_use * reduced_bytes * whole,
        updated_parameters=updated,
        update_s=_whole_updates(case, replication, groups),
        last_bucket_s=last_s,
        tied_s=collective_time(cal, hierarchy, "p2p", tied, table.pp, strides["pp"]),
        network=crosses_node(hierarchy, copies, strides["data"]).astype(np.float64),
    )


def _memory_bytes(stack: SoftwareStack) -> tuple[float, float]:
    """Bytes that exchanging a sharded parameter moves in a GPU's memory: gathered, and its gradient reduced.

    A ring writes what arrives and reads what it sends on: 2 passes to gather, 3 to sum (own part, arriving
    part, result). Engines whose parameters and gradients do not live in the buffers of the collectives copy
    them out, and in with a change of precision. Kernels wait for that: it takes their memory bandwidth.

    Source: counted passes; torch FSDP2, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:
    all_gather_copy_in, split_with_sizes_copy, chunk_cat.
    """
    gathered, reduced = stack.memory.parameter_gather_bytes, stack.memory.gradient_reduce_bytes
    copies = stack.timing.copies_sharded
    return (2 + 2 * copies) * gathered, 3 * reduced + copies * (HALF_BYTES + reduced)


def least_traffic(case: Case, replication: Replication) -> GradientTraffic:
    """Each number of `gradient_traffic` at its least over the shard degrees that the stack can use."""
    table = replication.table
    partly = np.isin(table.zero_stage, case.stack.supports.partial_zero_stages)
    degrees = [
        divisors(int(ranks)) if any_part else [int(ranks)]
        for ranks, any_part in zip(table.replicas, partly, strict=True)
    ]
    counts = np.array([len(degree) for degree in degrees])
    repeated = replication.take(np.repeat(np.arange(len(table)), counts))
    each_degree = replace(repeated.table, shard_degree=np.concatenate(degrees))
    every = gradient_traffic(case, replace(repeated, table=each_degree))
    starts = np.cumsum(counts) - counts
    least = {name: np.minimum.reduceat(getattr(every, name), starts, axis=-1) for name in every.names()}
    return GradientTraffic(**least)


@dataclass(frozen=True, slots=True)
class _Replicas:
    """Parameters of a rank, and the ranks that hold copies of them."""

    parameters: Vector
    copies: Counts
    shards: Counts
    stride: Counts


def _share_sent(sent: Vector, parameters: Vector, counts: Vector, per_unit: NDArray[np.bool_]) -> Vector:
    """What compression leaves of a message: of each unit, or of the bucket that all of them make."""
    bucket = (counts * sent).sum(axis=0) / np.maximum((counts * parameters).sum(axis=0), 1e-30)
    alone = sent / np.maximum(parameters, 1e-30)
    return np.asarray(np.where(per_unit, alone, bucket))


def _whole_updates(case: Case, replication: Replication, groups: Sequence[_Replicas]) -> Vector:
    """Seconds of updates that take whole matrices, once a step; nothing without such products.

    Ranks that share the state deal the matrices among them. Where ZeRO-2 or 3 cut every matrix, momentum in
    half precision is gathered before the products and the update scattered after them.

    Source: Moonlight (arXiv 2502.16982) section 2.3; megatron-core's layer-wise distributed optimizer.
    """
    cal, hierarchy, table = case.cal, case.cluster.hierarchy, replication.table
    seconds = np.zeros_like(groups[0].parameters)
    for group, alone in zip(groups, replication.products or (), strict=False):
        sharded = table.zero_stage > 0
        seconds += alone / np.where(sharded, group.shards, 1)
        cut = HALF_BYTES * group.parameters * (table.zero_stage >= SHARDS_GRADIENTS) * (alone > 0)
        for op in ("all_gather", "reduce_scatter"):
            seconds += collective_time(cal, hierarchy, op, cut, group.shards, group.stride)
    return seconds


def _reduce(case: Case, replication: Replication, group: _Replicas, message_bytes: Vector) -> Vector:
    """Sum gradients: all-reduce, or reduce-scatter and all-reduce of each shard among its replicas."""
    cal, hierarchy = case.cal, case.cluster.hierarchy
    sharded = replication.table.zero_stage > 0
    outer = np.where(sharded, group.copies // np.maximum(1, group.shards), group.copies)
    outer_stride = np.where(sharded, group.stride * group.shards, group.stride)
    whole = message_bytes / np.where(sharded, group.shards, 1)
    scattered = message_bytes * sharded
    seconds: Vector = collective_time(cal, hierarchy, "all_reduce", whole, outer, outer_stride)
    seconds = seconds / replication.local_steps
    return seconds + collective_time(cal, hierarchy, "reduce_scatter", scattered, group.shards, group.stride)
