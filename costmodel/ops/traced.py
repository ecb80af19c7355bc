"""Blocks of a traced module as operations of one rank: samples of its microbatch times those of the trace.

No axis but the batch splits them: tensor, context and expert parallelism would need the meaning of each
weight. Convolutions are priced by the product tables at the shape of their implicit product, what
no table has by its roofline; what is saved is what autograd keeps, or a compiler where the stack fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from costmodel.layout import Quantity
from costmodel.models.traced import TracedBlock, TracedKind, TracedOp
from costmodel.ops.op import Op, OpKind, ShardShape, elementwise, gemm
from costmodel.stack import SoftwareStack

BACKWARD_COPIES = 2  # gradients of input and output, beside what is saved, while a kernel runs backward


def traced_ops(block: TracedBlock, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Operations of one block on one rank; the last holds what the trace saves, and parameters."""
    T = shard.tokens
    ops = tuple(_FORMS[op.kind](op, stack, T) for op in block.ops)
    kept = T * (block.fused_saved_bytes if stack.timing.fused_elementwise else block.saved_bytes)
    products = T * (block.input_bytes + sum(op.output_bytes for op in block.ops if op.kind != "pass"))
    state = elementwise(
        "saved", traffic_bytes=0.0, saved_bytes=kept, parameters=block.parameters, saved_bytes_op=products
    )
    return (*ops, state)


def _product(op: TracedOp, stack: SoftwareStack, T: Quantity) -> Op:
    """A linear layer; its parameters and saved input are those of the block."""
    del stack
    one = gemm("product", m=T * op.m, n=op.n, k=op.k, saved_elements=0, output_elements=0)
    return replace(one, parameters=0.0)


def _convolution(op: TracedOp, stack: SoftwareStack, T: Quantity) -> Op:
    """A convolution as its implicit product, whose window is read again from caches."""
    del stack
    size = BACKWARD_COPIES * T * op.bytes
    return Op(
        name="convolution",
        kind=OpKind.CONVOLUTION,
        m=T * op.m,
        n=op.n,
        k=op.k,
        flop=T * op.flop,
        bytes=T * op.bytes,
        working_bytes=size,
    )


def _attention(op: TracedOp, stack: SoftwareStack, T: Quantity) -> Op:
    """Fused attention; without a causal mask it is twice the pairs of the measured causal kernel."""
    del stack
    return Op(
        name="attention",
        kind=OpKind.ATTENTION,
        batch=T * (1 if op.causal else 2),
        heads=op.heads,
        kv_heads=op.kv_heads,
        query_tokens=op.query_tokens,
        kv_tokens=op.kv_tokens,
        head_dim=op.head_dim,
        value_head_dim=op.value_head_dim,
        flop=T * op.flop,
        bytes=T * op.bytes,
    )


def _roofline(op: TracedOp, stack: SoftwareStack, T: Quantity) -> Op:
    """Batched and grouped products: the slower of their memory traffic and their arithmetic."""
    del stack
    return Op(
        name="roofline",
        kind=OpKind.SCAN,
        flop=T * op.flop,
        bytes=T * op.bytes,
        working_bytes=BACKWARD_COPIES * T * op.bytes,
    )


def _pass(op: TracedOp, stack: SoftwareStack, T: Quantity) -> Op:
    """All memory-bound work of a block, fused where the stack fuses."""
    return elementwise(
        "passes", traffic_bytes=T * (op.bytes if stack.timing.fused_elementwise else op.eager_bytes)
    )


_FORMS: Mapping[TracedKind, Callable[[TracedOp, SoftwareStack, Quantity], Op]] = {
    "product": _product,
    "convolution": _convolution,
    "attention": _attention,
    "roofline": _roofline,
    "pass": _pass,
}
