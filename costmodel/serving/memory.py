"""Memory of one GPU of a replica: weights, workspace, and what is left for the KV cache, in tokens.

    kv_tokens = cache / bytes of a token on the fullest stage,   cache by what the engine's fraction is of:
    memory: fraction·memory − weights − context − activations      (vLLM)
    static: fraction·(memory − context) − weights                  (SGLang: activations come out of the rest)
    free:   fraction·(memory − weights − context − activations)    (TensorRT-LLM)

``memory`` is what CUDA hands out of a GPU (`allocatable_bytes`).

Legend: ``H`` hidden, ``V`` vocabulary, ``m`` tokens of the largest step, ``a·d`` heads and their
width, ``o`` numbers of a group of outputs.
"""

from __future__ import annotations

from dataclasses import replace
from math import floor

from costmodel.memory.stage import MemoryBreakdown
from costmodel.models.attention import LatentAttention
from costmodel.models.compressed_attention import CompressedAttention, reach_of
from costmodel.models.parameters import encoder_parameters, norm_parameters, norms_of
from costmodel.models.recurrence import FLOAT_BYTES, HALF_BYTES
from costmodel.models.spec import LayerKind, ModelSpec, layer_runs
from costmodel.models.streams import BLOCKS, connection_parameters
from costmodel.parallel.divisions import HEADS
from costmodel.serving.adapters import adapters_layer_bytes
from costmodel.serving.deployment import (
    QUANTISED_BLOCK,
    Deployment,
    draft_of,
    drafter_of,
    dtype_of,
    is_as_published,
    layers_of_stages,
    stages_of,
    stored_bytes,
    weight_bytes,
)
from costmodel.serving.graph_memory import graphs_bytes
from costmodel.serving.mixers import kept_bytes, mixer_parameters_of_rank
from costmodel.serving.pages import paged_request_bytes
from costmodel.updates.offload import LINK_EFFICIENCY
from topology.base.errors import InputError
from topology.hardware.datasheets import allocatable_bytes, generation_of, gpu_sheets

MOST_SAMPLED = 1024  # requests that a scheduler's engine samples at once, by default, on large GPUs
MOST_EXPERT_TOKENS = 32768
"""Tokens whose routed copies fused expert kernels keep at once (vLLM's VLLM_FUSED_MOE_CHUNK_SIZE)."""
ENDLESS = 1e15  # tokens of a request whose windows and states are no share of what it keeps
_ROUNDING = 1e-9  # share by which a quotient of bytes may fall short of a whole number
NORM_BYTES = 2.0  # norms and the router stay in bf16


def weights_bytes(deployment: Deployment) -> float:
    """Bytes of weights on the fullest GPU of a replica, those of its drafter among them.

    Every stage holds its layers; the first also the embedding, the last the output projection (vocabulary
    split over tp; a tied matrix is stored once without a pipeline). Of a stage that is looked at, its own.
    Each rank has the tables of positions, which engines load with them.
    """
    return _matrices_bytes(deployment) + positions_bytes(deployment.model)


def positions_bytes(model: ModelSpec) -> float:
    """Bytes of the cosines and sines of all positions that a model takes, whole on every rank.

    One number a rotated dimension, in bf16; of compressed keys in float32 (vLLM and SGLang,
    DeepseekV4ScalingRotaryEmbedding). Layers of another base have a table of their own. A log of Llama-3.1-8B
    prints 15.0 GiB, for 14.96 of parameters.

    >>> from costmodel.models.catalog import model
    >>> [round(positions_bytes(model(name)) / 2**30, 3) for name in ("llama-3.1-8b", "deepseek-v4-flash")]
    [0.031, 0.5]
    """
    compressed, attention = model.compression is not None, model.attention
    turned = getattr(attention, "rotary_dim", model.head_dim * model.rotary.fraction)
    tables = 2 if compressed or model.rotary.sliding_theta is not None else 1
    return model.max_sequence_length * turned * tables * (FLOAT_BYTES if compressed else HALF_BYTES)


