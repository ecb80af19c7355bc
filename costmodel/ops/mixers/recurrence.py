"""A recurrent token mixer as operations: projections, short convolution, chunked scan, gated norm.

Legend: ``T`` tokens of a rank, ``H`` hidden size, ``h·p`` width of the values, ``C`` tokens of a chunk.
"""

from __future__ import annotations

import functools

import numpy as np

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.models.recurrence import RECURRENCES
from costmodel.models.spec import LayerKind, ModelSpec, recurrence_of
from costmodel.ops.mixers.attention import linear_dtype
from costmodel.ops.op import (
    FLOAT_BYTES,
    HALF_BYTES,
    Cover,
    Op,
    OpKind,
    ShardShape,
    communicate,
    elementwise,
    enter_tensor_parallel,
    gemm,
    leave_tensor_parallel,
    reduced_elements,
)
from costmodel.stack import SoftwareStack
from topology.base.arrays import Quantity


def recurrence_ops(work: Workload, kind: LayerKind, shard: ShardShape) -> tuple[Op, ...]:
    """Give the mixer from the normed input to the summed output; ranks of tp split its heads."""
    model, stack = work.model, work.stack
    del kind
    T, H, tp = shard.tokens, model.hidden_size, shard.tp
    width = recurrence_of(model).value_width / tp
    output = gemm(
        "recurrence_output",
        m=T,
        n=H,
        k=width,
        dtype=linear_dtype(work.job),
        saved_elements=T * width,
        output_elements=reduced_elements(shard, H, keeps_partial_sums=stack.memory.keeps_partial_sums),
    )
    return (
        *enter_tensor_parallel("recurrence", shard, H),
        *_projections(model, work.job, shard),
        *_to_heads(model, shard),
        _convolution(model, stack, shard),
        _scan(model, shard),
        _gated_norm(model, stack, shard),
        *_to_tokens(model, shard),
        output,
        *leave_tensor_parallel("recurrence", shard, H),
    )


def _projections(model: ModelSpec, job: TrainingJob, shard: ShardShape) -> tuple[Op, ...]:
    """All projections of the input as one product, and gates of low rank, whole into their rank."""
    T, H, s = shard.tokens, model.hidden_size, recurrence_of(model).shape
    dtype = linear_dtype(job)
    low_rank = tuple(
        op
        for rank, width in zip(s.gate_ranks, s.gate_widths, strict=True)
        for op in (
            gemm("gate_down", m=T, n=rank, k=H, dtype=dtype, saved_elements=0),
            gemm("gate_up", m=T, n=width / shard.tp, k=rank, dtype=dtype, saved_elements=T * rank),
        )
    )
    split = gemm(
        "recurrence_input",
        m=T,
        n=s.input_width / shard.tp,
        k=H,
        dtype=dtype,
        saved_elements=shard.sharded_tokens * H,
    )
    return (split, *low_rank)


def _to_heads(model: ModelSpec, shard: ShardShape) -> tuple[Op, ...]:
    """Every context rank gets its heads of the whole sequence: what was projected, as all-to-alls.

    Where more ranks divide the heads than there are groups, keys and queries of a group are sent to each.

    The state goes through a sequence in order, so ranks first undo the balanced order of their tokens, and
    pack heads by rank: two copies, each read and written (megatron-core 0.19.2 `tensor_a2a_cp2hp`).
    """
    r = recurrence_of(model)
    kind = RECURRENCES[r.kind]
    copies = np.maximum(shard.tp * shard.cp / r.key_heads, 1) if kind.repeats_groups else 1
    width = (r.shape.input_width + sum(r.shape.gate_widths) + 2 * r.key_width * (copies - 1)) / shard.tp
    return _swap("recurrence_heads", HALF_BYTES * shard.tokens * width, shard, kind.context_messages)


def _to_tokens(model: ModelSpec, shard: ShardShape) -> tuple[Op, ...]:
    """And back: the output, its heads for the rank's own tokens (`tensor_a2a_hp2cp`)."""
    width = recurrence_of(model).value_width / shard.tp
    return _swap("recurrence_tokens", HALF_BYTES * shard.tokens * width, shard, 1)


def _swap(name: str, size: Quantity, shard: ShardShape, messages: int) -> tuple[Op, ...]:
    """An all-to-all over the context ranks and its copies, forward and backward; nothing on one rank."""
    split = shard.cp > 1
    swap = functools.partial(
        communicate, collective="all_to_all", axis="cp", count=messages, cover=Cover.NOTHING
    )
    return (
        elementwise(f"{name}_order", traffic_bytes=SWAP_COPIES * 2 * size * split, saved_bytes=0),
        swap(name, size_bytes=size * split),
        swap(f"{name}_gradient", size_bytes=size * split, phase="backward"),
    )


SWAP_COPIES = 2
"""Around an exchange: tokens into their order, heads packed by rank."""


def _convolution(model: ModelSpec, stack: SoftwareStack, shard: ShardShape) -> Op:
    """Short causal convolution and activation of keys, queries and values: keeps all that was projected.

    Without one (Lightning attention) it is the activation alone. What gates the output is among it.
    """
    r, T, tp = recurrence_of(model), shard.tokens, shard.tp
    s = r.shape
    channels = (s.conv_width or s.input_width) / tp
    accesses = 2 if stack.timing.fused_elementwise else 4
    return elementwise(
        "short_convolution",
        traffic_bytes=accesses * HALF_BYTES * T * channels,
        saved_bytes=HALF_BYTES * T * (s.input_width + sum(s.gate_widths)) / tp,
        parameters=s.conv_width * (r.conv_kernel + s.conv_bias) * (r.conv_kernel > 0) / tp,
    )


def _scan(model: ModelSpec, shard: ShardShape) -> Op:
    """The recurrence over chunks; its output is kept by the norm after it.

    Its backward makes the states of all chunks again, and holds their gradients and those of its inputs.
    """
    r, T, tp = recurrence_of(model), shard.tokens, shard.tp
    scan, s = r.scan, r.shape
    states = 2 * FLOAT_BYTES * r.state_numbers / r.chunk
    gradients = HALF_BYTES * (2 * r.key_width + 2 * r.value_width)
    return Op(
        name="scan",
        kind=OpKind.SCAN,
        flop=T * scan.flop / tp,
        bytes=T * scan.moved_bytes / tp,
        parameters=(s.split_parameters - _norm_width(model)) / tp,
        saved_bytes=T * scan.saved_bytes / tp,
        saved_bytes_selective=T * scan.saved_bytes / tp,
        saved_bytes_op=HALF_BYTES * T * r.value_width / tp,
        working_bytes=T * (states + gradients) / tp,
    )


def _norm_width(model: ModelSpec) -> int:
    """Weights of a norm over all heads; a norm of one head is whole on every rank."""
    r = recurrence_of(model)
    return 0 if r.shape.whole_parameters else r.value_width


def _gated_norm(model: ModelSpec, stack: SoftwareStack, shard: ShardShape) -> Op:
    """Norm of the output times its gate: reads both, writes one, keeps the output of the scan."""
    r, T, tp = recurrence_of(model), shard.tokens, shard.tp
    size = HALF_BYTES * T * r.value_width / tp
    return elementwise(
        "recurrence_norm",
        traffic_bytes=size * (3 if stack.timing.fused_elementwise else 7),
        saved_bytes=size,
        parameters=_norm_width(model) / tp + r.shape.whole_parameters,
    )
