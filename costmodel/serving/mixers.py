"""What mixes the tokens of a served layer: its products, its core in prefill and decode, what it keeps.

A layer's mixer is attention of a kind, a recurrence, or nothing. Attention reads keys of all tokens, of a
window, those that an indexer chose, or entries that stand for several tokens; a recurrence reads and writes a
state of fixed size.

Legend: ``B`` requests of a rank, ``q`` tokens of a prompt's chunk after ``p`` others, ``k`` keys that an
indexer chooses, ``r`` latent rank, ``H`` hidden size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.kernels import compute
from costmodel.kernels.tables import Calibration
from costmodel.models.attention import GroupedAttention, LatentAttention
from costmodel.models.compressed_attention import AttentionCompression, CompressedAttention, reach_of
from costmodel.models.kinds import model_of_layer
from costmodel.models.recurrence import FLOAT_BYTES, HALF_BYTES, Recurrence
from costmodel.models.spec import LayerKind, ModelSpec, recurrence_of
from costmodel.models.streams import BLOCKS
from costmodel.serving.deployment import Deployment, dtype_of, kv_token_bytes_per_layer
from costmodel.serving.mixer_kernels import KernelName, MixerKernel, mixer_kernel
from topology.base.arrays import Floats

INDEX_KEY_BYTES = 1 + 4 / 128
"""Of a number of an indexer's key: fp8, and a float to 128 of them (DeepSeek-V3.2, vLLM's indexer cache)."""
LATENT_EFFICIENCY = 0.6
"""Share of the bf16 peak that public latent-attention decode kernels reach (FlashMLA: 660 of 989 TFLOP/s)."""


def mixer_products(deployment: Deployment, kind: LayerKind) -> tuple[tuple[float, float], ...]:
    """(n, k) of the products of one rank's mixer, none of a layer without."""
    model, tp = model_of_layer(deployment.model, kind), deployment.layout.tp
    H = model.hidden_size
    if kind.attention == "none":
        return ()
    if kind.attention == "recurrence":
        r = recurrence_of(model).on_ranks(tp)
        ranks = zip(r.shape.gate_ranks, r.shape.gate_widths, strict=True)
        gates = [product for rank, width in ranks for product in ((rank, H), (width / tp, rank))]
        return ((r.shape.input_width / tp, H), *gates, (H, r.value_width / tp))
    attention = model.attention
    return (*attention.projections(tp), *_further_products(attention, kind))


def _further_products(attention: Any, kind: LayerKind) -> tuple[tuple[float, float], ...]:
    """Products of an indexer and of what makes entries, whole on every rank."""
    if isinstance(attention, GroupedAttention) and attention.index_heads:
        made = (attention.index_heads + 1) * attention.index_head_dim
        return ((attention.index_share * made, attention.hidden_size),)
    if isinstance(attention, LatentAttention) and attention.index_heads:
        heads, size = attention.index_heads, attention.index_head_dim
        share = attention.index_share
        return (share * heads * size, attention.query_rank), (share * (size + heads), attention.hidden_size)
    if isinstance(attention, CompressedAttention):
        reach = reach_of(kind.attention)
        made = attention.entry_products(reach)
        entries = ((float(made), float(attention.hidden_size)),) if made else ()
        width = attention.index_heads * attention.index_head_dim
        return (*entries, *(((width, attention.query_rank),) if reach == "sparse" else ()))
    return ()


def mixer_parameters_of_rank(deployment: Deployment, kind: LayerKind) -> float:
    """Parameters of a layer's mixer on one rank: what ranks split, and what each holds whole."""
    model, tp = model_of_layer(deployment.model, kind), deployment.layout.tp
    if kind.attention == "none":
        return 0.0
    if kind.attention == "recurrence":
        r = recurrence_of(model).on_ranks(tp)
        whole = r.whole_parameters(model.hidden_size)
        return (r.parameters(model.hidden_size) - whole) / tp + whole
    attention = model.attention
    whole = attention.replicated_parameters
    further = attention.further_parameters(kind.attention)
    return (attention.parameters - whole) / tp + whole + further


def splits_recurrence(deployment: Deployment) -> bool:
    """Whether an engine starts so many ranks of a model with a recurrence, by its weights.

    Ranks divide its groups, or each has a copy of an only one, which quantised checkpoints do not have.
    """
    r, tp = deployment.model.recurrence, deployment.layout.tp
    if r is None:
        return True
    copies = deployment.stack.copies_groups and dtype_of(deployment, "attention") == "bf16"
    return r.on_ranks(tp) is r or copies


