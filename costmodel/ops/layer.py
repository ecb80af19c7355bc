"""The per-layer table: every operation with its sizes, FLOPs, bytes, parameters and saved activations.

One rank's share is described: pass a `ShardShape` of degrees (numbers, or arrays of many layouts) and every
field of every `Op` broadcasts. With all degrees 1 the table is the whole layer, and its parameters sum to
`parameters.layer_parameters` exactly.

Legend: ``T`` tokens of a rank, ``H`` hidden size, ``V`` vocabulary, ``S`` sequence length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.kernels.precisions import PRECISIONS
from costmodel.models.attention import AttentionName
from costmodel.models.kinds import model_of_layer, mtp_kind
from costmodel.models.parameters import norms_of
from costmodel.models.spec import LayerKind, ModelSpec, encoder_of, layer_runs, recurrence_of
from costmodel.ops.adapters import adapted
from costmodel.ops.feed_forward import feed_forward_inputs, feed_forward_ops
from costmodel.ops.mixers.attention import attended_pairs, attention_ops, linear_dtype
from costmodel.ops.mixers.compressed_attention import compressed_attention_ops
from costmodel.ops.mixers.recurrence import recurrence_ops
from costmodel.ops.mtp import mtp_ops
from costmodel.ops.op import (
    FLOAT_BYTES,
    HALF_BYTES,
    LINEAR,
    Op,
    OpKind,
    ShardShape,
    communicate,
    elementwise,
    enter_tensor_parallel,
    gemm,
    leave_tensor_parallel,
    repeat,
    repeat_block,
)
from costmodel.ops.passes import autocasts, loss_bytes_moved, norm_op, operand_casts, residual_accesses
from costmodel.ops.streams import first_streams, last_sum, streams_after, streams_before
from costmodel.ops.tower import both_ways, tower_end_ops, tower_shard, untrained_ops
from costmodel.ops.traced import traced_ops
from costmodel.stack import SoftwareStack
from topology.base.arrays import Quantity

__all__ = [
    "Op",
    "ShardShape",
    "attended_pairs",
    "communicate",
    "embedding_ops",
    "forward_flop",
    "head_ops",
    "layer_ops",
    "model_flop_per_step",
    "module_ops",
]


def layer_ops(work: Workload, kind: LayerKind, shard: ShardShape) -> tuple[Op, ...]:
    """Operations of one layer on one rank: its mixer, then its feed-forward, each normed and added."""
    model, job = work.model, work.job
    if model.module and kind.traced is not None:
        return traced_ops(model.module.kinds[kind.traced], work.stack, shard)
    if model.tower and kind.tower:
        seen = tower_shard(model.tower, job, shard)
        encoder = encoder_of(model.tower)
        alike = replace(layer_runs(encoder)[0].kind, tower=True)
        of_tower = replace(work, model=encoder, job=replace(job, adapter=None, document_tokens=None))
        ops = both_ways(_layer_ops(of_tower, alike, seen))
        return ops if job.trains_tower else untrained_ops(ops)
    return _layer_ops(work, kind, shard)


def _layer_ops(work: Workload, kind: LayerKind, shard: ShardShape) -> tuple[Op, ...]:
    """The same of the layers of one transformer."""
    job, stack = work.job, work.stack
    if (alone := model_of_layer(work.model, kind)) is not work.model:
        work = replace(work, model=alone)
    mixer, block = _mixer(work, kind, shard), _feed_forward(work, kind, shard)
    if stack.timing.autocast:
        mixer, block = (_autocast(part, stack) for part in (mixer, block))
    ops = (*mixer, *block)
    if job.is_low_precision and stack.timing.casts_apart:
        ops = tuple(made for op in ops for made in (*operand_casts(op, work, shard), op))
    if stack.memory.keeps_odd_products:
        ops = _keeping_odd_products(ops, compiled=stack.timing.fused_elementwise)
    if job.is_low_precision and stack.memory.keeps_wide_inputs:
        ops = tuple(_keeping_wide_inputs(op) for op in ops)
    if job.adapter is None:
        return ops
    at = len(mixer)
    return (*adapted(ops[:at], "attention", job, stack), *adapted(ops[at:], "mlp", job, stack))


def _autocast(ops: Sequence[Op], stack: SoftwareStack) -> tuple[Op, ...]:
    """The operations of a block under torch.autocast: its first product reads a norm, which is in fp32."""
    first = next((op for op in ops if op.kind in LINEAR), None)
    return tuple(each for op in ops for each in autocasts(op, stack, wide_input=op is first))


def _mixer(work: Workload, kind: LayerKind, shard: ShardShape) -> tuple[Op, ...]:
    """What mixes the tokens of a layer, attention or a recurrence, with norm and residual."""
    model, job, stack = work.model, work.job, work.stack
    if kind.attention == "none":
        return ()
    recurrent = kind.attention == "recurrence"
    trained = job.adapter is None
    norm = norm_op(model, "attention_norm", stack, shard, keeps_layer_input=True, trained=trained)
    mixer = "layernorm" in stack.timing.recomputed_modules and "layernorm" in model.attention.modules
    inner = (
        recurrence_of(model).value_width if recurrent else model.num_attention_heads * model.value_head_dim
    )
    cast = shard.sharded_tokens * model.hidden_size + shard.tokens * inner / shard.tp
    ops = _mixer_ops(model, kind)(work, kind, shard)
    if recurrent and "gdn" in stack.timing.recomputed_modules:
        ops = repeat_block(ops, keeps=next(op.saved_bytes for op in ops if np.any(op.saved_bytes)))
    return (
        *streams_before(model, "attention", shard),
        repeat(norm) if mixer and not recurrent else norm,
        *_cast(work, "attention_cast", cast),
        *ops,
        *_post_norm(model, "attention_post_norm", stack, shard, trained=trained),
        *_residual(model, "attention", stack, shard),
    )


ATTENTIONS: Mapping[AttentionName, Callable[..., tuple[Op, ...]]] = {
    "grouped": attention_ops,
    "latent": attention_ops,
    "compressed": compressed_attention_ops,
}
"""What gives the operations of each kind of attention."""


def _mixer_ops(model: ModelSpec, kind: LayerKind) -> Callable[..., tuple[Op, ...]]:
    """What gives the operations of a mixer between its norm and its residual."""
    return recurrence_ops if kind.attention == "recurrence" else ATTENTIONS[model.attention.name]


def _feed_forward(work: Workload, kind: LayerKind, shard: ShardShape) -> tuple[Op, ...]:
    """The feed-forward block of a layer with norm and residual; the only norm of a layer is its mixer's."""
    model, stack = work.model, work.stack
    if kind.mlp == "none":
        return ()
    alone = kind.attention == "none"
    trained = work.job.adapter is None
    norm = norm_op(model, "mlp_norm", stack, shard, keeps_layer_input=alone, trained=trained)
    norms = (norm,) if alone or norms_of(model, kind) > 1 else ()
    record = model.feed_forward(kind.mlp)
    cast = _cast(work, "mlp_cast", feed_forward_inputs(model, kind, shard))
    block = feed_forward_ops(work, kind, shard)
    return (
        *streams_before(model, "mlp", shard),
        *_repeated(record.repeated_as, stack.timing.recomputed_modules, norms, cast, block),
        *_post_norm(model, "mlp_post_norm", stack, shard, trained=trained),
        *_norms_of_experts(model, stack, shard, trained=trained),
        *_residual(model, "mlp", stack, shard),
    )


