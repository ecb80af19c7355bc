"""The kernels of a plan as points of a roofline: work, traffic, estimated time, and how many calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from costmodel.case import Workload
from costmodel.kernels.attention import attention_prefill
from costmodel.kernels.compute import elementwise_time, gemm_time, grouped_gemm_time
from costmodel.kernels.saved import calibration_for
from costmodel.kernels.tables import Calibration
from costmodel.models.kinds import kind_title
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
    """One operation on one GPU: its work, its traffic, its estimated time, each of one call.

    `calls` is how often the whole model makes it for one microbatch: once for every layer of its kind.
    """

    name: str
    flop: float
    moved_bytes: float
    seconds: float
    calls: int = 1

    @property
    def total_s(self) -> float:
        """Seconds of all its calls."""
        return self.seconds * self.calls


def op_points(plan: Plan) -> tuple[OpPoint, ...]:
    """Every kernel of every kind of layer and of the head, on one rank, for one microbatch.

    Kernels of unlike layers (dense ones before experts, hybrids) are named by their kind.
    """
    request, stack = plan.request, find_stack(plan.request.stack)
    gpu, cal = build(request.cluster).gpu, calibration_for(request.cluster)
    shard = shard_of(plan.layout, request.job.sequence_length)
    runs = layer_runs(request.model)
    result: list[OpPoint] = []
    for run in runs:
        ops = layer_ops(Workload(model=request.model, job=request.job, stack=stack), run.kind, shard)
        where = f", {kind_title(request.model, run.kind)}" if len(runs) > 1 else ""
        result += _points(ops, gpu, cal, calls=run.count, where=where)
    return (*result, *_points(head_ops(request.model, stack, shard), gpu, cal, calls=1, where=""))


def _points(ops: Iterable[Op], gpu: Gpu, cal: Calibration, *, calls: int, where: str) -> Iterator[OpPoint]:
    """Kernels that take time, as points."""
    for op in ops:
        seconds = kernel_seconds(op, gpu, cal)
        if seconds > 0:
            yield OpPoint(
                name=op.name.replace("_", " ") + where,
                flop=float(op.flop) or NOMINAL_FLOP_PER_BYTE * float(op.bytes),
                moved_bytes=float(op.bytes),
                seconds=seconds,
                calls=calls,
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