def kept_bytes(deployment: Deployment, kind: LayerKind, context: float, in_flight: int = 0) -> float:
    """Bytes that one layer of a rank keeps of a request of `context` tokens: cache, state, indexer's keys.

    While `in_flight` tokens of it are computed a window is held for every one of them.
    """
    deployment = _of_layer(deployment, kind)
    model = deployment.model
    if kind.attention == "none":
        return 0.0
    if kind.attention == "recurrence":
        return state_bytes(deployment)
    token = kv_token_bytes_per_layer(deployment)
    window = min(float(model.sliding_window or context) + in_flight, context)
    if (compression := model.compression) is not None:
        return token * window + _entry_bytes(model, compression, kind, token) * context
    share = kind.sliding_share
    index = model.index_share * model.index_head_dim * index_key_bytes(model) if model.index_topk else 0.0
    return token * ((1 - share) * context + share * window) + index * context


def index_key_bytes(model: ModelSpec) -> float:
    """Bytes of a number of an indexer's key: of grouped attention in bf16, else in fp8 with its scale.

    Source: SGLang v0.5.23, memory_pool.get_minimax_sparse_index_dtype (in fp8 on Hopper with such a cache).
    """
    return HALF_BYTES if model.attention.name == "grouped" else INDEX_KEY_BYTES


def _of_layer(deployment: Deployment, kind: LayerKind) -> Deployment:
    """The deployment of a model all of whose layers have the heads of this one."""
    model = model_of_layer(deployment.model, kind)
    return deployment if model is deployment.model else replace(deployment, model=model)


def state_bytes(deployment: Deployment) -> float:
    """Of one layer and request: the state in fp32, and the convolution's past inputs."""
    tp = deployment.layout.tp
    r = recurrence_of(deployment.model).on_ranks(tp)
    return (FLOAT_BYTES * r.state_numbers + HALF_BYTES * r.convolution_numbers) / tp


def _entry_bytes(
    model: ModelSpec, compression: AttentionCompression, kind: LayerKind, entry_bytes: float
) -> float:
    """Bytes of entries a token: those that attention reads, and those of an indexer."""
    reach = reach_of(kind.attention)
    if reach == "window":
        return 0.0
    if reach == "heavy":
        return entry_bytes / compression.heavy_rate
    return (entry_bytes + model.index_head_dim * INDEX_KEY_BYTES) / compression.sparse_rate


def decode_core_s(
    cal: Calibration, deployment: Deployment, kind: LayerKind, batch: ArrayLike, context: ArrayLike
) -> Floats:
    """Seconds of the core of one decoding layer, `batch` requests of a rank with `context` tokens each.

    Attention that reads tokens costs the engine's latency in a captured graph, and its share of what the
    table's kernel takes beyond the launch that it was timed with.
    """
    deployment = _of_layer(deployment, kind)
    model = deployment.model
    B, seen = np.asarray(batch, dtype=np.float64), np.asarray(context, dtype=np.float64)
    if kind.attention == "none":
        return np.zeros(np.broadcast(B, seen).shape)
    if kind.attention == "recurrence":
        return _step_s(deployment, recurrence_of(model).on_ranks(deployment.layout.tp), B) + 0 * seen
    if model.compression is not None:
        return _compressed_s(deployment, kind, B, np.ones_like(seen), seen)
    if model.chooses_keys(kind):
        read = _attention_s(cal, deployment, B, np.minimum(seen, model.index_topk))
        indexer = _indexer_s(deployment, B, np.ones_like(seen), seen, model.index_heads)
        return read + model.own_index_share * indexer
    return _attention_s(cal, deployment, B, seen, windowed=kind.sliding_share)


def prefill_core_s(
    cal: Calibration, deployment: Deployment, kind: LayerKind, query: ArrayLike, past: ArrayLike
) -> Floats:
    """Seconds of the core of one layer for one prompt's chunk of `query` tokens after `past` others."""
    deployment = _of_layer(deployment, kind)
    model = deployment.model
    q, before = np.asarray(query, dtype=np.float64), np.asarray(past, dtype=np.float64)
    if kind.attention == "none":
        return np.zeros(np.broadcast(q, before).shape)
    if kind.attention == "recurrence":
        return _scan_s(deployment, recurrence_of(model).on_ranks(deployment.layout.tp), q) + 0 * before
    if model.compression is not None:
        return _compressed_s(deployment, kind, np.ones_like(q), q, before)
    if model.chooses_keys(kind):
        indexer = _indexer_s(deployment, np.ones_like(q), q, before, model.index_heads)
        return model.own_index_share * indexer + _chosen_s(cal, deployment, q, before)
    windowed = kind.sliding_share
    full = _prefill_s(cal, deployment, q, before)
    if windowed and model.sliding_window:
        inside = _prefill_s(cal, deployment, q, before, window=model.sliding_window)
        full = (1 - windowed) * full + windowed * inside
    return full


