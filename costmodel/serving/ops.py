"""Seconds of the parts of one engine step on one pipeline stage, for arrays of token counts.

Linear parts (GEMMs, experts, reductions, small kernels) depend on the tokens of the step; attention depends
on the requests and their contexts. All functions broadcast over arrays, so one call tabulates a whole
curve.

Legend: ``m`` tokens of one rank in the step, ``H`` hidden, ``F`` feed-forward, ``a`` query heads, ``g``
key/value heads, ``d`` head size, ``r`` latent rank, ``V`` vocabulary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from costmodel.kernels import compute
from costmodel.kernels.clocks import product_joules, sustained_s
from costmodel.kernels.collectives import collective_time
from costmodel.kernels.tables import Calibration
from costmodel.models.spec import LayerKind, layer_runs
from costmodel.serving.adapters import adapters_s
from costmodel.serving.deployment import Deployment, dtype_of, stages_alike, weight_bytes
from costmodel.serving.experts import routed_experts
from costmodel.serving.mixers import decode_core_s, mixer_products, prefill_core_s, streams_s
from topology.base.arrays import Floats
from topology.base.units import MIB
from topology.fabric.hierarchy import through_hosts
from topology.hardware.gpu import Gpu

ACTIVATION_BYTES = 2.0  # activations travel between ranks in bf16
CUSTOM_ALL_REDUCE_MOST_BYTES = 8 * MIB
CUSTOM_ALL_REDUCE_PCIE_GPUS = 2
# formats in which both factors of a product are; others are weight-only
QUANTISED_ACTIVATIONS = ("fp8", "fp4")
DENSE_PRODUCTS = 2  # gate and up together, and down
ROUTED_OPERATIONS = 4  # router, choice of experts, their fused kernels, their sum
STREAM_EVENTS = 4  # a record and a wait to part two streams, and to join them


def linear_s(
    cal: Calibration, deployment: Deployment, tokens: ArrayLike, *, captured: bool, shared: bool = True
) -> Floats:
    """Seconds of all layers of the slowest stage without attention, at `tokens` per rank.

    Σ over layers of attention projections, feed-forward or experts, tensor-parallel reductions and small
    kernels. Steps outside a captured graph are at least as long as their launches: operations of all layers
    times `launch_s`, beyond the tokens up to which the engine captures steps with prompts. Where the host
    waits in every layer for the number of tokens that ranks exchange, launches come on top of the GPU's work.
    Without `shared`, what the attention ranks do together is left out: routed experts and the way to them.
    """
    m = np.asarray(tokens, dtype=np.float64)
    stack, share = deployment.stack, 1 / stages_alike(deployment)
    total = np.zeros_like(m)
    for run in layer_runs(deployment.model):
        block = feed_forward_s(cal, deployment, run.kind, m, captured=captured, shared=shared)
        layer_s = projections_s(cal, deployment, run.kind, m) + block
        layer_s = layer_s + small_kernels(deployment, run.kind) * stack.kernel_s
        layer_s = layer_s + elementwise_s(deployment, m) + adapters_s(deployment, run.kind, m)
        layer_s = layer_s + streams_s(deployment, m)
        total = total + layer_s * run.count * share
    total = np.asarray(total * stack.kernel_level, dtype=np.float64)
    if captured:
        return total
    layout, launched_s = deployment.layout, launches_s(deployment)
    if stack.counted_exchange and layout.ep > 1 and layout.attention_dp > 1:
        total = total + launched_s
    else:
        total = np.maximum(total, launched_s * (m > stack.prompt_graph_tokens))
    return sustained_s(linear_joules(deployment, m, shared=shared), total, deployment.hierarchy.gpu)


def linear_joules(deployment: Deployment, tokens: Floats, *, shared: bool = True) -> Floats:
    """Energy of the products of all layers of a stage on one GPU, at `tokens` per rank; as `linear_s`."""
    model, layout, gpu = deployment.model, deployment.layout, deployment.hierarchy.gpu
    matrices = 3 if model.gated_mlp else 2
    joules = np.zeros_like(tokens)
    for run in layer_runs(model):
        each = np.zeros_like(tokens)
        for dtype, (n, k) in _mixer_formats(deployment, run.kind):
            each = each + product_joules(gpu, dtype, 2 * n * k * tokens)
        if run.kind.mlp != "none":
            block = model.feed_forward(run.kind.mlp)
            common = matrices * model.hidden_size * block.common_width[1] / layout.tp
            each = each + product_joules(gpu, dtype_of(deployment, "mlp"), 2 * common * tokens)
            if block.copies and shared:
                width = model.moe_latent_size or model.hidden_size
                routed = matrices * width * model.moe_intermediate_size * model.num_experts_per_token
                share = layout.attention_dp / (layout.expert_tp * layout.ep)
                routed_dtype = dtype_of(deployment, "experts")
                each = each + product_joules(gpu, routed_dtype, 2 * routed * share * tokens)
        joules = joules + each * run.count
    return joules / stages_alike(deployment)


def launches_s(deployment: Deployment) -> float:
    """Host seconds to launch the operations of all layers of a stage, where no graph holds them."""
    runs = layer_runs(deployment.model)
    count = sum(operations(deployment, run.kind) * run.count for run in runs)
    return count / stages_alike(deployment) * deployment.stack.launch_s


def head_s(cal: Calibration, deployment: Deployment, rows: ArrayLike) -> Floats:
    """Seconds of the output projection, the gather of its logits, and sampling from them.

    For `rows` positions.
    """
    model, tp = deployment.model, deployment.layout.tp
    n = np.asarray(rows, dtype=np.float64)
    gemm_s = _gemm(cal, deployment, dtype_of(deployment, "head"), n, model.vocab_size / tp, model.hidden_size)
    gather = _nccl_s(cal, deployment, "all_gather", n * model.vocab_size * ACTIVATION_BYTES, tp)
    sampling = compute.elementwise_time(cal, deployment.hierarchy.gpu, n * model.vocab_size * 4).seconds
    return np.asarray((gemm_s + gather + sampling) * deployment.stack.kernel_level, dtype=np.float64)


def projections_s(cal: Calibration, deployment: Deployment, kind: LayerKind, m: Floats) -> Floats:
    """Seconds of the products of one layer's mixer and of the reduction after them; 0 without a mixer."""
    products = _mixer_formats(deployment, kind)
    if not products:
        return np.zeros_like(m)
    seconds = np.zeros_like(m)
    for dtype, (n, k) in products:
        seconds = seconds + _gemm(cal, deployment, dtype, m, n, k)
    return seconds + all_reduce_s(cal, deployment, m * deployment.model.hidden_size * ACTIVATION_BYTES)


