"""Seconds that the operations of a layer take alone: kernels from tables, collectives on the hierarchy.

Nothing fitted enters here. `kernel_times` depends only on how a layer is cut, `transfer_times` also on where
the members of a group sit; both take arrays, one entry per distinct cut, and are summed into few totals that
`costmodel.training.layer_time` turns into the time of a layer inside a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.kernels.collectives import collective_time
from costmodel.kernels.compute import attention_prefill, elementwise_time, gemm_time, grouped_gemm_time
from costmodel.kernels.tables import Calibration
from costmodel.ops.op import TABLED, Cover, Op, OpKind
from costmodel.ops.shards import distinct_rows
from costmodel.parallel.axes import AXES
from costmodel.training.passes import has_backward, relaunched_share, trained_flop
from topology.base.arrays import Vector
from topology.base.columns import Columns
from topology.fabric.hierarchy import Hierarchy, members_per_unit, nodes_spanned
from topology.hardware.datasheets import generation_of
from topology.hardware.gpu import Gpu

Reached: TypeAlias = Callable[[NDArray[np.int64]], Vector]
"""Places that a token reaches, over its copies, by the number of places."""

INPUT_GRADIENT, WEIGHT_GRADIENT = 1, 2  # places of the gradients among the three products of a matrix
FEW_CUTS = 64  # cuts whose products are looked up faster one by one than sorted into distinct ones


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes(Columns):
    """Seconds of the kernels of one layer, one microbatch, one rank; every field has one entry per cut.

    Attributes:
        forward_s: Matrix products of the forward pass.
        input_gradient_s: Matrix products of the gradient with respect to the inputs.
        weight_gradient_s: The same with respect to the weights.
        last_forward_s: The last matrix product of the forward pass (skipped by an early-stopping recompute).
        grouped_forward_s: Expert products of the forward pass.
        grouped_input_gradient_s: Expert products of the input gradient.
        grouped_weight_gradient_s: Expert products of the weight gradient.
        fused_attention_s: Fused attention forward.
        product_flop: Operations of all matrix products forward.
        attention_flop: Operations of attention forward.
        batched_matmul_s: The two products of unfused attention forward, then its four backward.
        scores_s: Memory passes over the scores of unfused attention.
        elementwise_s: Memory passes of norms, activations, residuals, casts and permutations, and scans.
        cast_forward_s: Passes that quantise the operands of products, where they have kernels of their own.
        cast_backward_s: Those of the backward.
        repeated_forward_s: Those matrix products of the forward pass that run again under ``selective``.
        repeated_elementwise_s: Those memory passes that do.
        repeated_grouped_s: Those expert products that do.
        relaunched_share: Kernels of whole blocks that do, over all of the forward pass.
        reroutes: 1 if tokens are routed again, else 0.
        repeats_attention: 1 if attention does, else 0.
        dense_parameters: Parameters of the rank outside routed experts.
        expert_parameters: Parameters of its routed experts.
        routed: 1 if tokens are routed to experts, else 0.
        local_experts: Routed experts of the rank.
        extrapolated_share: Share of the matrix-product time that was read outside its table.
        trains: 1 if it has a backward, else 0.
        frozen_bytes: Weights of the rank that are not trained, outside routed experts.
        frozen_expert_bytes: Those of its routed experts.
    """

    forward_s: Vector
    input_gradient_s: Vector
    weight_gradient_s: Vector
    last_forward_s: Vector
    grouped_forward_s: Vector
    grouped_input_gradient_s: Vector
    grouped_weight_gradient_s: Vector
    fused_attention_s: Vector
    product_flop: Vector
    attention_flop: Vector
    batched_matmul_s: Vector
    batched_matmul_backward_s: Vector
    scores_s: Vector
    elementwise_s: Vector
    cast_forward_s: Vector
    cast_backward_s: Vector
    repeated_forward_s: Vector
    repeated_elementwise_s: Vector
    repeated_grouped_s: Vector
    relaunched_share: Vector
    reroutes: Vector
    repeats_attention: Vector
    dense_parameters: Vector
    expert_parameters: Vector
    routed: Vector
    local_experts: Vector
    extrapolated_share: Vector
    trains: Vector
    frozen_bytes: Vector
    frozen_expert_bytes: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTimes(Columns):
    """Seconds of the collectives of one layer and microbatch; every field has one entry per placed cut.

    Sharded ones are the all-gathers and reduce-scatters of sequence parallelism, whole ones the all-reduces
    of plain tensor parallelism. `tp_regather_s` brings saved inputs back for the weight gradient.
    Repeated ones are those of the forward pass that run again under ``selective``.
    """

    tp_sharded_forward_s: Vector
    tp_sharded_backward_s: Vector
    tp_regather_s: Vector
    tp_whole_forward_s: Vector
    tp_whole_backward_s: Vector
    cp_forward_s: Vector
    cp_backward_s: Vector
    cp_swap_forward_s: Vector
    cp_swap_backward_s: Vector
    ep_forward_s: Vector
    ep_backward_s: Vector
    tp_sharded_repeated_s: Vector
    tp_whole_repeated_s: Vector
    ep_repeated_s: Vector


PART_TRANSFERS: Mapping[str, tuple[str, ...]] = {
    "tp": (
        "tp_sharded_forward_s",
        "tp_sharded_backward_s",
        "tp_regather_s",
        "tp_whole_forward_s",
        "tp_whole_backward_s",
    ),
    "cp": ("cp_forward_s", "cp_backward_s", "cp_swap_forward_s", "cp_swap_backward_s"),
    "ep": ("ep_forward_s", "ep_backward_s"),
}
"""Totals of `TransferTimes` that show in each part of a step."""


def kernel_times(
    cal: Calibration, gpu: Gpu, parts: Sequence[Sequence[Op]], size: int
) -> tuple[KernelTimes, ...]:
    """Seconds of the kernels of each part (a layer, the embedding, the head), for `size` cuts.

    Matrix products of all parts share their table look-ups.
    """
    gemms = [[op for op in ops if op.kind in TABLED] for ops in parts]
    values = _gemm_seconds(cal, gpu, [op for part in gemms for op in part], size)
    starts = np.cumsum([0, *(len(part) for part in gemms)])
    return tuple(
        _kernel_times(cal, gpu, ops, size, values[:, :, start : start + len(part)])
        for ops, part, start in zip(parts, gemms, starts, strict=False)
    )


def _kernel_times(
    cal: Calibration, gpu: Gpu, ops: Sequence[Op], size: int, gemm_seconds: Vector
) -> KernelTimes:
    """Sums over the operations of one part; `gemm_seconds` as from `_gemm_seconds`."""
    ops = [op for op in ops if not op.trait or getattr(generation_of(gpu), op.trait)]
    grouped = _grouped(cal, gpu, [op for op in ops if op.kind is OpKind.GROUPED_GEMM], size)
    attention = [op for op in ops if op.kind is OpKind.ATTENTION]
    fused = [_fused_attention(cal, gpu, op) for op in attention if op.fused]
    unfused = [op for op in attention if not op.fused]
    batched = [_batched_products(cal, gpu, op) for op in unfused]
    scores = [op.bytes for op in unfused] + [op.bytes for op in ops if op.kind is OpKind.SCORES]
    moved_elementwise = [op.bytes for op in ops if op.kind is OpKind.ELEMENTWISE]
    experts = [op.parameters for op in ops if op.kind is OpKind.GROUPED_GEMM]
    others = [op.parameters for op in ops if op.kind is not OpKind.GROUPED_GEMM]
    forward, inputs, weights = gemm_seconds[0].sum(axis=1)
    total = np.maximum(forward + inputs + weights, 1e-30)
    casts = [
        [op.bytes for op in ops if op.kind is OpKind.CAST and op.phase == phase]
        for phase in ("forward", "backward")
    ]
    moved = np.stack([_sum(each, size) for each in (scores, moved_elementwise, *casts)])
    scores_s, elementwise_s, cast_forward_s, cast_backward_s = elementwise_time(cal, gpu, moved).seconds
    if scans := [op for op in ops if op.kind is OpKind.SCAN]:
        elementwise_s = elementwise_s + _sum([_scan(cal, gpu, op) for op in scans], size)
    result, still = [op for op in ops if op.repeated], [op for op in ops if op.frozen]
    repeated_grouped = _grouped(cal, gpu, [op for op in result if op.kind is OpKind.GROUPED_GEMM], size)
    passes = _sum([op.bytes for op in result if op.kind is OpKind.ELEMENTWISE], size)
    products = [i for i, op in enumerate(op for op in ops if op.kind in TABLED) if op.repeated]
    return KernelTimes(
        forward_s=forward,
        input_gradient_s=inputs,
        weight_gradient_s=weights,
        last_forward_s=gemm_seconds[0, 0, -1] if gemm_seconds.shape[2] else np.zeros(size),
        grouped_forward_s=grouped[0],
        grouped_input_gradient_s=grouped[1],
        grouped_weight_gradient_s=grouped[2],
        fused_attention_s=_sum(fused, size),
        product_flop=_sum(
            [trained_flop(op) for op in ops if op.kind in (*TABLED, OpKind.GROUPED_GEMM)], size
        ),
        attention_flop=_sum([op.flop for op in attention], size),
        batched_matmul_s=_sum([scored + weighed for scored, weighed in batched], size),
        batched_matmul_backward_s=_sum([scored + 3 * weighed for scored, weighed in batched], size),
        scores_s=scores_s,
        elementwise_s=elementwise_s,
        cast_forward_s=cast_forward_s,
        cast_backward_s=cast_backward_s,
        repeated_forward_s=gemm_seconds[0, 0, products].sum(axis=0),
        repeated_elementwise_s=elementwise_time(cal, gpu, passes).seconds if np.any(passes) else passes,
        repeated_grouped_s=repeated_grouped[0],
        relaunched_share=np.full(size, relaunched_share(ops)),
        reroutes=np.full(size, float(any(op.kind is OpKind.GROUPED_GEMM and op.relaunched for op in ops))),
        repeats_attention=np.full(size, float(any(op.kind is OpKind.ATTENTION for op in result))),
        dense_parameters=_sum(others, size),
        expert_parameters=_sum(experts, size),
        routed=np.full(size, float(bool(experts))),
        local_experts=_sum([op.experts for op in ops if op.kind is OpKind.GROUPED_GEMM][:1], size),
        extrapolated_share=gemm_seconds[1].sum(axis=(0, 1)) / total,
        frozen_bytes=_sum([op.frozen_bytes for op in still if op.kind is not OpKind.GROUPED_GEMM], size),
        trains=np.full(size, float(has_backward(ops))),
        frozen_expert_bytes=_sum([op.frozen_bytes for op in still if op.kind is OpKind.GROUPED_GEMM], size),
    )


def transfer_times(
    cal: Calibration,
    hierarchy: Hierarchy,
    parts: Sequence[Sequence[Op]],
    index: NDArray[np.intp],
    group_size: Mapping[str, Vector],
    group_stride: Mapping[str, Vector],
    *,
    reached: Reached | None = None,
) -> tuple[TransferTimes, ...]:
    """Seconds of the collectives of each part (a layer, the embedding, the head).

    Args:
        cal: Tables.
        hierarchy: The cluster.
        parts: Operations of each part, one entry per cut.
        index: For every placed cut, its cut.
        group_size: Members of a group, by axis, one entry per placed cut.
        group_stride: GPUs between members, by axis, one entry per placed cut.
        reached: Share of the copies of a token that are sent, by the places they go to, where an engine sends
            it once to each node that holds some of its experts; None where every expert is sent its own copy.
    """
    totals = [{name: np.zeros(len(index)) for name in TransferTimes.names()} for _ in parts]
    collectives = [
        (part, op)
        for part, ops in enumerate(parts)
        for op in ops
        if op.kind is OpKind.COLLECTIVE and np.any(op.collective_bytes)
    ]
    for name in sorted({str(op.collective) for _, op in collectives}):
        alike = [(part, op) for part, op in collectives if op.collective == name]
        message = np.stack([_full(op.collective_bytes, index) for _, op in alike])
        size = np.stack([group_size[str(op.axis)] for _, op in alike])
        stride = np.stack([group_stride[str(op.axis)] for _, op in alike])
        if name == "all_to_all" and reached:
            seconds = dispatch_time(cal, hierarchy, message, size, stride, reached)
        else:
            seconds = collective_time(cal, hierarchy, name, message, size, stride)
        for (part, op), row in zip(alike, seconds, strict=True):
            totals[part][_total_of(op)] += row
            if op.repeated and op.phase == "forward":
                totals[part][_total_of(op).replace("forward", "repeated")] += row
    return tuple(TransferTimes(**total) for total in totals)


def dispatch_time(
    cal: Calibration, hierarchy: Hierarchy, message: Vector, size: Vector, stride: Vector, reached: Reached
) -> Vector:
    """Seconds of an expert all-to-all that sends a token once to every node, and there once to every GPU.

    t = max(network(B·r(N)), in-node(B·r(g)))

    r is the number of the N nodes, or g GPUs, that a token reaches, over its K copies.

    Args:
        cal: Tables.
        hierarchy: The cluster.
        message: B, bytes of all K copies that a GPU sends.
        size: Members of a group.
        stride: GPUs between members.
        reached: r.

    Source: DeepSeek-V3 (arXiv 2412.19437) section 3.2.2; DeepEP and HybridEP dispatch so.
    """
    members, strides = (np.asarray(a, dtype=np.int64) for a in (size, stride))
    nodes = nodes_spanned(hierarchy, members, strides)
    inside = members_per_unit(members, strides, hierarchy.gpus_per_node)

    across, within = message * reached(nodes) * (nodes > 1), message * reached(members)
    crossing = collective_time(cal, hierarchy, "all_to_all", across, size, stride)
    return np.maximum(crossing, collective_time(cal, hierarchy, "all_to_all", within, inside, stride))


def _total_of(op: Op) -> str:
    """Name of the total of `TransferTimes` that a collective belongs to."""
    if op.axis == "tp":
        if op.cover is Cover.INPUT_GRADIENT:
            return "tp_regather_s"
        return f"tp_{'whole' if op.collective == 'all_reduce' else 'sharded'}_{op.phase}_s"
    swap = "swap_" if op.cover is Cover.NOTHING else ""
    return f"{AXES[str(op.axis)].part}_{swap}{op.phase}_s"


def _gemm_seconds(cal: Calibration, gpu: Gpu, gemms: Sequence[Op], size: int) -> Vector:
    """Matrix products of a layer and of its backward, one table look-up per data type.

    Returns:
        Seconds, and those read outside the measured shapes; shape (2, forward · input gradient · weight
        gradient, products, cuts).
    """
    seconds = np.zeros((2, 3, len(gemms), size))
    for dtype in sorted({op.dtype for op in gemms}):
        rows = [i for i, op in enumerate(gemms) if op.dtype == dtype]
        sides = np.stack([_full(getattr(gemms[i], side), size) for side in "mnk" for i in rows])
        first, cut = _distinct_columns(sides)
        m, n, k = sides[:, first].reshape(3, len(rows), len(first))
        kernel_time = gemm_time(
            cal, gpu, dtype, np.stack([m, m, n]), np.stack([n, k, k]), np.stack([k, n, m])
        )
        beyond = kernel_time.seconds * kernel_time.extrapolated
        seconds[0][:, rows], seconds[1][:, rows] = kernel_time.seconds[..., cut], beyond[..., cut]
    seconds[:, WEIGHT_GRADIENT, [i for i, op in enumerate(gemms) if op.frozen]] = 0.0
    seconds[:, INPUT_GRADIENT, [i for i, op in enumerate(gemms) if op.forward_only]] = 0.0
    return seconds


def _distinct_columns(sizes: Vector) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First cut of every combination of these sizes, and the combination of each cut.

    Most cuts share their matrix products: they differ in where experts and context go.
    """
    if sizes.shape[1] < FEW_CUTS:
        return np.arange(sizes.shape[1]), np.arange(sizes.shape[1])
    varying = {row.tobytes(): row for row in sizes if (row != row[0]).any()}
    codes = [np.unique(row, return_inverse=True)[1] for row in varying.values()]
    return distinct_rows(codes or [np.zeros(sizes.shape[1], dtype=np.int64)])


