"""Attention to compressed keys as operations: projections, entries, the indexer, the core, grouped outputs.

No kernel of it is in the measured tables: the core is priced as fused attention of that many pairs, the rest
as products and passes. Sequences are whole on a rank (`planner.rules.shapes`).

Legend: ``T`` tokens of a rank, ``S`` sequence length, ``H`` hidden size, ``a`` query heads, ``d`` head size,
``q`` query rank, ``g`` groups of outputs, ``o`` the rank of each.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.models.compressed_attention import CompressedAttention, CompressedReach, reach_of
from costmodel.models.spec import LayerKind, ModelSpec
from costmodel.ops.mixers.attention import attended_pairs, linear_dtype
from costmodel.ops.op import (
    FLOAT_BYTES,
    HALF_BYTES,
    Op,
    OpKind,
    ShardShape,
    drop_input,
    elementwise,
    enter_tensor_parallel,
    gemm,
    leave_tensor_parallel,
    reduced_elements,
    repeat,
)
from costmodel.ops.passes import FUSED, rotary_accesses
from costmodel.stack import SoftwareStack
from topology.base.arrays import Quantity

TURNED = 3  # queries, the key, and the outputs turned back


def compressed_attention_ops(work: Workload, kind: LayerKind, shard: ShardShape) -> tuple[Op, ...]:
    """Give the mixer from the normed input to the summed output; ranks of tp split heads and their groups."""
    model, job, stack = work.model, work.job, work.stack
    attention, reach = model.attention, reach_of(kind.attention)
    if not isinstance(attention, CompressedAttention):
        raise TypeError(f"{model.name} has no compressed attention")
    return (
        *enter_tensor_parallel("attention", shard, model.hidden_size),
        *_projections(attention, job, stack, shard),
        *_entries(attention, reach, job, stack, shard),
        *_indexer(model, attention, reach, job, shard),
        _core(model, attention, reach, stack, shard),
        *_outputs(work, attention, shard),
        *leave_tensor_parallel("attention", shard, model.hidden_size),
    )


def seen_pairs(model: ModelSpec, reach: CompressedReach, sequence_length: Quantity) -> Quantity:
    """Query–key pairs of one head over one sequence: tokens of the window, and entries before the query.

    An entry of m tokens is there for the queries after it: S²/(2·m) pairs, of a sparse layer at most
    `index_topk` a query.
    """
    S, c = sequence_length, model.compression
    window = attended_pairs(S, model.sliding_window)
    if c is None or reach == "window":
        return window
    if reach == "heavy":
        return window + attended_pairs(S) / c.heavy_rate
    return window + attended_pairs(S, model.index_topk * c.sparse_rate) / c.sparse_rate


def _projections(
    attention: CompressedAttention, job: TrainingJob, stack: SoftwareStack, shard: ShardShape
) -> tuple[Op, ...]:
    """Queries through their rank, the one key, their norms and positions; those down are whole on a rank."""
    T, t, H = shard.tokens, shard.sharded_tokens, attention.hidden_size
    rows = T if stack.timing.gathers_before_latent else t
    q, d, dtype = attention.query_rank, attention.head_dim, linear_dtype(job)
    width = attention.num_attention_heads * d / shard.tp
    turned = HALF_BYTES * T * (TURNED - 1) * width
    down = gemm("query_key_down", m=rows, n=q + d, k=H, dtype=dtype, saved_elements=t * H)
    norms = elementwise(
        "query_key_norm",
        traffic_bytes=2 * FUSED * rows * (q + d),
        saved_bytes=HALF_BYTES * rows * (q + d),
        parameters=q + d,
        count=2,
    )
    up = gemm("query_up", m=T, n=width, k=q, dtype=dtype, saved_elements=rows * q)
    head_norm = elementwise(
        "query_head_norm", traffic_bytes=FUSED * HALF_BYTES * T * width, saved_bytes=HALF_BYTES * T * width
    )
    rotary = elementwise("rotary", traffic_bytes=rotary_accesses(stack) * turned, count=TURNED)
    if "layernorm" in stack.timing.recomputed_modules:
        down = drop_input(down)
    if "mla_up_proj" in stack.timing.recomputed_modules:
        norms, up = repeat(norms), repeat(drop_input(up))
        head_norm, rotary = repeat(head_norm), repeat(rotary)
    return (down, norms, up, head_norm, rotary)


def _entries(
    attention: CompressedAttention,
    reach: CompressedReach,
    job: TrainingJob,
    stack: SoftwareStack,
    shard: ShardShape,
) -> tuple[Op, ...]:
    """What makes entries: products of the input, whole on every rank, and their weighted sums over tokens."""
    if reach == "window":
        return ()
    t, H = shard.sharded_tokens, attention.hidden_size
    rows = shard.tokens if stack.timing.gathers_before_latent else t
    numbers = attention.entry_products(reach)
    made = gemm("entry_products", m=rows, n=numbers, k=H, dtype=linear_dtype(job), saved_elements=0)
    before = HALF_BYTES * rows * numbers  # read once, kept for the gradient of weights and of what is summed
    rest = attention.compressor_parameters(reach) - H * numbers
    rest -= attention.query_rank * attention.index_heads * attention.index_head_dim * (reach == "sparse")
    return (made, elementwise("entries", traffic_bytes=before, saved_bytes=before, parameters=rest))


def _indexer(
    model: ModelSpec,
    attention: CompressedAttention,
    reach: CompressedReach,
    job: TrainingJob,
    shard: ShardShape,
) -> tuple[Op, ...]:
    """Scores of all earlier entries by a few small heads, whole on every rank of tp.

    The scores of a sequence, one a pair after the heads are summed, are written and read in fp32.
    """
    if reach != "sparse" or model.compression is None:
        return ()
    T, n, e = shard.tokens, attention.index_heads, attention.index_head_dim
    pairs = shard.microbatch_size * attended_pairs(shard.sequence_length) / model.compression.sparse_rate
    kept = HALF_BYTES * T * n * e + FLOAT_BYTES * T * n
    scores = Op(
        name="index_scores",
        kind=OpKind.SCAN,
        flop=2 * pairs * n * e,
        bytes=2 * FLOAT_BYTES * pairs + HALF_BYTES * T * n * e,
        saved_bytes=kept,
        saved_bytes_selective=kept,
    )
    query = gemm(
        "index_query", m=T, n=n * e, k=attention.query_rank, dtype=linear_dtype(job), saved_elements=0
    )
    return (query, scores)


def _core(
    model: ModelSpec,
    attention: CompressedAttention,
    reach: CompressedReach,
    stack: SoftwareStack,
    shard: ShardShape,
) -> Op:
    """Fused attention of every head to the one key, as of a window with as many pairs.

    It keeps queries, keys, entries and one fp32 log-sum-exp per head and token; its output is kept by the
    projection after it. A window w of S tokens has S·w − w²/2 pairs, so of P pairs w = S − √(S² − 2·P).
    """
    T, S, d = shard.tokens, shard.sequence_length, attention.head_dim
    heads = attention.num_attention_heads / shard.tp
    pairs = seen_pairs(model, reach, S)
    window = float(np.max(S - np.sqrt(np.maximum(S * S - 2 * pairs, 0.0))))
    rate = 0.0 if model.compression is None or reach == "window" else {
        "heavy": 1 / model.compression.heavy_rate, "sparse": 1 / model.compression.sparse_rate
    }[reach]  # fmt: skip
    queries, keys = HALF_BYTES * T * heads * d, HALF_BYTES * T * (1 + rate) * d
    kept = FLOAT_BYTES * T * heads
    core = "core_attn" in stack.timing.recomputed_modules
    inputs_again = "mla_up_proj" in stack.timing.recomputed_modules
    return Op(
        name="attention",
        kind=OpKind.ATTENTION,
        batch=shard.microbatch_size,
        heads=heads,
        kv_heads=np.ones_like(heads) if isinstance(heads, np.ndarray) else 1.0,
        query_tokens=S,
        kv_tokens=S,
        head_dim=d,
        value_head_dim=d,
        window=max(1, round(window)),
        windowed_share=1.0,
        fused=True,
        flop=2 * shard.microbatch_size * heads * pairs * 2 * d,
        bytes=2 * queries + keys,
        parameters=heads,
        saved_bytes=queries + keys + kept,
        saved_bytes_selective=(queries + keys) * (not inputs_again) + kept * (not core),
        repeated=core,
        saved_bytes_op=queries + kept,
    )


def _outputs(work: Workload, attention: CompressedAttention, shard: ShardShape) -> tuple[Op, ...]:
    """Outputs of each group of heads to its rank, and of all groups back: g/tp products of (a·d/g, o).

    One product of g·o/tp outputs has the FLOP and weights of them all; what is read is the input of all.
    """
    T, H, tp, dtype = shard.tokens, work.model.hidden_size, shard.tp, linear_dtype(work.job)
    g, o = attention.compression.output_groups, attention.compression.output_rank
    width = attention.num_attention_heads * attention.head_dim
    into = gemm("output_down", m=T, n=g * o / tp, k=width / g, dtype=dtype, saved_elements=T * width / tp)
    back = gemm(
        "output_up",
        m=T,
        n=H,
        k=g * o / tp,
        dtype=dtype,
        saved_elements=T * g * o / tp,
        output_elements=reduced_elements(shard, H, keeps_partial_sums=work.stack.memory.keeps_partial_sums),
    )
    moved = T * (g * o + width) / tp
    into = replace(
        into,
        bytes=HALF_BYTES * (moved + into.parameters),
        working_bytes=HALF_BYTES * (moved + T * width / tp),
    )
    return (replace(into, input_is_shared=True), back)