def streams_s(deployment: Deployment, tokens: Floats) -> Floats:
    """Seconds in which the blocks of one layer read all residual streams and write them: 2·(2n + 1)·H."""
    model, n = deployment.model, deployment.model.residual_streams
    if n == 1:
        return np.zeros_like(tokens)
    moved = tokens * BLOCKS * (2 * n + 1 + 1) * model.hidden_size * HALF_BYTES
    return mixer_kernel("streams").seconds(deployment.hierarchy.gpu, moved_bytes=moved)


def unmeasured_mixers(deployment: Deployment) -> tuple[str, ...]:
    """Mixers of a model of which no server was measured, in words."""
    model = deployment.model
    words = (
        (model.recurrence.title if model.recurrence else "", model.recurrence is not None),
        (model.attention.named, model.compression is not None),
        (model.attention.named, model.global_heads is not None),
        ("an indexer's chosen keys", model.index_topk > 0 and model.compression is None),
        ("experts of a latent width", model.moe_latent_size > 0),
    )
    return tuple(name for name, is_there in words if is_there)


def seen_tokens(query: Floats, past: Floats, most: float = float("inf"), rate: int = 1) -> Floats:
    """Σ over a chunk's queries of the keys that each sees: one for every `rate` tokens, at most `most`.

    >>> float(seen_tokens(np.array(4.0), np.array(0.0))), float(seen_tokens(np.array(4.0), np.array(0.0), 2))
    (10.0, 7.0)
    """
    first, last = (past + 1) / rate, (past + query) / rate
    if most == float("inf"):
        return np.asarray(query * (first + last) / 2, dtype=np.float64)
    rising = np.clip(np.minimum((most - first) * rate + 1, query), 0.0, None)
    top = first + np.maximum(rising - 1, 0.0) / rate
    return np.asarray(rising * (first + top) / 2 + (query - rising) * most, dtype=np.float64)


def _kernel(deployment: Deployment, name: KernelName, kind: str = "") -> MixerKernel:
    """A kernel as the deployment's engine has it."""
    return mixer_kernel(name, kind, deployment.stack.name)


def _step_s(deployment: Deployment, r: Recurrence, batch: Floats) -> Floats:
    """One token of every request through a recurrence: convolution, then the state in and out in fp32."""
    gpu, tp = deployment.hierarchy.gpu, deployment.layout.tp
    inputs = HALF_BYTES * 2 * (r.key_width + r.value_width)
    state = batch * (2 * FLOAT_BYTES * r.state_numbers + inputs) / tp
    step = _kernel(deployment, "recurrent-step").seconds(gpu, moved_bytes=state)
    if not r.conv_kernel:
        return step
    channels = batch * HALF_BYTES * (2 * r.shape.conv_width + 2 * r.convolution_numbers) / tp
    return step + _kernel(deployment, "convolution-step").seconds(gpu, moved_bytes=channels)


def _scan_s(deployment: Deployment, r: Recurrence, tokens: Floats) -> Floats:
    """A prompt's chunk through a recurrence: convolution, then the chunked scan."""
    gpu, tp, scan = deployment.hierarchy.gpu, deployment.layout.tp, r.scan
    seconds = _kernel(deployment, "scan", r.kind).seconds(gpu, flop=tokens * scan.flop / tp)
    if not r.conv_kernel:
        return seconds
    channels = tokens * HALF_BYTES * 2 * r.shape.conv_width / tp
    return seconds + _kernel(deployment, "convolution").seconds(gpu, moved_bytes=channels)


def _indexer_s(
    deployment: Deployment, batch: Floats, query: Floats, past: Floats, heads: int, rate: int = 1
) -> Floats:
    """Scores of all keys before, whole on every rank, and the choice of the largest ones."""
    gpu, size = deployment.hierarchy.gpu, deployment.model.index_head_dim
    pairs = batch * seen_tokens(query, past, rate=rate)
    keys = batch * (past + query) / rate
    scores = _kernel(deployment, "index-scores", deployment.model.attention.name).seconds(
        gpu,
        moved_bytes=keys * size * index_key_bytes(deployment.model) + FLOAT_BYTES * pairs,
        flop=2 * pairs * heads * size,
    )
    top = _kernel(deployment, "top-k")
    row_s = FLOAT_BYTES * (past + query) / rate / top.row_bytes_per_s
    chosen = np.maximum(top.seconds(gpu, moved_bytes=FLOAT_BYTES * pairs), top.launch_s + row_s)
    return np.asarray(scores + chosen, dtype=np.float64)


def _chosen_s(cal: Calibration, deployment: Deployment, query: Floats, past: Floats) -> Floats:
    """Attention of a chunk to the keys that an indexer chose; to all keys while they are no more."""
    model, tp, gpu = deployment.model, deployment.layout.tp, deployment.hierarchy.gpu
    kernel = _kernel(deployment, "chosen-keys")
    heads = max(model.num_attention_heads / tp, kernel.least_heads)
    width = sum(model.attention.decode_widths) if model.attention.decode_width else 2 * model.head_dim
    flop = 2 * seen_tokens(query, past, model.index_topk) * heads * width
    sparse = kernel.seconds(gpu, flop=flop)
    whole = past + query <= model.index_topk
    return np.where(whole, np.minimum(sparse, _prefill_s(cal, deployment, query, past)), sparse)