def _mixer_formats(deployment: Deployment, kind: LayerKind) -> list[tuple[str, tuple[float, float]]]:
    """Number format and (n, k) of the products of one rank's mixer."""
    dtype, out = dtype_of(deployment, "attention"), len(deployment.model.attention.projections(1)) - 1
    last = dtype if kind.attention == "recurrence" else dtype_of(deployment, "output projection")
    shapes = mixer_products(deployment, kind)
    return [(last if at == out else dtype, shape) for at, shape in enumerate(shapes)]


def feed_forward_s(
    cal: Calibration,
    deployment: Deployment,
    kind: LayerKind,
    m: Floats,
    *,
    captured: bool,
    shared: bool = True,
) -> Floats:
    """Seconds of one layer's feed-forward block, dense or experts, and its communication.

    In a captured graph the experts that every token passes run on a stream beside router and routed experts,
    or inside their kernels; of many tokens both need the whole GPU, one after the other.
    """
    model, tp = deployment.model, deployment.layout.tp
    if kind.mlp == "none":
        return np.zeros_like(m)
    block = model.feed_forward(kind.mlp)
    _, width = block.common_width
    common = _dense_s(cal, deployment, m, width, tp) if width else np.zeros_like(m)
    if not block.copies:
        return common + all_reduce_s(cal, deployment, m * model.hidden_size * ACTIVATION_BYTES)
    routed = _gemm(cal, deployment, "bf16", m, model.num_experts, model.hidden_size)
    moved = np.zeros_like(m)
    if shared:
        routed = routed + experts_s(cal, deployment, m) + _latent_s(cal, deployment, m)
        moved = dispatch_s(cal, deployment, m)
    return (np.maximum(common, routed) if captured else common + routed) + moved


