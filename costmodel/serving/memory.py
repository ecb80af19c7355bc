"""Memory of one GPU of a replica: weights, workspace, and what is left for the KV cache, in tokens.

    kv_tokens = cache / bytes of a token on the fullest stage,   cache by what the engine's fraction is of:
    memory: fraction·memory − weights − context − activations      (vLLM)
    static: fraction·memory − weights − context                    (SGLang: activations come out of the rest)
    free:   fraction·(memory − weights − context − activations)    (TensorRT-LLM)

Legend: ``H`` hidden, ``V`` vocabulary, ``m`` tokens of the largest step.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.memory.stage import MemoryBreakdown
from costmodel.models.parameters import norm_parameters, norms_of
from costmodel.models.recurrence import FLOAT_BYTES
from costmodel.models.spec import LayerKind, layer_runs
from costmodel.models.streams import BLOCKS, connection_parameters
from costmodel.serving.adapters import adapters_layer_bytes
from costmodel.serving.deployment import (
    Deployment,
    draft_of,
    drafter_of,
    is_as_published,
    layers_of_stages,
    stages_of,
    stored_bytes,
    weight_bytes,
)
from costmodel.serving.mixers import kept_bytes, mixer_parameters_of_rank
from costmodel.serving.pages import paged_request_bytes
from costmodel.updates.offload import LINK_EFFICIENCY
from topology.base.errors import InputError
from topology.hardware.datasheets import gpu_sheets

SAMPLING_BYTES = 22.0
"""Bytes of one logit while a batch is sampled: bf16, a float copy, its sorted copy with indices, and
probabilities. Engines profile their memory with a batch that does all of it."""
MOST_SAMPLED = 1024  # requests that a scheduler's engine samples at once, by default, on large GPUs
ENDLESS = 1e15  # tokens of a request whose windows and states are no share of what it keeps
NORM_BYTES = 2.0  # norms and the router stay in bf16


def weights_bytes(deployment: Deployment) -> float:
    """Bytes of weights on the fullest GPU of a replica, those of its drafter among them.

    Every stage holds its layers; the first also the embedding, the last the output projection (vocabulary
    split over tp; a tied matrix is stored once without a pipeline). Of a stage that is looked at, its own.
    """
    model, layout, stage = deployment.model, deployment.layout, deployment.stage
    per_layer = _mean_layer_bytes(deployment)
    vocabulary = model.vocab_size * model.hidden_size * weight_bytes("bf16") / layout.tp
    layers = layers_of_stages(deployment)
    drafts = draft_weights_bytes(deployment)
    if layout.pp == 1:
        return per_layer * layers[0] + vocabulary * (1 if model.tie_word_embeddings else 2) + drafts
    last = layout.pp - 1
    if stage is not None:
        return layers[stage] * per_layer + vocabulary * (stage in (0, last)) + drafts * (stage == last)
    outer_stage = max(layers[0], layers[-1]) * per_layer + vocabulary + drafts
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
    narrow = stored_bytes(deployment, "shared" if block.copies else "mlp")
    held = block.expert_parameters * (1 + deployment.expert_copies / max(model.num_experts, 1))
    experts = held / layout.stage_gpus * stored_bytes(deployment, "experts") * tile_share(deployment)
    common = (block.common_parameters / layout.tp + block.latent_parameters) * narrow
    adapters = adapters_layer_bytes(deployment, kind)
    return fixed + experts + common + block.router_parameters * NORM_BYTES + adapters


def workspace_bytes(deployment: Deployment, *, token_budget: int, max_batch: int) -> float:
    """Bytes of activations of the largest step and of sampling the largest batch, on one GPU.

    The fused expert kernels keep every routed copy of a token's output until they are summed.
    """
    model, layout = deployment.model, deployment.layout
    block = model.feed_forward()
    inner = 2 * (model.query_size + 2 * block.inner_size) / layout.tp
    width = (4 + block.copies) * model.hidden_size + inner
    rows = min(max_batch / layout.attention_dp, MOST_SAMPLED)
    return token_budget * width * 2.0 + rows * model.vocab_size * SAMPLING_BYTES


def engine_bytes(deployment: Deployment) -> float:
    """Bytes that the engine itself holds on one GPU: CUDA context, communicators, captured graphs.

    Most of it are communicators' buffers over NVLink, which a GPU without such links does not have, however
    many of them there are. A GPU without a data sheet is taken to have links.
    """
    stack, sheet = deployment.stack, gpu_sheets().get(deployment.hierarchy.gpu.name)
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
    ranks = deployment.layout.attention_dp
    block = deployment.stack.kv_block_tokens
    tokens = parts.kv_cache_bytes / kv_bytes_per_token(deployment, context)
    return max(int(tokens // block), 0) * block * ranks


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
    cache = _left_bytes(deployment, weights, activations, memory_fraction)
    return MemoryBreakdown(
        weights_bytes=weights,
        gradients_bytes=0.0,
        optimizer_bytes=0.0,
        activations_bytes=activations,
        kv_cache_bytes=max(cache, 0.0),
        buffers_bytes=0.0,
        overhead_bytes=engine_bytes(deployment),
    )


def cache_left_bytes(deployment: Deployment, *, token_budget: int, max_batch: int) -> float:
    """Bytes that the fullest GPU has left for a cache; below 0 by what it lacks."""
    if deployment.layout.is_uneven and deployment.stage is None:
        deployment = scarcest_stage(deployment, token_budget=token_budget, max_batch=max_batch)
    activations = workspace_bytes(deployment, token_budget=token_budget, max_batch=max_batch)
    return _left_bytes(deployment, weights_bytes(deployment), activations, None)


def _left_bytes(
    deployment: Deployment, weights: float, activations: float, memory_fraction: float | None
) -> float:
    """Bytes that the engine's memory setting leaves beside these."""
    stack, memory = deployment.stack, deployment.hierarchy.gpu.memory_bytes
    fraction = stack.memory_fraction if memory_fraction is None else memory_fraction
    held = weights + engine_bytes(deployment)
    free = memory - held - activations
    return {
        "memory": fraction * memory - held - activations,
        "static": min(fraction * memory - held, free),
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


def _mean_layer_bytes(deployment: Deployment) -> float:
    """Bytes of one layer's weights on one GPU, averaged over the kinds of layers."""
    runs, model = layer_runs(deployment.model), deployment.model
    mean = sum(run.count * layer_weights_bytes(deployment, run.kind) for run in runs) / model.num_layers
    edges = 2 * model.stored.edge_layers / model.num_layers
    if not edges or not is_as_published(deployment):
        return mean
    return (1 - edges) * mean + edges * _mean_layer_bytes(replace(deployment, weights="bf16"))