def _compressed_s(
    deployment: Deployment, kind: LayerKind, batch: Floats, query: Floats, past: Floats
) -> Floats:
    """Attention to a window, and to entries: all of a heavy layer, those chosen of a sparse one."""
    model, compression, gpu = deployment.model, deployment.model.compression, deployment.hierarchy.gpu
    window, reach = float(model.sliding_window or 0), reach_of(kind.attention)
    if compression is None:
        raise ValueError(f"{model.name} has no compressed attention")
    pairs = seen_tokens(query, past, window)
    keys = np.minimum(past + query, window + query)
    seconds = np.zeros(np.broadcast(batch, pairs).shape)
    if reach == "heavy":
        pairs = pairs + seen_tokens(query, past, rate=compression.heavy_rate)
        keys = keys + (past + query) / compression.heavy_rate
    elif reach == "sparse":
        pairs = pairs + seen_tokens(query, past, model.index_topk, compression.sparse_rate)
        most = model.index_topk * query
        keys = keys + np.minimum((past + query) / compression.sparse_rate, most)
        seconds = seconds + _indexer_s(
            deployment, batch, query, past, model.index_heads, compression.sparse_rate
        )
    kernel = _kernel(deployment, "compressed-keys")
    heads = max(model.num_attention_heads / deployment.layout.tp, kernel.least_heads)
    flop = 2 * batch * pairs * heads * 2 * model.head_dim
    moved = batch * keys * model.head_dim * deployment.kv_bytes
    return np.asarray(seconds + kernel.seconds(gpu, moved_bytes=moved, flop=flop), dtype=np.float64)


def _attention_s(
    cal: Calibration, deployment: Deployment, batch: ArrayLike, context: ArrayLike, *, windowed: float = 0.0
) -> Floats:
    """Decode attention of one layer in a captured graph: the engine's latency, and what streams.

    A share of its layers may be `windowed`.
    """
    stack, window = deployment.stack, deployment.model.sliding_window
    full = _decode_layer_s(cal, deployment, batch, context)
    if windowed and window:
        inside = _decode_layer_s(cal, deployment, batch, np.minimum(context, window))
        full = (1 - windowed) * full + windowed * inside
    streamed = np.maximum(full - compute.decode_launch_s(cal, deployment.hierarchy.gpu), 0.0)
    share = stack.attention_share * (stack.eight_bit_share if deployment.kv_dtype == "fp8" else 1.0)
    return np.asarray(stack.attention_s + share * streamed, dtype=np.float64)


def _prefill_s(
    cal: Calibration, deployment: Deployment, query: Floats, past: Floats, *, window: int | None = None
) -> Floats:
    """Prefill attention of one layer to all tokens before, or to those of a window."""
    model, tp = deployment.model, deployment.layout.tp
    return compute.attention_prefill(
        cal,
        deployment.hierarchy.gpu,
        batch=1,
        heads=model.num_attention_heads / tp,
        kv_heads=model.attention.key_value_heads(tp),
        query_tokens=query,
        kv_tokens=query + past,
        head_dim=(model.qk_head_dim + model.value_head_dim) / 2,
        window=window,
    ).seconds


def _decode_layer_s(cal: Calibration, deployment: Deployment, batch: ArrayLike, context: ArrayLike) -> Floats:
    """Decode attention of one layer; latent attention is one shared key/value head read by all query heads.

    A latent entry of r + rope numbers takes the place of keys and values of a head half as wide. Its
    products are 2·heads·(2r + rope) FLOP per cached number, enough to be bound by compute when a rank holds
    all heads. Of dcp ranks each takes the heads of all on its part of the tokens.
    """
    model, tp, gpu = deployment.model, deployment.layout.tp, deployment.hierarchy.gpu
    dcp = deployment.layout.dcp
    width = model.attention.cached_numbers(tp)
    heads, context = model.num_attention_heads / tp * dcp, np.asarray(context) / dcp
    kv_heads = model.attention.cached_heads(tp)
    seconds = compute.attention_decode(
        cal,
        gpu,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        kv_tokens=context,
        head_dim=width / 2 / kv_heads,
        kv_dtype_bytes=deployment.kv_bytes,
    ).seconds
    if not model.attention.decode_width:
        return seconds
    flop = 2 * np.asarray(batch) * np.asarray(context) * heads * model.attention.decode_width
    return np.asarray(np.maximum(seconds, flop / (LATENT_EFFICIENCY * gpu.peak("bf16"))), dtype=np.float64)