def experts_s(cal: Calibration, deployment: Deployment, m: Floats) -> Floats:
    """Seconds of the routed experts of one layer on the busiest rank.

    Tokens of all attention-data-parallel ranks.
    """
    model, layout, stack = deployment.model, deployment.layout, deployment.stack
    gpu = deployment.hierarchy.gpu
    return routed_experts(
        cal,
        gpu,
        dtype_of(deployment, "experts"),
        tokens=m * layout.attention_dp,
        hidden_size=model.moe_latent_size or model.hidden_size,
        intermediate_size=model.moe_intermediate_size,
        top_k=model.num_experts_per_token,
        num_experts=model.num_experts + deployment.expert_copies,
        moe_tp=layout.expert_tp,
        moe_ep=layout.ep,
        exchanged=layout.attention_dp > 1,
        share=stack.expert_share,
        mxfp4_share=stack.native_mxfp4_share if "fp4" in gpu.peak_flop_per_s else stack.mxfp4_share,
        warp_products=stack.warp_products,
    ).seconds


def _latent_s(cal: Calibration, deployment: Deployment, m: Floats) -> Floats:
    """Seconds of the products to the latent width of routed experts and back, whole on every rank."""
    H, latent = deployment.model.hidden_size, deployment.model.moe_latent_size
    if not latent:
        return np.zeros_like(m)
    dtype = dtype_of(deployment, "mlp")
    return _gemm(cal, deployment, dtype, m, latent, H) + _gemm(cal, deployment, dtype, m, H, latent)


def dispatch_s(cal: Calibration, deployment: Deployment, m: Floats) -> Floats:
    """Seconds to bring tokens to their experts and back.

    With tensor-parallel attention every rank has every token: one all-reduce of the outputs. With attention
    data parallelism the cheaper of all-gather + reduce-scatter of all tokens, and all-to-all of the chosen
    copies.
    """
    model, layout = deployment.model, deployment.layout
    row = (model.moe_latent_size or model.hidden_size) * ACTIVATION_BYTES
    if layout.attention_dp == 1:
        return all_reduce_s(cal, deployment, m * row)
    size, everything = layout.stage_gpus, m * layout.attention_dp * row
    gathered = _nccl_s(cal, deployment, "all_gather", everything, size)
    gathered = gathered + _nccl_s(cal, deployment, "reduce_scatter", everything, size)
    copies = m / layout.tp * min(model.num_experts_per_token, layout.ep) * row
    narrow = min(weight_bytes(dtype_of(deployment, "experts")), ACTIVATION_BYTES) / ACTIVATION_BYTES
    there = _exchange_s(cal, deployment, copies * max(narrow, 0.5))
    exchanged = there + _exchange_s(cal, deployment, copies)
    return np.asarray(np.minimum(gathered, exchanged), dtype=np.float64)


def _exchange_s(cal: Calibration, deployment: Deployment, sent_bytes: Floats) -> Floats:
    """Seconds of one all-to-all of `sent_bytes` of every rank.

    Over NVLink that spans hosts, engines store into the others' memory themselves: a barrier, and the bytes.
    """
    h, size = deployment.hierarchy, deployment.layout.stage_gpus
    seconds = _nccl_s(cal, deployment, "all_to_all", sent_bytes, size)
    if not h.gpus_per_host < size <= h.gpus_per_node:
        return seconds
    own_s = deployment.stack.all_reduce_s + sent_bytes * (size - 1) / size / h.scaleup.bandwidth_bytes_per_s
    return np.minimum(seconds, own_s)


