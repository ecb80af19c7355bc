"""The kernels of one layer of a plan as points of a roofline: work, traffic, estimated forward time."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.kernels.attention import attention_prefill
from costmodel.kernels.compute import elementwise_time, gemm_time, grouped_gemm_time
from costmodel.kernels.saved import calibration_for
from costmodel.kernels.tables import Calibration
from costmodel.models.spec import layer_runs
from costmodel.ops.layer import head_ops, layer_ops
from costmodel.ops.op import Op, OpKind
from costmodel.ops.shards import shard_of
from costmodel.stack import stack as find_stack
from planner.plan import Plan
from topology.builders import build
from topology.hardware.gpu import Gpu

NOMINAL_FLOP_PER_BYTE = 0.5
"""Ops that only move data are drawn at one FLOP for every 16-bit element they move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPoint:
    """One operation of a layer on one GPU: its work, its traffic, its estimated time."""

    name: str
    flop: float
    moved_bytes: float
    seconds: float


def op_points(plan: Plan) -> tuple[OpPoint, ...]:
    """Every kernel of the last kind of layer and of the head, on one rank, for one microbatch."""
    request, stack = plan.request, find_stack(plan.request.stack)
    gpu, cal = build(request.cluster).gpu, calibration_for(request.cluster)
    shard = shard_of(plan.layout, request.job.sequence_length)
    kind = layer_runs(request.model)[-1].kind
    ops = (*layer_ops(request.model, kind, request.job, stack, shard), *head_ops(request.model, stack, shard))
    return tuple(
        OpPoint(
            name=op.name.replace("_", " "),
            flop=float(op.flop) or NOMINAL_FLOP_PER_BYTE * float(op.bytes),
            moved_bytes=float(op.bytes),
            seconds=seconds,
        )
        for op in ops
        if (seconds := kernel_seconds(op, gpu, cal)) > 0
    )


def kernel_seconds(op: Op, gpu: Gpu, cal: Calibration) -> float:
    """Estimated seconds of one kernel; 0 for a collective."""
    if op.kind is OpKind.GEMM:
        return float(gemm_time(cal, gpu, op.dtype, op.m, op.n, op.k).seconds)
    if op.kind is OpKind.GROUPED_GEMM:
        return float(grouped_gemm_time(cal, gpu, op.dtype, op.m, op.n, op.k, op.experts).seconds)
    if op.kind in (OpKind.ELEMENTWISE, OpKind.SCORES):
        return float(elementwise_time(cal, gpu, op.bytes).seconds)
    if op.kind is OpKind.ATTENTION:
        return float(
            attention_prefill(
                cal,
                gpu,
                batch=op.batch,
                heads=op.heads,
                kv_heads=op.kv_heads,
                query_tokens=op.query_tokens,
                kv_tokens=op.kv_tokens,
                head_dim=op.head_dim,
                window=op.window if op.windowed_share > 0 else None,
            ).seconds
        )
    return 0.0