def _grouped(cal: Calibration, gpu: Gpu, gemms: Sequence[Op], size: int) -> Vector:
    """Expert products forward, input gradient and weight gradient, shape (3, cuts)."""
    total = np.zeros((3, size))
    for op in gemms:
        m, n, k = _full(op.m, size), _full(op.n, size), _full(op.k, size)
        sides = np.stack([n, k]), np.stack([k, n])
        rows = np.maximum(m, 1e-9)
        forward, backward = grouped_gemm_time(cal, gpu, op.dtype, rows, *sides, op.experts).seconds
        total += np.stack([forward, backward, np.zeros_like(backward) if op.frozen else backward])
    return total


def _fused_attention(cal: Calibration, gpu: Gpu, op: Op) -> Vector:
    """Fused attention forward; windowed and full layers of one kind are averaged.

    A context rank computes 1/cp of the square: balanced orders give every rank the same causal pairs.
    """
    share = np.asarray(op.kv_tokens, dtype=np.float64) / op.query_tokens
    windows = ((1 - op.windowed_share, None), (op.windowed_share, op.window))
    seconds: Vector = np.zeros(1)
    for weight, window in windows:
        if weight > 0:
            alone = attention_prefill(
                cal,
                gpu,
                batch=op.batch,
                heads=op.heads,
                kv_heads=op.kv_heads,
                query_tokens=op.kv_tokens,
                kv_tokens=op.kv_tokens,
                head_dim=(np.asarray(op.head_dim) + op.value_head_dim) / 2,
                window=window,
            )
            seconds = seconds + weight * alone.seconds / share
    return seconds