def all_reduce_s(cal: Calibration, deployment: Deployment, message_bytes: Floats) -> Floats:
    """Seconds of an all-reduce over the tensor-parallel group.

    NCCL, or the engine's own kernel for small messages. Over PCIe engines have it between two GPUs that read
    each other's memory, and no more (vLLM 0.28, custom_all_reduce.py; issue 56128).

    Own kernel: latency + bytes·min(n − 1, 2·(n − 1)/n·…)/bandwidth, one-shot (every rank reads all others) or
    two-shot (reduce-scatter then all-gather), whichever is shorter. Over PCIe it is no faster a byte than
    NCCL's largest messages were measured.
    """
    n, h, stack = deployment.layout.tp, deployment.hierarchy, deployment.stack
    if n == 1:
        return np.zeros_like(message_bytes)
    nccl = _nccl_s(cal, deployment, "all_reduce", message_bytes, n)
    pairs_alone = h.scaleup.kind == "pcie" and (n > CUSTOM_ALL_REDUCE_PCIE_GPUS or not h.gpu.peer_to_peer)
    if n > h.gpus_per_node or pairs_alone or not stack.own_all_reduce:
        return nccl
    rate = h.scaleup.bandwidth_bytes_per_s
    if h.scaleup.kind == "pcie":
        most = CUSTOM_ALL_REDUCE_MOST_BYTES
        rate = 2 * (n - 1) / n * most / float(collective_time(cal, h, "all_reduce", most, n, 1))
    one_shot = stack.all_reduce_s + message_bytes * (n - 1) / rate
    two_shot = 2 * stack.all_reduce_s + message_bytes * 2 * (n - 1) / n / rate
    engine_s = np.minimum(one_shot, two_shot)
    return np.where(message_bytes <= CUSTOM_ALL_REDUCE_MOST_BYTES, np.minimum(nccl, engine_s), nccl)


def _nccl_s(cal: Calibration, deployment: Deployment, op: str, message_bytes: Floats, size: int) -> Floats:
    """Seconds of one of NCCL's collectives over neighbouring GPUs, with peer access or through their host."""
    h = deployment.hierarchy if deployment.peers else through_hosts(deployment.hierarchy)
    return collective_time(cal, h, op, message_bytes, size, 1)


def elementwise_s(deployment: Deployment, m: Floats) -> Floats:
    """Seconds of one layer's memory-bound passes.

    Two norms with residuals (4·H each way), rotary, activation.
    """
    model, tp = deployment.model, deployment.layout.tp
    inner = model.feed_forward().inner_size
    per_token = 8 * model.hidden_size + (2 * model.query_size + 3 * inner) / tp
    rate = deployment.hierarchy.gpu.memory_bandwidth_bytes_per_s
    return np.asarray(m * per_token * ACTIVATION_BYTES / rate, dtype=np.float64)


def small_kernels(deployment: Deployment, kind: LayerKind) -> int:
    """Kernels of one layer besides GEMMs, attention, experts and reductions.

    Every layer: two norms with residuals, rotary, cache write, and one that quantises what attention gives to
    its output projection where that multiplies in eight or four bits (a norm or an activation quantises what
    it writes itself); then those of its kinds of attention and feed-forward.
    """
    model = deployment.model
    mixing = model.attention.more_kernels if kind.attention not in ("recurrence", "none") else 0
    kinds = mixing + model.feed_forward(kind.mlp).more_kernels
    dtype = dtype_of(deployment, "output projection")
    return 4 + _is_quantised(dtype, deployment.hierarchy.gpu) + 2 * model.qk_norm + kinds


def _is_quantised(dtype: str, gpu: Gpu) -> bool:
    """Whether products of this format have quantised inputs on a GPU."""
    return dtype in QUANTISED_ACTIVATIONS and dtype in gpu.peak_flop_per_s


def operations(deployment: Deployment, kind: LayerKind) -> int:
    """Operations of one layer that a host launches, each by itself, where no graph holds them.

    Two norms with the reductions before them; attention with rotary and cache write, and what its kind has
    besides; products, with one more each where their inputs are quantised; the activation; of routed experts
    the router, their choice, their fused kernels and their sum. Branches on a second stream (norms of latent
    attention, experts that every token passes) have the events that part and join the streams.
    """
    model, gpu = deployment.model, deployment.hierarchy.gpu
    of_product = {
        part: 1 + _is_quantised(dtype_of(deployment, part), gpu) for part in ("attention", "mlp", "experts")
    }
    last = _is_quantised(dtype_of(deployment, "output projection"), gpu) + 1 - of_product["attention"]
    count = 2 + len(mixer_products(deployment, kind)) * of_product["attention"]
    if kind.attention != "none":
        count += last
        mixing = model.attention.more_kernels if kind.attention != "recurrence" else 0
        count += 1 + model.qk_norm + mixing + STREAM_EVENTS * bool(mixing)
    if kind.mlp != "none":
        block = model.feed_forward(kind.mlp)
        common = bool(block.common_width[1])
        count += common * (DENSE_PRODUCTS * of_product["mlp"] + 1)
        if block.copies:
            unpacked = "fp4" not in gpu.peak_flop_per_s and dtype_of(deployment, "experts") == "fp4"
            divided = deployment.layout.ep > 1
            routed = deployment.stack.unpacking_operations[divided] if unpacked else ROUTED_OPERATIONS
            count += routed + of_product["experts"] - 1 + STREAM_EVENTS * common
    return count


