"""The attention block of a layer as operations: projections, positions, attention core, context exchange.

Legend: ``T`` tokens of a rank, ``S`` sequence length, ``H`` hidden size, ``a`` query heads, ``g``
key/value heads, ``d`` head size, ``q`` and ``r`` the query and key/value ranks of latent attention.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.kernels.precisions import TRAINING
from costmodel.layout import CP_KINDS
from costmodel.models.attention import AttentionName
from costmodel.models.compressed_attention import CompressedAttention
from costmodel.models.spec import LayerKind, ModelSpec
from costmodel.ops.op import (
    FLOAT_BYTES,
    HALF_BYTES,
    Cover,
    Op,
    OpKind,
    ShardShape,
    communicate,
    drop_input,
    elementwise,
    enter_tensor_parallel,
    gemm,
    leave_tensor_parallel,
    norm_saved_bytes,
    reduced_elements,
    repeat,
)
from costmodel.ops.passes import FUSED, kept_score_bytes, norm_accesses, rotary_accesses, score_bytes
from costmodel.stack import SoftwareStack
from topology.base.arrays import Quantity

RING_ROWS = 0.75
"""Share of a rank's rows that a step of a balanced causal ring touches: all of them when the keys come from
an earlier rank, half when from a later one (zigzag chunks, Llama 3 §3.3.2); over the ranks both are as
frequent.
"""

KEYS_AND_VALUES = 2  # messages of a context exchange
QUERY_KEY_VALUE = 3  # matrices that one product of the projections joins
QUERIES_AND_OUTPUT = 2  # further ones when heads are swapped for tokens


def attended_pairs(query_tokens: Quantity, window: int | None = None) -> Quantity:
    """Query–key pairs of one causal head over one sequence: S·w − w²/2 with w = min(S, window).

    The diagonal is counted half, as in the S²/2 of published FLOP formulas.

    >>> float(attended_pairs(4096.0)), float(attended_pairs(4096.0, 1024))
    (8388608.0, 3670016.0)
    """
    w = query_tokens if window is None else np.minimum(query_tokens, window)
    return query_tokens * w - w * w / 2


def kind_pairs(model: ModelSpec, kind: LayerKind, sequence_length: Quantity) -> Quantity:
    """Average causal pairs per head and sequence over the layers of a kind (windowed and full ones)."""
    if model.chooses_keys(kind):
        return attended_pairs(sequence_length, model.index_topk)
    full = attended_pairs(sequence_length)
    if kind.sliding_share == 0:
        return full
    windowed = attended_pairs(sequence_length, model.sliding_window)
    return (1 - kind.sliding_share) * full + kind.sliding_share * windowed


def attention_ops(work: Workload, kind: LayerKind, shard: ShardShape) -> tuple[Op, ...]:
    """Give the attention block from the normed input to the summed output, without norm and residual."""
    model, stack = work.model, work.stack
    T, H, tp = shard.tokens, model.hidden_size, shard.tp
    project = _PROJECTIONS[model.attention.name]
    value_width = model.num_attention_heads * model.value_head_dim / tp
    output = gemm(
        "attention_output",
        m=T,
        n=H,
        k=value_width,
        dtype=linear_dtype(work.job),
        bias=H * model.attention_output_bias,
        saved_elements=T * value_width,
        output_elements=reduced_elements(shard, H, keeps_partial_sums=stack.memory.keeps_partial_sums),
    )
    output = replace(output, input_is_shared=stack.timing.flash_attention)
    gated = HALF_BYTES * T * value_width  # the gate is read and kept, as is what it multiplies
    gate = elementwise("attention_gate", traffic_bytes=3 * gated, saved_bytes=2 * gated)
    return (
        *enter_tensor_parallel("attention", shard, H),
        *project(work, shard),
        *_context_exchange(model, stack, shard),
        *_core_attention(work, kind, shard),
        *((gate,) * model.attention_gate),
        output,
        *leave_tensor_parallel("attention", shard, H),
    )


def linear_dtype(job: TrainingJob) -> str:
    """What linear layers multiply in."""
    return TRAINING[job.precision].linear


def _grouped_projections(work: Workload, shard: ShardShape) -> tuple[Op, ...]:
    """Query, key and value projections, head norms and rotary positions of grouped-query attention."""
    model, stack = work.model, work.stack
    T, H, d = shard.tokens, model.hidden_size, model.head_dim
    heads, kv_heads = model.num_attention_heads / shard.tp, model.attention.key_value_heads(shard.tp)
    cut_heads = model.num_key_value_heads / shard.tp if stack.timing.gathers_key_heads else kv_heads
    width = ((1 + model.attention_gate) * heads + model.key_value_products * cut_heads) * d
    qk_bytes = HALF_BYTES * T * (heads + kv_heads) * d
    qkv = gemm(
        "qkv",
        m=T,
        n=width,
        k=H,
        dtype=linear_dtype(work.job),
        bias=width * model.qkv_bias,
        saved_elements=shard.sharded_tokens * H,
    )
    qkv = replace(qkv, joins=QUERY_KEY_VALUE)
    if "norm_outputs" in stack.timing.recomputed_modules:
        qkv = drop_input(qkv)
    kept = norm_saved_bytes(qk_bytes, wide=stack.memory.keeps_wide_norms, trained=work.job.adapter is None)
    passes = norm_accesses(model, stack) if stack.timing.chained_modules else FUSED
    norms = elementwise(
        "qk_norm", traffic_bytes=passes * qk_bytes, saved_bytes=kept, parameters=2 * d, count=2
    )
    positions = elementwise("rotary", traffic_bytes=rotary_accesses(stack) * qk_bytes, count=2)
    gathered = _gathered_key_heads(stack, shard, model.num_key_value_heads, width)
    turned = (positions,) * (model.learned_positions == 0)
    indexer = _indexer(model, linear_dtype(work.job), shard)
    return (qkv, *gathered, *(norms,) * model.qk_norm, *turned, *indexer)


def _gathered_key_heads(
    stack: SoftwareStack, shard: ShardShape, groups: int, width: Quantity
) -> tuple[Op, ...]:
    """Where ranks outnumber heads of keys and values: projections are gathered, and each takes its own.

    Megatron-Core cuts q, k and v as one product, gathers it over its last dimension and slices it. Backward,
    the slice's gradient is laid into zeros and reduced to the shards. Either way the whole is put in order
    by one pass, so that it exists twice (megatron-core 0.19.2 `get_query_key_value_tensors`,
    `_gather_along_last_dim`, `_reduce_scatter_along_last_dim`).
    """
    outnumbered = shard.tp > groups
    if not stack.timing.gathers_key_heads or not np.any(outnumbered):
        return ()
    size = HALF_BYTES * shard.tokens * width * shard.tp * outnumbered
    order = elementwise("qkv_order", traffic_bytes=2 * size)
    return (
        communicate("qkv_gather", "all_gather", "tp", size, cover=Cover.NOTHING),
        replace(order, working_bytes=2 * size),
        communicate("qkv_gradient_scatter", "reduce_scatter", "tp", size, "backward", cover=Cover.NOTHING),
    )


def _latent_projections(work: Workload, shard: ShardShape) -> tuple[Op, ...]:
    """Down- and up-projections of latent attention; the down-projections are replicated over tp."""
    model, stack = work.model, work.stack
    T, t, H = shard.tokens, shard.sharded_tokens, model.hidden_size
    rows = T if stack.timing.gathers_before_latent else t
    q, r, rope = model.q_lora_rank, model.kv_lora_rank, model.qk_rope_head_dim
    heads, dtype = model.num_attention_heads / shard.tp, linear_dtype(work.job)
    modules = stack.timing.recomputed_modules
    query_width = heads * model.qk_head_dim
    kv_width = heads * (model.qk_nope_head_dim + model.v_head_dim)
    down = gemm("kv_down", m=rows, n=r + rope, k=H, dtype=dtype, saved_elements=t * H)
    norm = _latent_norm("kv_norm", work, rows * r, parameters=r)
    up = gemm("kv_up", m=T, n=kv_width, k=r, dtype=dtype, saved_elements=rows * r)
    accesses = rotary_accesses(stack)
    rotary = elementwise("rotary", traffic_bytes=accesses * HALF_BYTES * T * (2 * query_width), count=3)
    if not q:
        query: tuple[Op, ...] = (gemm("query", m=T, n=query_width, k=H, dtype=dtype, saved_elements=0),)
    else:
        query = (
            gemm("query_down", m=rows, n=q, k=H, dtype=dtype, saved_elements=0),
            _latent_norm("query_norm", work, rows * q, parameters=q),
            gemm("query_up", m=T, n=query_width, k=q, dtype=dtype, saved_elements=rows * q),
        )
    if "layernorm" in modules:
        down = drop_input(down)
    if "mla_up_proj" in modules:  # the norms are fused into the products after them
        *kept, query_up = query
        kept = [*kept[:1], *map(repeat, kept[1:])]
        query = (*kept, repeat(drop_input(query_up)))
        norm, up, rotary = repeat(norm), repeat(drop_input(up)), repeat(rotary)
    gate = gemm("gate", m=T, n=heads * model.v_head_dim, k=H, dtype=dtype, saved_elements=0)
    return (*query, *(gate,) * model.attention_gate, down, norm, up, rotary, *_indexer(model, dtype, shard))


def _latent_norm(name: str, work: Workload, numbers: Quantity, parameters: int) -> Op:
    """A norm of what queries, or keys and values, are projected down to: one kernel, or a chain of them."""
    stack = work.stack
    size, chained = HALF_BYTES * numbers, stack.timing.chained_modules
    wide = chained and stack.memory.keeps_wide_norms
    return elementwise(
        name,
        traffic_bytes=size * (norm_accesses(work.model, stack) if chained else FUSED),
        saved_bytes=norm_saved_bytes(size, wide=wide, trained=work.job.adapter is None),
        parameters=parameters,
    )


def _indexer(model: ModelSpec, dtype: str, shard: ShardShape) -> tuple[Op, ...]:
    """Scores of all earlier keys by a few small heads, whole on every rank of tp (DeepSeek-V3.2 §2.1).

    The scores of a sequence, one a pair after the heads are summed, are written and read in fp32. Where only
    some layers choose, each has that share of an indexer.
    """
    T, H, attention = shard.tokens, model.hidden_size, model.attention
    if isinstance(attention, CompressedAttention) or not attention.index_heads:
        return ()
    share = model.index_share
    n, d = model.index_heads, model.index_head_dim
    pairs = shard.microbatch_size * attended_pairs(shard.sequence_length) / shard.cp
    kept = share * (HALF_BYTES * T * (n + 1) * d + FLOAT_BYTES * T * n)
    weighed = n if model.kv_lora_rank else 0  # heads whose scores a product of the token weighs
    query = gemm("index_query", m=T, n=share * n * d, k=model.q_lora_rank or H, dtype=dtype, saved_elements=0)
    key = gemm("index_key", m=T, n=share * (d + weighed), k=H, dtype=dtype, saved_elements=0)
    scores = Op(
        name="index_scores",
        kind=OpKind.SCAN,
        flop=share * 2 * pairs * n * d,
        bytes=share * (2 * FLOAT_BYTES * pairs + HALF_BYTES * T * (n + 1) * d),
        saved_bytes=kept,
        saved_bytes_selective=kept,
        parameters=attention.index_parameters - query.parameters - key.parameters,
    )
    return query, key, scores


_PROJECTIONS: Mapping[AttentionName, Callable[..., tuple[Op, ...]]] = {
    "grouped": _grouped_projections,
    "latent": _latent_projections,
}


def attended_value_dim(model: ModelSpec, stack: SoftwareStack) -> int:
    """Size of a value head as the attention kernel sees it."""
    return (
        max(model.qk_head_dim, model.value_head_dim)
        if stack.timing.pads_value_heads
        else model.value_head_dim
    )


def _context_exchange(model: ModelSpec, stack: SoftwareStack, shard: ShardShape) -> tuple[Op, ...]:
    """Exchange keys and values among context ranks (ring, all-gather), or heads for tokens (Ulysses).

    Ring and all-gather move the keys and values of the whole sequence to every rank, and back again with
    their gradients in the backward pass. The ring does so under the attention of the block before, and pays
    for it by merging a partial output per block into an fp32 sum (arXiv 2310.01889; with a balanced causal
    mask three quarters of the rows take part); the all-gather comes before all attention and needs no merge
    (Llama 3, arXiv 2407.21783 §3.3.2). Ulysses sends each rank's q, k, v out and its output back (arXiv
    2309.14509).
    """
    T, cp = shard.tokens, shard.cp
    heads, kv_heads = model.num_attention_heads / shard.tp, model.attention.key_value_heads(shard.tp)
    dims = model.qk_head_dim + attended_value_dim(model, stack)
    kv_bytes = HALF_BYTES * T * kv_heads * dims
    q_and_out_bytes = HALF_BYTES * T * heads * dims
    ring, ulysses, whole = (
        shard.cp_kind == CP_KINDS.index(kind) for kind in ("ring", "ulysses", "allgather")
    )
    gathered = kv_bytes * cp * (cp > 1)
    context_exchange = gathered * whole * (not stack.memory.keeps_gathered_keys)
    merged_elements = RING_ROWS * T * heads * attended_value_dim(model, stack) * (cp - 1)
    swapped = (kv_bytes + q_and_out_bytes) * (cp > 1) * ulysses
    rotate = functools.partial(communicate, axis="cp", count=KEYS_AND_VALUES, cover=Cover.ATTENTION)
    exchange = functools.partial(communicate, axis="cp", count=KEYS_AND_VALUES, cover=Cover.NOTHING)
    swap = functools.partial(exchange, count=KEYS_AND_VALUES + QUERIES_AND_OUTPUT)
    return (
        rotate("context_gather", "all_gather", size_bytes=gathered * ring),
        rotate("context_regather", "all_gather", size_bytes=gathered * ring, phase="backward"),
        rotate("context_gradient_scatter", "reduce_scatter", size_bytes=gathered * ring, phase="backward"),
        elementwise(
            "context_merge",
            traffic_bytes=(HALF_BYTES + 2 * FLOAT_BYTES) * merged_elements * ring,
            saved_bytes=0,
        ),
        exchange("context_first_gather", "all_gather", size_bytes=gathered * whole),
        exchange("context_first_regather", "all_gather", size_bytes=context_exchange, phase="backward"),
        exchange("context_last_scatter", "reduce_scatter", size_bytes=gathered * whole, phase="backward"),
        swap("context_swap", "all_to_all", size_bytes=swapped),
        swap("context_gradient_swap", "all_to_all", size_bytes=swapped, phase="backward"),
    )


def _exchange_working_bytes(model: ModelSpec, stack: SoftwareStack, shard: ShardShape) -> Quantity:
    """Buffers alive at the peak of the backward of attention whose sequence is split; 0 where it is whole.

    With q, k, v, o the bytes of a rank's own queries, keys, values and output: the all-gather holds k and v
    of the whole sequence and as many gradients beside those of q and o, 2·c·(k + v) + q + o; the ring a block
    to send, one to receive, the gradients that travel with both and those of its own q, k, v, o,
    5·(k + v) + q + o; Ulysses all gradients of the swapped q, k, v and one of q packed, received and joined,
    (k + v) + 4·q. Where the all-gather sums block by block in fp32 (`_templated_ring_attention_backward` of
    torch) there are the keys and values of all and those it sent, c + 1; their gradients in fp32 as a sum,
    packed, and received, 2 each, and of a block, 1; of the queries the sum in fp32, what a half of it is
    added to, and a block's, 2 + 2 + 1; and the gradient of the output: (c + 8)·(k + v) + 5·q + o.
    """
    T, cp = shard.tokens, shard.cp
    heads = model.num_attention_heads / shard.tp
    kv_heads = model.attention.key_value_heads(shard.tp)
    value_dim = attended_value_dim(model, stack)
    q, o = HALF_BYTES * T * heads * model.qk_head_dim, HALF_BYTES * T * heads * value_dim
    kv = HALF_BYTES * T * kv_heads * (model.qk_head_dim + value_dim)
    gathered = (cp + 8) * kv + 5 * q + o if stack.memory.sums_context_in_fp32 else 2 * cp * kv + q + o
    held = {"ring": 5 * kv + q + o, "ulysses": kv + 4 * q, "allgather": gathered}
    total: Quantity = 0.0
    for name, size in held.items():
        total = total + size * (shard.cp_kind == CP_KINDS.index(name)) * (cp > 1)
    return total


def _kept_gathered_bytes(shard: ShardShape, kv_bytes: Quantity) -> Quantity:
    """What attention keeps beyond a rank's own keys and values where those of all ranks were gathered.

    (c − 1)·(k + v): the other ranks' keys and values. Which of them a query sees is told by positions.

    Args:
        shard: How the layer is cut.
        kv_bytes: k + v, bytes of the rank's own keys and values.
    """
    gathers = (shard.cp_kind == CP_KINDS.index("allgather")) * (shard.cp > 1)
    return gathers * (shard.cp - 1) * kv_bytes


def _core_attention(work: Workload, kind: LayerKind, shard: ShardShape) -> tuple[Op, ...]:
    """Scores, softmax and weighted values: one fused kernel, or two batched matmuls around softmax passes.

    Fused attention keeps q, k, v and one fp32 log-sum-exp per head and token (arXiv 2205.14135); its
    output is kept by the projection after it, unless that takes a part of a padded one or, after Ulysses, the
    output swapped back. Unfused attention
    keeps, per score, the softmax (2 bytes) and with dropout its mask (1) and output (2): 5·a·S²·B
    (Korthikanti et al. 2022, §4.1). Of a packed sequence a fused kernel computes S/l squares of l tokens, one
    a document; chained ones compute and mask the whole square.
    """
    model, stack = work.model, work.stack
    T, S, tp = shard.tokens, shard.sequence_length, shard.tp
    heads = model.num_attention_heads / tp
    kv_heads = model.attention.key_value_heads(tp)
    value_dim = attended_value_dim(model, stack)
    dims = model.qk_head_dim + value_dim
    swaps = (shard.cp_kind == CP_KINDS.index("ulysses")) * (shard.cp > 1)
    ulysses = swaps * (shard.cp - 1) + 1
    qkv_bytes = HALF_BYTES * T * (heads * model.qk_head_dim + kv_heads * dims)
    out_bytes = HALF_BYTES * T * heads * value_dim
    plain_qkv_bytes = qkv_bytes - HALF_BYTES * T * kv_heads * (value_dim - model.value_head_dim)
    fused = stack.timing.flash_attention
    document = np.minimum(S, work.job.document_tokens or S) if fused else S
    documents = S / document
    pairs = documents * kind_pairs(model, kind, document) if fused else S * S
    scores = T * S * heads
    kept = FLOAT_BYTES * T * heads if stack.timing.flash_attention else kept_score_bytes(stack) * scores
    core_attention = "core_attn" in stack.timing.recomputed_modules
    saved = (
        qkv_bytes
        + kept
        + out_bytes * np.maximum(value_dim > model.value_head_dim, swaps)
        + _kept_gathered_bytes(shard, HALF_BYTES * T * kv_heads * dims) * stack.memory.keeps_gathered_keys
    )
    module, chosen = "mla_up_proj", model.chooses_keys(kind)
    inputs_again = module in stack.timing.recomputed_modules and module in model.attention.modules
    attention = Op(
        name="attention",
        kind=OpKind.ATTENTION,
        batch=shard.microbatch_size * documents,
        heads=heads / ulysses,
        kv_heads=np.maximum(kv_heads / ulysses, 1),
        query_tokens=document / shard.cp * ulysses,
        kv_tokens=document,
        head_dim=model.qk_head_dim,
        value_head_dim=value_dim,
        window=model.index_topk if chosen else (model.sliding_window if kind.sliding_share else None),
        windowed_share=1.0 if chosen else kind.sliding_share,
        fused=stack.timing.flash_attention,
        flop=2 * shard.microbatch_size * heads * pairs / shard.cp * dims,
        bytes=qkv_bytes + out_bytes + (0 if stack.timing.flash_attention else 2 * HALF_BYTES * scores),
        parameters=heads * model.attention_sinks,
        saved_bytes=saved,
        saved_bytes_selective=(plain_qkv_bytes if core_attention else saved)
        - inputs_again * (plain_qkv_bytes if core_attention else qkv_bytes),
        repeated=core_attention,
        saved_bytes_op=out_bytes + kept,
        working_bytes=_exchange_working_bytes(model, stack, shard),
    )
    if stack.timing.flash_attention:
        return (attention,)
    return (attention, _softmax(scores, stack, recomputed=core_attention))


def _softmax(scores: Quantity, stack: SoftwareStack, *, recomputed: bool) -> Op:
    """Scale-mask-softmax over all scores, and attention dropout: its mask and output are kept."""
    dropout = stack.timing.dropout
    return Op(
        name="softmax",
        kind=OpKind.SCORES,
        count=1 + dropout,
        bytes=scores * (score_bytes(stack) + 5 * dropout),
        saved_bytes=scores * 3 * dropout,
        saved_bytes_selective=scores * 3 * dropout * (not recomputed),
        saved_bytes_op=0,
        repeated=recomputed,
    )
