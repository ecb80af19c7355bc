"""Blocks of a traced module as operations of one rank: samples of its microbatch times those of the trace.

Tensor parallelism divides what the trace found to be columns with rows after them, and what lies between;
nothing splits a sample otherwise. Convolutions are priced by the product tables at the shape of their
implicit product, what no table has by its roofline; what is saved is what autograd keeps, or a compiler where
the stack fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from costmodel.models.traced import TracedBlock, TracedKind, TracedOp
from costmodel.ops.op import (
    FLOAT_BYTES,
    HALF_BYTES,
    Op,
    OpKind,
    ShardShape,
    communicate,
    elementwise,
    enter_tensor_parallel,
    gemm,
    leave_tensor_parallel,
)
from costmodel.stack import SoftwareStack
from topology.base.arrays import Quantity

BACKWARD_COPIES = 2  # gradients of input and output, beside what is saved, while a kernel runs backward


def traced_ops(block: TracedBlock, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Operations of one block on one rank; the last holds what the trace saves, and parameters."""
    T = shard.tokens
    ops = tuple(item for op in block.ops for item in _FORMS[op.kind](op, stack, shard))
    parts = (block.saved_bytes, block.cut_saved_bytes, block.token_saved_bytes)
    if stack.timing.fused_elementwise:
        parts = (block.fused_saved_bytes, block.cut_fused_saved_bytes, block.token_fused_saved_bytes)
    products = sum((_output_bytes(op, stack, shard) for op in block.ops), start=0.0)
    state = elementwise(
        "saved",
        traffic_bytes=0.0,
        saved_bytes=T * _on_a_rank(parts, shard),
        parameters=block.parameters - block.cut_parameters * (1 - 1 / shard.tp),
        saved_bytes_op=T * block.input_bytes / shard.sequence_shards + products,
    )
    return (*ops, *_loss_messages(block, stack, shard), state)


def _on_a_rank(parts: tuple[float, float, float], shard: ShardShape) -> Quantity:
    """What a rank has of a size, of which so much is cut, and so much is split by tokens."""
    size, cut, tokens = parts
    return size - cut * (1 - 1 / shard.tp) - tokens * (1 - 1 / shard.sequence_shards)


def _bytes(op: TracedOp, shard: ShardShape) -> Quantity:
    """Bytes that an operation moves on one rank."""
    return shard.tokens * op.bytes * _on_a_rank((1.0, op.cut_share, op.token_share), shard)


def _share(op: TracedOp, shard: ShardShape) -> Quantity:
    """Share of its arithmetic that a rank has."""
    if op.cut == "tokens":
        return 1 / shard.sequence_shards
    return 1 / shard.tp if op.cut else 1.0


def _output_bytes(op: TracedOp, stack: SoftwareStack, shard: ShardShape) -> Quantity:
    """What ``selective-op`` keeps of a product: of rows the sums, and what ranks added where that is kept."""
    if op.kind == "pass":
        return 0.0
    size = shard.tokens * op.output_bytes
    if op.cut == "rows":
        partial = (shard.tp > 1) * shard.sequence_parallel * stack.memory.keeps_partial_sums
        return size * (1 / shard.sequence_shards + partial)
    return size * _share(op, shard)


def _product(op: TracedOp, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """A linear layer; its parameters and saved input are those of the block."""
    del stack
    m, n, k = _sizes(op, shard)
    product = gemm("product", m=m, n=n, k=k, saved_elements=0, output_elements=0)
    return (replace(product, parameters=0.0),)


def _sizes(op: TracedOp, shard: ShardShape) -> tuple[Quantity, Quantity, Quantity]:
    """Rows, columns and contracted width of a product on one rank."""
    tokens = shard.sharded_tokens if op.cut == "tokens" else shard.tokens
    n = op.n / shard.tp if op.cut == "columns" else op.n
    return tokens * op.m, n, op.k / shard.tp if op.cut == "rows" else op.k


def _convolution(op: TracedOp, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """A convolution as its implicit product, whose window is read again from caches."""
    del stack
    m, n, k = _sizes(op, shard)
    size = _bytes(op, shard)
    convolution = Op(
        name="convolution",
        kind=OpKind.CONVOLUTION,
        m=m,
        n=n,
        k=k,
        flop=shard.tokens * op.flop * _share(op, shard),
        bytes=size,
        working_bytes=BACKWARD_COPIES * size,
    )
    return (convolution,)


def _attention(op: TracedOp, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Fused attention; without a causal mask it is twice the pairs of the measured causal kernel."""
    del stack
    heads = _share(op, shard)
    attention = Op(
        name="attention",
        kind=OpKind.ATTENTION,
        batch=shard.tokens * (1 if op.causal else 2),
        heads=op.heads * heads,
        kv_heads=op.kv_heads * heads,
        query_tokens=op.query_tokens,
        kv_tokens=op.kv_tokens,
        head_dim=op.head_dim,
        value_head_dim=op.value_head_dim,
        flop=shard.tokens * op.flop * heads,
        bytes=_bytes(op, shard),
    )
    return (attention,)


def _roofline(op: TracedOp, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Batched and grouped products: the slower of their memory traffic and their arithmetic."""
    del stack
    size = _bytes(op, shard)
    roofline = Op(
        name="roofline",
        kind=OpKind.SCAN,
        flop=shard.tokens * op.flop * _share(op, shard),
        bytes=size,
        working_bytes=BACKWARD_COPIES * size,
    )
    return (roofline,)


def _pass(op: TracedOp, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """All memory-bound work of a block, fused where the stack fuses."""
    size = shard.tokens * op.eager_bytes * _on_a_rank((1.0, op.eager_cut_share, op.eager_token_share), shard)
    if stack.timing.fused_elementwise:
        size = _bytes(op, shard)
    return (elementwise("passes", traffic_bytes=size),)


def _enter(op: TracedOp, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Messages where hidden states enter columns."""
    del stack
    return enter_tensor_parallel("columns", shard, op.bytes / HALF_BYTES)


def _leave(op: TracedOp, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Messages where sums leave rows."""
    del stack
    return leave_tensor_parallel("rows", shard, op.bytes / HALF_BYTES)


def _whole(op: TracedOp, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """What an end has whole that blocks have split by tokens: gathered once, forward or as a gradient."""
    del stack
    split = shard.tokens * op.bytes * (shard.tp > 1) * shard.sequence_parallel
    return (communicate("whole_gather", "all_gather", "tp", split),)


def _loss_messages(block: TracedBlock, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Maximum, then chosen logit and sum of exponentials, of each row of a loss over divided classes."""
    if not (block.loss_rows and stack.timing.vocab_parallel_loss):
        return ()
    message = FLOAT_BYTES * shard.tokens * block.loss_rows * (shard.tp > 1)
    return (
        communicate("loss_maximum", "all_reduce", "tp", message),
        communicate("loss_sums", "all_reduce", "tp", 2 * message),
    )


_FORMS: Mapping[TracedKind, Callable[[TracedOp, SoftwareStack, ShardShape], tuple[Op, ...]]] = {
    "product": _product,
    "convolution": _convolution,
    "attention": _attention,
    "roofline": _roofline,
    "pass": _pass,
    "enter": _enter,
    "leave": _leave,
    "whole": _whole,
}