def decode_attention_s(
    cal: Calibration, deployment: Deployment, batch: ArrayLike, context: ArrayLike
) -> Floats:
    """Seconds of the cores of one stage, `batch` requests per rank with `context` tokens each."""
    model, stages, stack = deployment.model, stages_alike(deployment), deployment.stack
    total = np.zeros(np.broadcast(np.asarray(batch), np.asarray(context)).shape)
    for run in layer_runs(model):
        total = total + decode_core_s(cal, deployment, run.kind, batch, context) * run.count / stages
    joined = model.num_layers / stages * joining_s(cal, deployment, batch)
    return (total + joined) * stack.kernel_level


def joining_s(cal: Calibration, deployment: Deployment, batch: ArrayLike) -> Floats:
    """Seconds of one layer in which decode-context-parallel ranks bring queries together and sum outputs.

    An all-gather of the queries of all their heads, one of the log-sum-exp of each (four bytes), and a
    reduce-scatter of the outputs, in bf16, of every token of `batch` requests (vLLM 0.33's ag_rs backend).
    Latent queries are r + rope wide and their outputs r.
    """
    model, layout, n = deployment.model, deployment.layout, deployment.layout.dcp
    rows = np.asarray(batch, dtype=np.float64) * (1 + deployment.draft_tokens)
    if n == 1:
        return np.zeros_like(rows)
    heads = rows * model.num_attention_heads / layout.tp * n
    query, value = model.attention.decode_widths
    parts = (("all_gather", 2.0 * query), ("all_gather", 4.0), ("reduce_scatter", 2.0 * value))
    seconds = (_nccl_s(cal, deployment, op, heads * each, n) for op, each in parts)
    return np.asarray(sum(seconds), dtype=np.float64)


def prefill_attention_s(
    cal: Calibration, deployment: Deployment, query: ArrayLike, past: ArrayLike
) -> Floats:
    """Seconds of the cores of one stage for one prompt chunk of `query` tokens after `past` ones.

    Ranks that hold a part of the tokens each gather what is cached of the `past` ones first.
    """
    model, layout, stages = deployment.model, deployment.layout, stages_alike(deployment)
    total = np.zeros(np.broadcast(np.asarray(query), np.asarray(past)).shape)
    for run in layer_runs(model):
        total = total + prefill_core_s(cal, deployment, run.kind, query, past) * run.count / stages
    if layout.dcp > 1:
        cached = np.asarray(past) * model.attention.cached_numbers(layout.tp) * deployment.kv_bytes
        gathered = _nccl_s(cal, deployment, "all_gather", cached, layout.dcp)
        total = total + gathered * model.num_layers / stages
    return total * deployment.stack.kernel_level


def _dense_s(cal: Calibration, deployment: Deployment, m: Floats, width: float, tp: int) -> Floats:
    """Seconds of a feed-forward block of inner size `width`."""
    model, dtype = deployment.model, dtype_of(deployment, "mlp")
    into = (2 if model.gated_mlp else 1) * width / tp
    up = _gemm(cal, deployment, dtype, m, into, model.hidden_size)
    return up + _gemm(cal, deployment, dtype, m, model.hidden_size, width / tp)


def _gemm(cal: Calibration, deployment: Deployment, dtype: str, m: Floats, n: float, k: float) -> Floats:
    """Seconds of one projection on the deployment's GPU."""
    return compute.gemm_time(cal, deployment.hierarchy.gpu, dtype, m, n, k).seconds