def _repeated(
    name: Literal["mlp", "moe"],
    modules: tuple[str, ...],
    norms: tuple[Op, ...],
    cast: tuple[Op, ...],
    block: tuple[Op, ...],
) -> tuple[Op, ...]:
    """Norms, cast and feed-forward, as a block that runs again where that is asked for.

    The norm is fused into the first product of a dense block, and stands alone before experts.
    """
    if name == "mlp":
        whole = (*norms, *cast, *block)
        if "mlp" not in modules:
            return whole
        return repeat_block(whole, keeps=next(op.saved_bytes for op in whole if np.any(op.saved_bytes)))
    if "moe" in modules:
        kept = block[0].saved_bytes_selective
        cast = repeat_block(cast) if cast else ()
        block = repeat_block(block, keeps=kept)
    return (*(map(repeat, norms) if "layernorm" in modules else norms), *cast, *block)


def _keeping_odd_products(ops: Sequence[Op], *, compiled: bool) -> tuple[Op, ...]:
    """The same operations where ``selective-op`` counts the products of a layer and keeps the odd ones.

    Grouped products of experts are no ``aten.mm``: all of them run again. Eager, the last product's result
    waits with the others, though no gradient reads it, as torch's cache holds whatever the policy names; a
    compiler keeps what a gradient reads.

    Source: torchtitan models/llama3/parallelize.py, _op_sac_save_list; torch/utils/checkpoint.py.
    """
    products = [op for op in ops if op.kind is OpKind.GEMM]
    result, before = [], 0
    for op in ops:
        if op.kind in LINEAR:
            kept = 0.0
            if op.kind is OpKind.GEMM and not (compiled and op is products[-1]):
                matrices = max(op.joins, 1)
                kept = ((before + matrices + 1) // 2 - (before + 1) // 2) / matrices
                before += matrices
            result.append(replace(op, saved_bytes_op=kept * op.saved_bytes_op))
        else:
            result.append(op)
    return tuple(result)


def _post_norm(
    model: ModelSpec, name: str, stack: SoftwareStack, shard: ShardShape, *, trained: bool
) -> tuple[Op, ...]:
    """A norm after a block, where a model has one; a third of a layer is after its feed-forward (A.X-K1)."""
    fewer = 2 if name == "mlp_post_norm" else 3
    return (norm_op(model, name, stack, shard, trained=trained),) if model.norms_per_layer > fewer else ()


def _norms_of_experts(
    model: ModelSpec, stack: SoftwareStack, shard: ShardShape, *, trained: bool
) -> tuple[Op, ...]:
    """Norms before and after experts that stand beside a feed-forward (Gemma 4)."""
    further = range(max(model.norms_per_layer - NORMS_OF_BLOCKS, 0))
    return tuple(norm_op(model, f"expert_norm_{i}", stack, shard, trained=trained) for i in further)


NORMS_OF_BLOCKS = 4
"""Before and after attention and the feed-forward."""


def _keeping_wide_inputs(op: Op) -> Op:
    """The same operation; a linear layer keeps its input in sixteen bits, whatever it multiplies in."""
    more = HALF_BYTES / PRECISIONS[op.dtype].activation_bytes
    return replace(
        op, saved_bytes=op.saved_bytes * more, saved_bytes_selective=op.saved_bytes_selective * more
    )


def embedding_ops(work: Workload, shard: ShardShape) -> tuple[Op, ...]:
    """Token embedding of the first stage: a lookup in a vocabulary shard, summed over tp, and its dropout.

    The two ends of a tower are with it. Beside adapters it is frozen, and no gradient comes to it.
    """
    model, stack = work.model, work.stack
    if model.module:
        return traced_ops(model.module.stem, stack, shard)
    T, t, H = shard.tokens, shard.sharded_tokens, model.hidden_size
    lookup = elementwise(
        "embedding",
        traffic_bytes=2 * HALF_BYTES * T * H,
        saved_bytes=t * H * stack.timing.dropout,
        parameters=model.vocab_size * H / shard.tp + model.learned_positions * H,
    )
    tower = tower_end_ops(model.tower, work.job, stack, shard) if model.tower else ()
    left = leave_tensor_parallel("embedding", shard, H)
    if work.job.adapter is not None:
        left = tuple(op for op in left if op.phase == "forward")
    return (lookup, *left, *first_streams(model, shard), *tower)


def head_dtype(job: TrainingJob, stack: SoftwareStack) -> str:
    """What the head multiplies in: sixteen bits, or the eight of the layers where the engine is told so.

    Source: megatron-core 0.19.2 ``mxfp8_output_proj.py``, for MXFP8 alone.
    """
    return linear_dtype(job) if stack.timing.narrow_head and job.precision == "mxfp8" else "bf16"


def head_ops(
    model: ModelSpec, stack: SoftwareStack, shard: ShardShape, dtype: str = "bf16"
) -> tuple[Op, ...]:
    """Final norm, output projection on a vocabulary shard, and fp32 loss of the last stage.

    The projection of a tied model has no parameters of its own here. In eight bits its input is cast too.
    """
    if model.module:
        return traced_ops(model.module.head, stack, shard)
    T, H = shard.tokens, model.hidden_size
    logits = T * model.vocab_size / shard.tp
    projection = gemm(
        "head",
        m=T,
        n=model.vocab_size / shard.tp,
        k=H,
        dtype=dtype,
        saved_elements=shard.sharded_tokens * H,
        output_elements=0,
    )
    cast = elementwise("head_cast", traffic_bytes=4 * T * H)
    loss = elementwise(
        "loss", traffic_bytes=logits * loss_bytes_moved(stack), saved_bytes=FLOAT_BYTES * logits
    )
    if model.tie_word_embeddings:
        projection = replace(projection, parameters=0.0)
    products = autocasts(projection, stack, wide_input=True) if stack.timing.autocast else (projection,)
    return (
        *last_sum(model, shard),
        norm_op(model, "final_norm", stack, shard),
        *enter_tensor_parallel("head", shard, H),
        *([] if dtype == "bf16" else [cast]),
        *products,
        loss,
        *_loss_reductions(stack, shard),
    )


def _loss_reductions(stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Maximum, then chosen logit and sum of exponentials, of each token over the vocabulary's shards."""
    if not stack.timing.vocab_parallel_loss:
        return ()
    message = FLOAT_BYTES * shard.tokens * (shard.tp > 1)
    return (
        communicate("loss_maximum", "all_reduce", "tp", message),
        communicate("loss_sums", "all_reduce", "tp", 2 * message),
    )


def module_ops(work: Workload, shard: ShardShape) -> tuple[Op, ...]:
    """A module that predicts one further token, without its product with the head and its loss."""
    return mtp_ops(work, layer_ops(work, mtp_kind(work.model), shard), shard)


def forward_flop(ops: Sequence[Op]) -> Quantity:
    """Floating-point operations of the forward pass of these operations on one rank."""
    return sum((op.flop for op in ops), start=0.0)


def _frozen_flop(ops: Sequence[Op]) -> Quantity:
    """Operations of the gradients that are not computed: of frozen weights, and of what nothing is before."""
    weights = sum(
        (op.flop for op in ops if op.frozen and not op.forward_only and op.kind in LINEAR), start=0.0
    )
    return weights + sum((2 * op.flop for op in ops if op.forward_only), start=0.0)


def model_flop_per_step(model: ModelSpec, job: TrainingJob) -> float:
    """Model FLOPs of one training step: 3 × forward, causal attention counted once, nothing recomputed.

    flop = 3·tokens·(2·matmul parameters active per token) + 3·attention, attention = 2·a·(d_qk + d_v)·pairs a
    layer and sequence, pairs = S²/2 (or the window's). Embedding lookups are free; the head counts, and once
    more with every module that predicts a further token (Megatron's ``num_floating_point_operations``).
    The palm-style convention (arXiv 2204.02311 appendix B) counts pairs = S² instead. Products with frozen
    weights have no weight gradient and count twice.

    >>> from costmodel.models.catalog import model
    >>> job = TrainingJob(sequence_length=8192, global_batch_size=1)
    >>> round(model_flop_per_step(model("llama-3.1-8b"), job) / (6 * 8030261248 * 8192), 3)
    1.068
    """
    from costmodel.stack import stack

    shard = ShardShape(sequence_length=float(job.sequence_length))
    ideal = stack("ideal")
    work = Workload(model=model, job=job, stack=ideal)
    layers = [(run.count, layer_ops(work, run.kind, shard)) for run in layer_runs(model)]
    head = adapted(head_ops(model, ideal, shard), None, job, ideal)
    if job.mtp_layers:
        layers.append((job.mtp_layers, (*module_ops(work, shard), *head)))
    first = adapted(embedding_ops(work, shard), None, job, ideal) if model.tower else ()
    forward = sum(count * forward_flop(ops) for count, ops in layers) + forward_flop((*first, *head))
    spared = sum(count * _frozen_flop(ops) for count, ops in layers) + _frozen_flop((*first, *head))
    return float(job.global_batch_size * (3 * forward - spared))


def _residual(model: ModelSpec, block: str, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Addition to the residual stream: 2 reads, 1 write, and with dropout a one-byte mask that is kept."""
    if model.residual_streams > 1:
        return streams_after(model, block, shard)
    elements = shard.sharded_tokens * model.hidden_size
    added = elementwise(
        f"{block}_residual",
        traffic_bytes=(residual_accesses(stack) * HALF_BYTES + stack.timing.dropout) * elements,
        saved_bytes=elements * stack.timing.dropout,
    )
    return (added,)


def _cast(work: Workload, name: str, elements: Quantity) -> tuple[Op, ...]:
    """Quantisation of a block's inputs to eight bits: read two bytes, write the value and its transpose.

    Args:
        work: What is computed.
        name: Of the operation.
        elements: Numbers that go into the first and the last linear of the block.
    """
    if not work.job.is_low_precision or work.stack.timing.casts_apart:
        return ()
    return (elementwise(name, traffic_bytes=4 * elements, count=2),)
