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
from costmodel.ops.op import HALF_BYTES, LINEAR, Op, OpKind, ShardShape, elementwise, norm_saved_bytes
from costmodel.stack import SoftwareStack

FUSED = 2  # one read, one write
COPIED = 4  # through a copy
SUMMED = 3  # two reads, one write
NORM_CHAIN = 18
"""To fp32 3, square 4, mean 2, times the inverse root 4, to sixteen bits 3, times the weight 2."""
ROTARY_CHAIN = 10
"""Times the cosine 2, the half negated 1, both halves joined 2, times the sine 2, their sum 3."""
WIDE_NORM_CHAIN = 14
"""Of an input in fp32, which stays so: square 4, mean 2, times the inverse root 4, times the weight 4."""
WIDE_NORM = 4
"""One kernel that reads and writes fp32."""
NARROWING_NORM = 3
"""One kernel that reads fp32 and writes what a product reads."""
SUM_IN_FP32 = 5
"""The residual stream read and written in fp32, and what a block adds to it in sixteen bits."""
AUTOCAST_BYTES = 6
"""A number read in fp32 and written in sixteen bits, or back."""
FUSED_SCORE_BYTES = 4
"""Of a score: scaled, masked and normalised by one kernel."""
AUTOCAST_SCORE_BYTES = 20
"""Scaled 4, masked 4, softmax to fp32 6, to sixteen bits 6, since torch.autocast keeps softmax in fp32."""
KEPT_AUTOCAST_SCORE_BYTES = 6
"""Its softmax in fp32, and in sixteen bits for the product."""
LOSS_CHAIN_BYTES = 14
"""Logits read in sixteen bits and written in fp32, read again, their logarithms written."""
UNCOUNTED_LOSS_BACKWARD = 1.4
"""Bytes backward over those forward of a loss that nobody counted: 14 for 10 of Megatron's, whose softmax is
multiplied by its gradient 8 and cast to sixteen bits 6."""
LOSS_HELD_BYTES = 14
"""A logit in sixteen bits, and three of fp32."""
CAST_BYTES = 5
"""An operand read in sixteen bits for its largest values, read again, and written in eight; a block of one
scale is read once."""
TRANSPOSE_BYTES = 2
"""One of eight bits read and written along its other axis."""


def norm_accesses(model: ModelSpec, stack: SoftwareStack) -> int:
    """Accesses of one norm.

    Source: transformers models/llama/modeling_llama.py, LlamaRMSNorm.forward: six kernels over the whole.
    A layer norm is one kernel of torch there (torch.nn.LayerNorm). torch.autocast leaves both in fp32
    (torch/csrc docs amp.rst, ops that autocast to float32), and a compiler writes what the product reads.
    """
    if stack.timing.autocast:
        chain = WIDE_NORM_CHAIN if model.norm.startswith("rms") else WIDE_NORM
        return NARROWING_NORM if stack.timing.fused_elementwise else chain
    if stack.timing.chained_modules:
        return NORM_CHAIN if model.norm.startswith("rms") else FUSED
    return FUSED if stack.timing.fused_elementwise or stack.timing.fused_norms else COPIED


def rotary_accesses(stack: SoftwareStack) -> int:
    """Accesses of rotary positions of queries or keys.

    Source: transformers models/llama/modeling_llama.py, apply_rotary_pos_emb and rotate_half.
    """
    if stack.timing.chained_modules or autocasts_apart(stack):
        return ROTARY_CHAIN
    return FUSED if stack.timing.fused_elementwise or stack.timing.fused_norms else COPIED


def loss_bytes_moved(stack: SoftwareStack) -> float:
    """Bytes that the loss of one logit reads and writes forward; of a loss counted both ways its own.

    Source: transformers loss/loss_utils.py, ForCausalLMLoss: logits to fp32, then torch's cross entropy.
    """
    counted = stack.timing.loss_backward_bytes > 0
    chained = not counted and (stack.timing.chained_modules or autocasts_apart(stack))
    return LOSS_CHAIN_BYTES if chained else stack.timing.loss_forward_bytes


def loss_bytes_held(stack: SoftwareStack) -> float:
    """Bytes alive per logit at the peak of the loss.

    Under torch.autocast as in a chain that casts logits to fp32: they, their copy, its logarithms or their
    gradient, and the gradient of the copy, of which three in fp32 at once.
    """
    held = stack.memory.loss_bytes_per_logit
    return max(held, LOSS_HELD_BYTES) if autocasts_apart(stack) else held


def autocasts_apart(stack: SoftwareStack) -> bool:
    """Whether casts of torch.autocast are kernels that no compiler joins with those beside them."""
    return stack.timing.autocast and not stack.timing.fused_elementwise


def residual_accesses(stack: SoftwareStack) -> int:
    """Accesses of the addition to the residual stream: 2 reads, 1 write."""
    return SUM_IN_FP32 if stack.timing.autocast else SUMMED


def score_bytes(stack: SoftwareStack) -> float:
    """Bytes read and written per score of unfused attention between its two products, forward."""
    return AUTOCAST_SCORE_BYTES if autocasts_apart(stack) else stack.timing.score_bytes


def kept_score_bytes(stack: SoftwareStack) -> float:
    """Bytes per score of unfused attention that its backward needs, without dropout.

    A compiler fuses the passes between them and keeps a softmax in fp32 beside its cast all the same.
    """
    return KEPT_AUTOCAST_SCORE_BYTES if stack.timing.autocast else stack.memory.kept_score_bytes


def autocasts(op: Op, stack: SoftwareStack, *, wide_input: bool) -> tuple[Op, ...]:
    """A product under torch.autocast with the casts of its operands, and what it keeps of them.

    Its weights are cast forward, kept in sixteen bits for the gradient of its input, and their gradient is
    cast back; an input in fp32 likewise, once for every matrix that reads it, unless a compiler writes it so.

    Source: pytorch/pytorch aten/src/ATen/autocast_mode.cpp: cached_cast, of leaves alone.
    """
    if op.kind not in LINEAR or op.frozen:
        return (op,)
    weights = op.n * op.k * np.maximum(op.experts, 1)
    inputs = max(op.joins, 1) * op.m * op.k * (wide_input and not stack.timing.fused_elementwise)
    cast = Op(name=f"{op.name}_cast", kind=OpKind.CAST, bytes=AUTOCAST_BYTES * (weights + inputs))
    copies = HALF_BYTES * weights
    kept = replace(
        op,
        saved_bytes=op.saved_bytes + copies,
        saved_bytes_selective=op.saved_bytes_selective + copies,
        saved_bytes_op=op.saved_bytes_op + copies,
    )
    return (cast, kept, replace(cast, name=f"{op.name}_gradient_cast", phase="backward"))


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
        saved_bytes=norm_saved_bytes(
            size, wide=stack.memory.keeps_wide_norms or stack.timing.autocast, trained=trained
        ),
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