def _matrices_bytes(deployment: Deployment) -> float:
    """The same without tables of positions."""
    model, layout, stage = deployment.model, deployment.layout, deployment.stage
    per_layer = _mean_layer_bytes(deployment)
    vocabulary = model.vocab_size * model.hidden_size * weight_bytes("bf16") / layout.tp
    layers = layers_of_stages(deployment)
    drafts, sees = draft_weights_bytes(deployment), encoder_weights_bytes(deployment)
    if layout.pp == 1:
        return per_layer * layers[0] + vocabulary * (1 if model.tie_word_embeddings else 2) + drafts + sees
    last = layout.pp - 1
    if stage is not None:
        beside = drafts * (stage == last) + sees * (stage == 0)
        return layers[stage] * per_layer + vocabulary * (stage in (0, last)) + beside
    outer_stage = max(layers[0], layers[-1]) * per_layer + vocabulary + max(drafts, sees)
    return max(outer_stage, max(layers) * per_layer)


def scarcest_stage(deployment: Deployment, *, token_budget: int, max_batch: int) -> Deployment:
    """The stage whose cache holds the fewest tokens, of a replica whose stages are not alike; else itself.

    Engines give every stage as many pages as the scarcest one has (vLLM, `get_kv_cache_configs`; SGLang takes
    the least of all ranks).
    """

    def tokens(stage: Deployment) -> float:
        left = cache_left_bytes(stage, token_budget=token_budget, max_batch=max_batch)
        return left / kv_bytes_per_token(stage)

    return min(stages_of(deployment), key=tokens) if deployment.layout.is_uneven else deployment


def encoder_weights_bytes(deployment: Deployment) -> float:
    """Bytes on one GPU of the tower that a server loads beside its language model, in bf16; 0 without one.

    Quantised checkpoints leave it as it is. Ranks split its layers and what joins it, if they can its heads.
    """
    if (tower := deployment.model.encoder) is None:
        return 0.0
    split, whole = encoder_parameters(tower)
    return (split / _encoder_ranks(deployment) + whole) * weight_bytes("bf16")


def _encoder_ranks(deployment: Deployment) -> int:
    """Ranks that a tower is split over."""
    tower, tp = deployment.model.encoder, deployment.layout.tp
    return tp if tower is not None and HEADS.rest(tower.num_attention_heads, tp) == 0 else 1


def draft_weights_bytes(deployment: Deployment) -> float:
    """Bytes of the drafter on one GPU: its layer, what joins hidden states, an output projection of its own.

    A model that drafts has all that a model has; the others take the embedding of the model they draft for.
    """
    draft = draft_of(deployment)
    if draft is None:
        return 0.0
    kind = drafter_of(deployment.drafter)
    if not kind.joined:
        return weights_bytes(draft)
    rows = kind.joined * draft.model.hidden_size + kind.vocabulary
    joined = rows * draft.model.hidden_size * weight_bytes("bf16") / draft.layout.tp
    return _mean_layer_bytes(draft) + joined


def layer_weights_bytes(deployment: Deployment, kind: LayerKind) -> float:
    """Bytes of one layer's weights on one GPU, and of the adapters beside them."""
    model, layout = deployment.model, deployment.layout
    block = model.feed_forward(kind.mlp)
    mixer = mixer_parameters_of_rank(deployment, kind) * stored_bytes(deployment, "attention")
    fixed = mixer + norms_of(model, kind) * norm_parameters(model, model.hidden_size) * NORM_BYTES
    fixed += BLOCKS * connection_parameters(model.hidden_size, model.residual_streams) * FLOAT_BYTES
    fixed += widened_outputs_bytes(deployment) + latent_copies_bytes(deployment)
    fixed += wide_entries_bytes(deployment, kind)
    narrow = stored_bytes(deployment, "shared" if block.copies else "mlp")
    held = block.expert_parameters * (1 + deployment.expert_copies / max(model.num_experts, 1))
    wide = stored_bytes(deployment, "experts") * tile_share(deployment) + loader_scales_bytes(deployment)
    experts = held / layout.stage_gpus * wide
    common = (block.common_parameters / layout.tp + block.latent_parameters) * narrow
    adapters = adapters_layer_bytes(deployment, kind)
    return fixed + experts + common + block.router_parameters * NORM_BYTES + adapters


