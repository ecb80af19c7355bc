"""Accesses of memory-bound work: how often a norm, rotary positions and a loss read or write an activation.

An access is one read or one write of the tensor in sixteen bits; in fp32 it is two. Stacks are of three
kinds: fused (one kernel reads and writes), eager around an fp32 copy, and chains of torch's operations.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.case import Workload
from costmodel.kernels.precisions import PRECISIONS, TRAINING
from costmodel.models.parameters import norm_parameters
from costmodel.models.spec import ModelSpec
from costmodel.ops.op import HALF_BYTES, Op, OpKind, ShardShape, elementwise, norm_saved_bytes
from costmodel.stack import SoftwareStack

FUSED = 2  # one read, one write
COPIED = 4  # through a copy
NORM_CHAIN = 18
"""To fp32 3, square 4, mean 2, times the inverse root 4, to sixteen bits 3, times the weight 2."""
ROTARY_CHAIN = 10
"""Times the cosine 2, the half negated 1, both halves joined 2, times the sine 2, their sum 3."""
LOSS_CHAIN_BYTES = 14
"""Logits read in sixteen bits and written in fp32, read again, their logarithms written."""
CAST_BYTES = 5
"""An operand read in sixteen bits for its largest values, read again, and written in eight; a block of one
scale is read once."""
TRANSPOSE_BYTES = 2
"""One of eight bits read and written along its other axis."""


def norm_accesses(model: ModelSpec, stack: SoftwareStack) -> int:
    """Accesses of one norm.

    Source: transformers models/llama/modeling_llama.py, LlamaRMSNorm.forward: six kernels over the whole.
    A layer norm is one kernel of torch there (torch.nn.LayerNorm).
    """
    if stack.timing.chained_modules:
        return NORM_CHAIN if model.norm.startswith("rms") else FUSED
    return FUSED if stack.timing.fused_elementwise else COPIED


def rotary_accesses(stack: SoftwareStack) -> int:
    """Accesses of rotary positions of queries or keys.

    Source: transformers models/llama/modeling_llama.py, apply_rotary_pos_emb and rotate_half.
    """
    if stack.timing.chained_modules:
        return ROTARY_CHAIN
    return FUSED if stack.timing.fused_elementwise else COPIED


def loss_bytes_moved(stack: SoftwareStack) -> float:
    """Bytes that the loss of one logit reads and writes forward.

    Source: transformers loss/loss_utils.py, ForCausalLMLoss: logits to fp32, then torch's cross entropy.
    """
    return LOSS_CHAIN_BYTES if stack.timing.chained_modules else stack.timing.loss_forward_bytes


def norm_op(
    model: ModelSpec,
    name: str,
    stack: SoftwareStack,
    shard: ShardShape,
    *,
    keeps_layer_input: bool = False,
    trained: bool = True,
) -> Op:
    """Give a norm over the hidden size: reads, writes, keeps its input (unfused: through an fp32 copy)."""
    size = HALF_BYTES * shard.sharded_tokens * model.hidden_size
    return elementwise(
        name,
        traffic_bytes=size * norm_accesses(model, stack),
        saved_bytes=norm_saved_bytes(size, wide=stack.memory.keeps_wide_norms, trained=trained),
        saved_bytes_op=size if keeps_layer_input else 0,
        parameters=norm_parameters(model, model.hidden_size),
    )


def operand_casts(op: Op, work: Workload, shard: ShardShape) -> tuple[Op, ...]:
    """Quantisation of the operands of a linear layer, by kernels of their own; all are cast again backward.

    Scaled by rows or blocks, each of the three products casts both of its operands along the axis that it
    sums: m·k of the input and n·k of the weights forward; m·n of the gradient twice, n·k and m·k backward.
    Under one scale an operand is cast once a pass, before it is gathered over the sequence, and transposed in
    eight bits for the second product.

    Source: pytorch/ao float8/float8_linear.py, matmul_with_hp_or_float8_args, and float8_tensor_parallel.py.
    """
    if op.kind is not OpKind.GEMM or PRECISIONS[op.dtype].activation_bytes >= HALF_BYTES:
        return ()
    blocks = TRAINING[work.job.precision].trait == "mxfp8"
    each = CAST_BYTES - HALF_BYTES * blocks
    inputs, weights, gradients = op.m * op.k, op.n * op.k, op.m * op.n
    if blocks or work.stack.timing.scales_rows:
        forward = each * (inputs + weights)
        backward = forward + 2 * each * gradients
    else:
        gathered = [np.equal(width, work.model.hidden_size) for width in (op.k, op.n)]
        of_input, of_gradient = (np.where(x, shard.sharded_tokens / shard.tokens, 1.0) for x in gathered)
        forward = each * (inputs * of_input + weights)
        turned = TRANSPOSE_BYTES * (inputs + weights + gradients)
        backward = forward + each * gradients * of_gradient + turned
    cast = Op(name=f"{op.name}_cast", kind=OpKind.CAST, bytes=forward)
    return (cast, replace(cast, name=f"{op.name}_gradient_cast", bytes=backward, phase="backward"))