def _batched_products(cal: Calibration, gpu: Gpu, op: Op) -> tuple[Vector, Vector]:
    """The products of unfused attention: scores (s outputs of d inputs each) and weighed values (d of s).

    One launch of all heads fills the GPU as one product of as many rows; backward has 1 of the first shape, 3
    of the second.
    """
    rows = np.asarray(op.batch) * np.asarray(op.heads) * op.query_tokens
    scored = gemm_time(cal, gpu, "bf16", rows, op.kv_tokens, op.head_dim)
    return scored.seconds, gemm_time(cal, gpu, "bf16", rows, op.value_head_dim, op.kv_tokens).seconds


def _scan(cal: Calibration, gpu: Gpu, op: Op) -> Vector:
    """A chunked scan by its roofline; no kernel of one was measured."""
    moved = elementwise_time(cal, gpu, op.bytes).seconds
    return np.asarray(np.maximum(moved, np.asarray(op.flop) / gpu.peak("bf16")))


def _full(value: Any, index: NDArray[np.intp] | int) -> Vector:
    """`value` as a vector: as long as given, or its entries at an index."""
    array = np.asarray(value, dtype=np.float64)
    if isinstance(index, int):
        return np.broadcast_to(array.reshape(-1) if array.ndim else array, (index,))
    return array.reshape(-1)[index] if array.size > 1 else np.full(len(index), float(array.reshape(-1)[0]))


def _sum(values: Sequence[Any], size: int) -> Vector:
    """Sum of numbers and arrays, as a vector."""
    total = np.zeros(size)
    for value in values:
        total += value
    return total