def workspace_bytes(deployment: Deployment, *, token_budget: int, max_batch: int) -> float:
    """Bytes of activations of the largest step and of sampling the largest batch, on one GPU.

    A step samples no more requests than it has tokens. Both peaks are of one run: the smaller finds room
    where the larger was, unless the engine counts what PyTorch keeps. Of a stage that is looked at, the last
    alone samples, and the first alone has the tower.
    """
    layout, stack, stage = deployment.layout, deployment.stack, deployment.stage
    step = step_bytes(deployment, token_budget)
    rows = min(max_batch / layout.attention_dp, MOST_SAMPLED, token_budget)
    sampling = rows * deployment.model.vocab_size * stack.sampled_logit_bytes
    sampling *= stage in (None, layout.pp - 1)
    peak = step + sampling if stack.sums_peaks else max(step, sampling)
    return max(peak, encoder_step_bytes(deployment, token_budget))


def encoder_step_bytes(deployment: Deployment, token_budget: int) -> float:
    """Bytes of activations of a tower at its widest place, as a profile run has it; 0 where none is profiled.

    It is given one image of the largest size, or as many as fill a step. Of P patches h wide the residual,
    input and output of a block stay; attention has queries, keys and values twice, the rotated two once more
    and its outputs, 9·h/t; the feed-forward its products, 2·F/t, gated 3·F/t.
    """
    tower = deployment.model.encoder
    if tower is None or not deployment.stack.profiles_encoder or deployment.stage not in (None, 0):
        return 0.0
    image = tower.most_tokens or tower.image_tokens
    tokens = max(token_budget, image) if tower.any_size else max(token_budget // image, 1) * image
    inner = (3 if tower.gated_mlp else 2) * tower.intermediate_size
    width = 3 * tower.hidden_size + max(9 * tower.hidden_size, inner) / _encoder_ranks(deployment)
    return tokens * tower.merge * width * HALF_BYTES


def step_bytes(deployment: Deployment, token_budget: int) -> float:
    """Bytes of activations at the widest place of a step of `token_budget` tokens of an attention rank.

    Residual, input and output of a block stay, H each. Of n streams n·H stay before and after, and as much
    twice while they are mixed, in float32; n·H more where a drafter reads them. With that DeepSeek-V4-Flash
    alone on a B300 takes 3.1 GiB of 8,192 tokens; its log prints 2.99.
    Beside them are in attention queries and outputs, keys and values, in a dense block its two products and
    theirs, 3·F/tp.
    Fused expert kernels keep every routed copy of a token, of all ranks that gather their tokens, until they
    are summed: k·max(2·F/t, H) and k·F/t, of at most `MOST_EXPERT_TOKENS` tokens at once.
    """
    model, layout = deployment.model, deployment.layout
    n, H = model.residual_streams, model.hidden_size
    stays = (3 if n == 1 else 4 * n + 2 + n * (deployment.draft_tokens > 0)) * H
    widest = token_budget * _attention_numbers(deployment)
    for mlp in dict.fromkeys(run.kind.mlp for run in layer_runs(model)):
        block = model.feed_forward(mlp)
        if not block.copies:
            widest = max(widest, token_budget * 3 * block.inner_size / layout.tp)
            continue
        gathered, inner = token_budget * layout.attention_dp, model.moe_intermediate_size / layout.expert_tp
        kept = block.copies * (max(2 * inner, model.moe_latent_size or H) + inner)
        moved = 2 * gathered * H if layout.attention_dp > 1 else 0.0
        widest = max(widest, min(gathered, MOST_EXPERT_TOKENS) * kept + moved)
    scores = deployment.stack.index_logits_bytes if model.index_heads else 0.0
    return (token_budget * stays + widest) * HALF_BYTES + scores


def _attention_numbers(deployment: Deployment) -> float:
    """Numbers of two bytes that a token has at the widest place of attention: queries, outputs, keys, values.

    Of compressed keys: queries; outputs, and queries once more, of as many heads as the kernels take; what
    makes entries, in float32; queries of the indexer, whole on every rank.

    >>> from topology.builders import default_cluster
    >>> from costmodel.models.catalog import model
    >>> from costmodel.serving.deployment import ServingLayout
    >>> from costmodel.serving.engine import serving_stack
    >>> deployed = Deployment(
    ...     model=model("deepseek-v4-flash"),
    ...     hierarchy=default_cluster("h200-sxm", 8).hierarchy,
    ...     layout=ServingLayout(tp=8),
    ...     stack=serving_stack("vllm"),
    ... )
    >>> _attention_numbers(deployed) / 512  # heads: 8 queries, 64 filled up and 64 outputs, and 28.25 others
    164.25
    """
    model, tp = deployment.model, deployment.layout.tp
    numbers = 2 * model.query_size / tp + 2 * model.attention.cached_numbers(tp)
    attention, filled = model.attention, _filled_heads(deployment)
    if not isinstance(attention, CompressedAttention):
        return numbers
    numbers += 2 * attention.entry_products("sparse") + attention.index_heads * attention.index_head_dim
    if filled > model.num_attention_heads / tp:
        numbers += (2 * filled - model.num_attention_heads / tp) * model.head_dim
    return numbers


def _filled_heads(deployment: Deployment) -> float:
    """Query heads that kernels of compressed keys take on a rank; as many as it has where they take any."""
    pages, built = deployment.stack.compressed_pages, generation_of(deployment.hierarchy.gpu)
    heads = deployment.model.num_attention_heads / deployment.layout.tp
    if pages is None or built.maker != "nvidia" or built.compute_capability not in pages.filled_on:
        return heads
    return min((fill for fill in pages.query_heads if fill >= heads), default=heads)


def engine_bytes(deployment: Deployment) -> float:
    """Bytes that the engine itself counts on one GPU, without its graphs: communicators, buffers of kernels.

    Most of it are communicators' buffers over NVLink, which a GPU alone or without such links does not have,
    however many of these there are. A GPU without a data sheet is taken to have links. Kernels of compressed
    keys hold more than that on several GPUs, over whatever links.
    """
    stack, layout = deployment.stack, deployment.layout
    compressed = deployment.model.compression is not None and layout.num_gpus > 1
    least = stack.compressed_workspace_bytes if compressed else 0.0
    return max(_linked_bytes(deployment), least)


def _linked_bytes(deployment: Deployment) -> float:
    """The same by the links of the GPUs."""
    stack, sheet = deployment.stack, gpu_sheets().get(deployment.hierarchy.gpu.name)
    if stack.lone_workspace_bytes is not None and deployment.layout.num_gpus == 1:
        return stack.lone_workspace_bytes
    if stack.pcie_workspace_bytes is not None and sheet is not None and sheet.scaleup_gb_per_s == 0:
        return stack.pcie_workspace_bytes
    return stack.workspace_bytes


def kv_bytes_per_token(deployment: Deployment, context: float = float("inf"), in_flight: int = 0) -> float:
    """Bytes that one token keeps on the fullest GPU, averaged over a request of `context` tokens.

    Sliding-window layers keep at most their window (the engines' hybrid cache managers free the rest), and
    recurrent layers a state of one size, which a longer request shares among more tokens. Engines that ask
    at their start whether the longest request fits count windows with `in_flight` tokens of a step.
    """
    model = deployment.model
    length = min(context, ENDLESS)
    draft, paged = draft_of(deployment), paged_request_bytes(deployment, length, in_flight)
    if paged is not None and deployment.drafter == "mtp":
        draft = None  # its layer is in the groups of pages
    kept = paged or sum(
        run.count * kept_bytes(deployment, run.kind, length, in_flight) for run in layer_runs(model)
    )
    kept /= length
    layers, stage = layers_of_stages(deployment), deployment.stage
    held = max(layers) if stage is None else layers[stage]
    drafts = kv_bytes_per_token(draft, context, in_flight) if draft is not None else 0.0
    return kept * (held / model.num_layers) + drafts


def kv_capacity_tokens(
    deployment: Deployment,
    *,
    token_budget: int,
    max_batch: int,
    memory_fraction: float | None = None,
    context: float,
) -> int:
    """Tokens the KV cache of one replica holds, by its scarcest stage (0 when weights leave no room)."""
    deployment = scarcest_stage(deployment, token_budget=token_budget, max_batch=max_batch)
    parts = memory_breakdown(
        deployment, token_budget=token_budget, max_batch=max_batch, memory_fraction=memory_fraction
    )
    per_token = kv_bytes_per_token(deployment, context)
    tokens = whole_blocks(parts.kv_cache_bytes, per_token, deployment.stack.kv_block_tokens)
    return tokens * deployment.layout.attention_dp


def whole_blocks(cache_bytes: float, token_bytes: float, block_tokens: int) -> int:
    """Tokens that a cache holds in whole blocks, as engines hand it out; below 0 without a cache.

    >>> whole_blocks(1000.0, 1.0, 16), whole_blocks(-1.0, 1.0, 16)
    (992, -16)
    """
    blocks = cache_bytes / (token_bytes * block_tokens)
    return floor(blocks + _ROUNDING * abs(blocks)) * block_tokens


def host_cache_tokens(deployment: Deployment, context: float) -> float:
    """Tokens of `context` long requests whose cache the hosts' memory holds beside one replica.

    Every rank copies its own part, heads that several ranks hold as many times.
    """
    stages, tp = stages_of(deployment), deployment.layout.tp
    each = tp * deployment.layout.pp // len(stages)
    return deployment.host_cache_bytes / (each * sum(kv_bytes_per_token(stage, context) for stage in stages))


def host_read_s_per_token(deployment: Deployment, context: float) -> float:
    """Seconds to read one token's cache back from the host, every GPU over its own path.

    Raises:
        InputError: a GPU whose path to the host is not known.
    """
    gpu = deployment.hierarchy.gpu.name
    sheet = gpu_sheets().get(gpu)
    if sheet is None:
        raise InputError(
            what=f"the path of {gpu} to its host is not known",
            cause="--kv-offload reads caches back from host memory",
            fix="name a GPU of the catalog (plan gpus), or leave --kv-offload out",
        )
    return kv_bytes_per_token(deployment, context) / (LINK_EFFICIENCY * sheet.host_bandwidth_bytes_per_s)


def memory_breakdown(
    deployment: Deployment, *, token_budget: int, max_batch: int, memory_fraction: float | None = None
) -> MemoryBreakdown:
    """Bytes of the fullest GPU by use; the KV cache takes what the engine's memory fraction leaves.

    Where stages are not alike, of the one whose cache holds the fewest tokens.
    """
    deployment = scarcest_stage(deployment, token_budget=token_budget, max_batch=max_batch)
    weights = weights_bytes(deployment)
    activations = workspace_bytes(deployment, token_budget=token_budget, max_batch=max_batch)
    beside = engine_bytes(deployment) + graphs_bytes(deployment, max_batch)
    cache = _left_bytes(deployment, weights, activations, beside, memory_fraction)
    return MemoryBreakdown(
        weights_bytes=weights,
        gradients_bytes=0.0,
        optimizer_bytes=0.0,
        activations_bytes=activations,
        kv_cache_bytes=max(cache, 0.0),
        buffers_bytes=0.0,
        overhead_bytes=beside,
    )


def cache_left_bytes(deployment: Deployment, *, token_budget: int, max_batch: int) -> float:
    """Bytes that the fullest GPU has left for a cache; below 0 by what it lacks."""
    if deployment.layout.is_uneven and deployment.stage is None:
        deployment = scarcest_stage(deployment, token_budget=token_budget, max_batch=max_batch)
    activations = workspace_bytes(deployment, token_budget=token_budget, max_batch=max_batch)
    beside = engine_bytes(deployment) + graphs_bytes(deployment, max_batch)
    return _left_bytes(deployment, weights_bytes(deployment), activations, beside, None)


def _left_bytes(
    deployment: Deployment, weights: float, activations: float, beside: float, memory_fraction: float | None
) -> float:
    """Bytes that the engine's memory setting leaves beside these; `beside` is the engine's own."""
    stack, memory = deployment.stack, allocatable_bytes(deployment.hierarchy.gpu)
    fraction = stack.memory_fraction if memory_fraction is None else memory_fraction
    held = weights + beside
    free = memory - held - activations
    return {
        "memory": fraction * memory - held - activations,
        "static": min(fraction * (memory - beside) - weights, free),
        "free": fraction * free,
    }[stack.fraction_of]


def tile_share(deployment: Deployment) -> float:
    """Bytes of routed experts on a rank over those of their sizes: MXFP4 kernels fill up their tiles.

    >>> from topology.builders import default_cluster
    >>> from costmodel.models.catalog import model
    >>> from costmodel.serving.deployment import ServingLayout
    >>> from costmodel.serving.engine import at_version, serving_stack
    >>> deployed = Deployment(
    ...     model=model("gpt-oss-120b"),
    ...     hierarchy=default_cluster("h100-sxm", 8).hierarchy,
    ...     layout=ServingLayout(),
    ...     stack=serving_stack("vllm"),
    ...     weights="fp4",
    ... )
    >>> round(tile_share(deployed), 4)
    1.0667
    """
    model, layout, stack = deployment.model, deployment.layout, deployment.stack
    if deployment.weights != "fp4" or not is_as_published(deployment) or not model.is_moe:
        return 1.0
    native = "fp4" in deployment.hierarchy.gpu.peak_flop_per_s
    tiles = stack.native_fp4_tiles if native else stack.fp4_tiles
    outer, inner = model.moe_latent_size or model.hidden_size, model.moe_intermediate_size / layout.expert_tp
    filled = [-(-size // tile) * tile for size, tile in zip((outer, inner), tiles, strict=True)]
    return filled[0] * filled[1] / (outer * inner)


def loader_scales_bytes(deployment: Deployment) -> float:
    """Bytes a weight of scales that a loader keeps beside those of its kernels, for four-bit experts.

    Only of checkpoints whose other parts have eight bits, as DeepSeek-V4's: their loader is that of fp8.
    """
    widened = deployment.weights == "fp4" and _widens_published_fp8(deployment)
    return deployment.stack.loader_scale_bytes / QUANTISED_BLOCK if widened else 0.0


def widened_outputs_bytes(deployment: Deployment) -> float:
    """Bytes by which a layer's grouped outputs are wider than its checkpoint: a·d·o/tp numbers in bf16."""
    model = deployment.model
    if model.compression is None or not deployment.stack.widens_output_groups:
        return 0.0
    if not _widens_published_fp8(deployment):
        return 0.0
    width = model.num_attention_heads * model.head_dim * model.compression.output_rank
    return width / deployment.layout.tp * (weight_bytes("bf16") - weight_bytes("fp8"))


def wide_entries_bytes(deployment: Deployment, kind: LayerKind) -> float:
    """Bytes by which a layer's products that make entries, whole on every rank, are wider than its others.

    Checkpoints have them in bf16, engines load them so (vLLM v0.28, deepseek_v4/compressor.py: no
    quantisation of `fused_wkv_wgate`); queries of the indexer are narrow.
    """
    attention = deployment.model.attention
    if not isinstance(attention, CompressedAttention):
        return 0.0
    made = attention.entry_products(reach_of(kind.attention)) * attention.hidden_size
    return made * max(weight_bytes("bf16") - stored_bytes(deployment, "attention"), 0.0)


def latent_copies_bytes(deployment: Deployment) -> float:
    """Bytes of what a layer's heads multiply latents by, which engines keep once more, in bf16.

    vLLM, MLAAttention.process_weights_after_loading: `W_UK_T` and `W_UV` beside `kv_b_proj`; SGLang,
    deepseek_v2.post_load_weights: `w_kc` and `w_vc`. a·r·(nope + v)/tp numbers.

    >>> from topology.builders import default_cluster
    >>> from costmodel.models.catalog import model
    >>> from costmodel.serving.deployment import ServingLayout
    >>> from costmodel.serving.engine import serving_stack
    >>> deployed = Deployment(
    ...     model=model("deepseek-r1"),
    ...     hierarchy=default_cluster("h200-sxm", 8).hierarchy,
    ...     layout=ServingLayout(tp=8),
    ...     stack=serving_stack("vllm"),
    ... )
    >>> round(61 * latent_copies_bytes(deployed) / 2**30, 3)
    0.238
    """
    attention, stack = deployment.model.attention, deployment.stack
    if not (isinstance(attention, LatentAttention) and stack.copies_latents and stack.caches_latents):
        return 0.0
    heads = attention.num_attention_heads / deployment.layout.tp
    return heads * attention.rank * (attention.nope_dim + attention.value_head_dim) * weight_bytes("bf16")


def _widens_published_fp8(deployment: Deployment) -> bool:
    """Whether parts in eight bits may be widened as they are loaded: on GPUs without four-bit units."""
    native = "fp4" in deployment.hierarchy.gpu.peak_flop_per_s
    return not native and is_as_published(deployment) and dtype_of(deployment, "attention") == "fp8"


def _mean_layer_bytes(deployment: Deployment) -> float:
    """Bytes of one layer's weights on one GPU, averaged over the kinds of layers."""
    runs, model = layer_runs(deployment.model), deployment.model
    mean = sum(run.count * layer_weights_bytes(deployment, run.kind) for run in runs) / model.num_layers
    edges = 2 * model.stored.edge_layers / model.num_layers
    if not edges or not is_as_published(deployment):
        return mean
    return (1 - edges) * mean + edges * _mean_layer_bytes(replace(deployment, weights="bf16"))
