"""Families of Hugging Face configurations with experts: a function each knows keys and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costmodel.models.hf.dense import attention_biases, decoder, mistral
from costmodel.models.hf.reader import ConfigReader
from costmodel.models.hf.rotary import read_rotary
from costmodel.models.rotary import Rotary
from costmodel.models.routing import Routing


def _mixtral(r: ConfigReader) -> dict[str, Any]:
    """Mixtral: every feed-forward is routed, at the size of a dense one."""
    r.expects("router_jitter_noise", 0.0)
    experts = {
        "norm_epsilon": r.positive("rms_norm_eps", 1e-5),
        "rotary": read_rotary(r, theta=1e6),
        "num_experts": r.size("num_local_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok"),
        "moe_intermediate_size": r.size("intermediate_size"),
        "router_aux_loss_coef": r.weight("router_aux_loss_coef"),
    }
    return {**mistral(r, window=0), **experts}


def _qwen3_moe(r: ConfigReader) -> dict[str, Any]:
    """Qwen3 with experts on every layer, but for leading layers listed as dense."""
    if r.config.get("decoder_sparse_step", 1) != 1:
        r.problems.append(
            "decoder_sparse_step other than 1 (dense layers between expert layers) is not supported"
        )
    dense = r.config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or dense != list(range(len(dense))):
        r.problems.append("mlp_only_layers other than the first layers are not supported")
        dense = []
    windowed = r.flag("use_sliding_window", default=False)
    windows = r.windows(4096, trailing=r.size("num_hidden_layers")) if windowed else {}
    head = r.size("head_dim", default=r.size("hidden_size") // r.size("num_attention_heads"))
    experts = {
        "head_dim": head,
        "num_experts": r.size("num_experts", "num_local_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok"),
        "moe_intermediate_size": r.size("moe_intermediate_size"),
        "num_dense_layers": len(dense),
        "routing": Routing(norm_topk_prob=r.flag("norm_topk_prob", default=False)),
        "router_aux_loss_coef": r.weight("router_aux_loss_coef"),
    }
    specific = {"qk_norm": True, "rotary": read_rotary(r), **attention_biases(r)}
    return {**decoder(r), **specific, **windows, **experts}


def _deepseek(r: ConfigReader, routing: Routing, *, interleaved: bool) -> dict[str, Any]:
    """Latent attention, shared experts, leading dense layers."""
    if r.config.get("moe_layer_freq", 1) != 1:
        r.problems.append("moe_layer_freq other than 1 is not supported")
    for key in ("attention_bias", "mlp_bias"):
        r.expects(key, usual=False)
    nope, rope = r.size("qk_nope_head_dim"), r.size("qk_rope_head_dim")
    inner = r.size("moe_intermediate_size")
    latent = {
        "head_dim": nope + rope,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": r.size("v_head_dim"),
        "q_lora_rank": r.count("q_lora_rank"),
        "kv_lora_rank": r.size("kv_lora_rank"),
        "rotary": read_rotary(r, interleaved=interleaved),
    }
    experts = {
        "num_experts": r.size("n_routed_experts", "num_experts", "num_local_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok"),
        "moe_intermediate_size": inner,
        "shared_expert_size": inner * r.count("n_shared_experts"),
        "num_dense_layers": r.count("first_k_dense_replace"),
        "routing": routing,
        "router_bias": routing.bias_selects,
        "router_aux_loss_coef": r.weight("aux_loss_alpha"),
    }
    return {**decoder(r), **latent, **experts}


def _deepseek_v2(r: ConfigReader) -> dict[str, Any]:
    """DeepSeek-V2: softmax scores; published weights were trained without normalising them."""
    limited = r.config.get("topk_method", "greedy") == "group_limited_greedy"
    if not limited:
        r.expects("topk_method", "greedy")
    r.expects("scoring_func", "softmax")
    r.expects("norm_topk_prob", usual=False)
    routing = Routing(
        norm_topk_prob=False,
        routed_scaling_factor=r.positive("routed_scaling_factor", 1.0),
        n_group=r.size("n_group", default=1) if limited else 1,
        topk_group=r.size("topk_group", default=1) if limited else 1,
    )
    return _deepseek(r, routing, interleaved=True)


def _biased_routing(r: ConfigReader, *, scale: float, groups: int, chosen: int) -> Routing:
    """Sigmoid scores with a bias that only chooses; the numbers are the family's defaults."""
    return Routing(
        scoring_func="sigmoid",
        norm_topk_prob=r.flag("norm_topk_prob", default=True),
        routed_scaling_factor=r.positive("routed_scaling_factor", scale),
        n_group=r.size("n_group", default=groups),
        topk_group=r.size("topk_group", default=chosen),
        bias_selects=True,
    )


def _deepseek_v3(r: ConfigReader) -> dict[str, Any]:
    """DeepSeek-V3: sigmoid scores with a bias that only chooses."""
    r.expects("topk_method", "noaux_tc")
    r.expects("scoring_func", "sigmoid")
    routing = _biased_routing(r, scale=2.5, groups=8, chosen=4)
    return _deepseek(r, routing, interleaved=r.flag("rope_interleave", default=True))


def _glm4_moe(r: ConfigReader) -> dict[str, Any]:
    """GLM-4.5: grouped-query attention with biased q, k, v, and DeepSeek-V3's experts."""
    inner = r.size("moe_intermediate_size")
    specific = {
        "qkv_bias": r.flag("attention_bias", default=False),
        "qk_norm": r.flag("use_qk_norm", default=False),
        "rotary": read_rotary(r, fraction=0.5),
        "num_experts": r.size("n_routed_experts", "num_local_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok"),
        "moe_intermediate_size": inner,
        "shared_expert_size": inner * r.count("n_shared_experts", 1),
        "num_dense_layers": r.count("first_k_dense_replace", 1),
        "routing": _biased_routing(r, scale=1.0, groups=1, chosen=1),
        "router_bias": True,
    }
    return {**decoder(r, epsilon=1e-5), **specific}


def _minimax_m2(r: ConfigReader) -> dict[str, Any]:
    """MiniMax-M2: experts on every layer, half of each head turned, one norm over all heads together."""
    if r.flag("use_qk_norm", default=True):
        r.departures.append("use_qk_norm = true (over all heads together)")
    r.expects("scoring_func", "sigmoid")
    inner, head = r.size("intermediate_size"), r.size("head_dim", default=128)
    fraction = r.size("rotary_dim", default=head // 2) / head
    specific = {
        "rotary": read_rotary(r, theta=5e6, fraction=fraction),
        "num_experts": r.size("num_local_experts", "num_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok"),
        "moe_intermediate_size": inner,
        "shared_expert_size": r.count("shared_intermediate_size"),
        "routing": Routing(scoring_func="sigmoid", bias_selects=r.flag("use_routing_bias", default=True)),
        "router_bias": r.flag("use_routing_bias", default=True),
        "router_aux_loss_coef": r.weight("router_aux_loss_coef")
        if r.flag("output_router_logits", default=False)
        else 0.0,
    }
    return {**decoder(r, head_dim=128), **specific}


def _minimax_m3(r: ConfigReader) -> dict[str, Any]:
    """MiniMax-M3: dense layers that attend to all keys lead, the others attend to blocks that are chosen."""
    layers = r.size("num_hidden_layers")
    sparse = r.within(r.table("sparse_attention_config") or {})
    chosen = sparse.config.get("sparse_attention_freq")
    listed = isinstance(chosen, list) and len(chosen) == layers
    dense = chosen.count(0) if isinstance(chosen, list) and listed else 0
    leading = chosen if not listed else [0] * dense + [1] * (layers - dense)
    if not listed or chosen != leading or r.config.get("moe_layer_freq", leading) != leading:
        r.problems.append(
            "sparse_attention_freq and moe_layer_freq other than dense layers first are not supported"
        )
    block = sparse.size("sparse_block_size", default=128)
    r.departures.append(f"blocks of {block} keys that an indexer chose (MiniMax-M3)")
    expert = r.size("intermediate_size")
    routing = Routing(
        scoring_func="sigmoid",
        bias_selects=r.flag("use_routing_bias", default=True),
        routed_scaling_factor=r.positive("routed_scaling_factor", 2.0),
    )
    return {
        **_minimax_m2(r.within({**r.config, "use_qk_norm": False, "hidden_act": "silu"})),
        "norm": "rmsnorm1p",
        "qk_norm": True,
        "swiglu_limit": r.positive("swiglu_limit", 7.0),
        "intermediate_size": r.size("dense_intermediate_size", default=12288),
        "num_dense_layers": dense,
        "shared_expert_size": r.size("shared_intermediate_size", default=expert)
        * r.count("n_shared_experts", 1),
        "index_heads": sparse.size("sparse_num_index_heads", default=4),
        "index_head_dim": sparse.size("sparse_index_dim", default=128),
        "index_topk": block * sparse.size("sparse_topk_blocks", default=16),
        "index_layers": layers - dense,
        "unindexed_layers": dense,
        "routing": routing,
    }


def _indexed(r: ConfigReader, *, heads: int) -> dict[str, Any]:
    """DeepSeek-V3.2 and GLM-5: DeepSeek-V3 whose queries attend to the keys that an indexer chose."""
    r.departures.append("sparse attention with an indexer (DeepSeek-V3.2)")
    types = r.config.get("mlp_layer_types")
    layers, dense = r.size("num_hidden_layers"), r.count("first_k_dense_replace", 3)
    if types is not None and types != ["dense"] * dense + ["sparse"] * (layers - dense):
        r.problems.append("mlp_layer_types other than first_k_dense_replace dense layers is not supported")
    if any(kind != "indexed_attention" for kind in r.config.get("layer_types") or ()):
        r.problems.append("layer_types other than indexed_attention are not supported")
    return {
        "index_layers": _index_layers(r, layers),
        "num_dense_layers": dense,
        "index_heads": r.size("index_n_heads", default=heads),
        "index_head_dim": r.size("index_head_dim", default=128),
        "index_topk": r.size("index_topk", default=2048),
    }


def _index_layers(r: ConfigReader, layers: int) -> int:
    """Layers with an indexer of their own, 0 where all have: by a list, by a pattern, or every so many.

    Layer i reuses a choice where max(i − offset + 1, 0) is no multiple of the frequency (GLM-5.2; vllm,
    deepseek_v2.py: index_topk_freq, index_skip_topk_offset).
    """
    types = r.config.get("indexer_types") or r.config.get("index_topk_pattern")
    if types:
        if not isinstance(types, list | str) or len(types) != layers:
            r.problems.append("indexer_types or index_topk_pattern does not name every layer")
            return 0
        full = sum(str(each).lower() in ("full", "f") for each in types)
    else:
        every, offset = r.size("index_topk_freq", default=1), r.count("index_skip_topk_offset", 2)
        full = sum(max(layer - offset + 1, 0) % every == 0 for layer in range(layers))
    return 0 if full == layers else full


def _deepseek_v32(r: ConfigReader) -> dict[str, Any]:
    """DeepSeek-V3.2."""
    return {**_deepseek_v3(r), **_indexed(r, heads=64)}


def _glm_moe_dsa(r: ConfigReader) -> dict[str, Any]:
    """GLM-5: experts are not in groups."""
    routing = _biased_routing(r, scale=2.5, groups=1, chosen=1)
    latent = _deepseek(r, routing, interleaved=r.flag("rope_interleave", default=True))
    fields = {
        "norm_epsilon": r.positive("rms_norm_eps", 1e-5),
        "shared_expert_size": r.size("moe_intermediate_size") * r.count("n_shared_experts", 1),
    }
    return {**latent, **_indexed(r, heads=32), **fields}


def _llama4(r: ConfigReader) -> dict[str, Any]:
    """Llama 4: one expert of many on each layer or every other, chunks of context on three of four."""
    layers, step = r.size("num_hidden_layers"), r.size("interleave_moe_layer_step", default=1)
    stated = r.config.get("moe_layers")
    experts = set(range(step - 1, layers, step))
    if isinstance(stated, list):
        experts = {layer if isinstance(layer, int) else -1 for layer in stated}
    if not experts <= set(range(layers)):
        r.problems.append("moe_layers names layers that the model has not")
        experts = set(range(layers))
    r.departures.append("attention in chunks, and layers without rotary positions (Llama 4)")
    if r.flag("use_qk_norm", default=True):
        r.departures.append("use_qk_norm = true (a norm without weights)")
    r.departures.append("sigmoid routing that scales an expert's input (Llama 4)")
    inner = r.size("intermediate_size")
    mixed = len(experts) < layers
    specific = {
        **attention_biases(r),
        "intermediate_size": r.size("intermediate_size_mlp", default=2 * inner),
        "rotary": read_rotary(r, theta=5e5, interleaved=True),
        "num_experts": r.size("num_local_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok", default=1),
        "moe_intermediate_size": inner,
        "shared_expert_size": inner,
        "layer_pattern": "".join("aA"[layer in experts] for layer in range(layers)) if mixed else "",
        "routing": Routing(scoring_func="sigmoid", norm_topk_prob=False),
        "router_aux_loss_coef": r.weight("router_aux_loss_coef"),
    }
    return {**decoder(r, epsilon=1e-5), **specific}


SWIGLU_ALPHA = 1.702  # slope of gpt-oss's sigmoid, a literal of its published code


def _gpt_oss(r: ConfigReader) -> dict[str, Any]:
    """gpt-oss: biases everywhere, attention sinks, a window on every other layer, experts on all."""
    r.expects("swiglu_alpha", SWIGLU_ALPHA)
    specific = {
        **attention_biases(r, default=True),
        "mlp_bias": True,
        "router_bias": True,
        "attention_sinks": True,
        "swiglu_limit": r.positive("swiglu_limit", 7.0),
        "rotary": _gpt_oss_rotary(r),
        "num_experts": r.size("num_local_experts", "num_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok", "experts_per_token"),
        "moe_intermediate_size": r.size("intermediate_size"),
        "router_aux_loss_coef": r.weight("router_aux_loss_coef"),
    }
    return {**decoder(r, head_dim=64, epsilon=1e-5), **specific, **r.windows(128, pattern=2)}


def _gpt_oss_rotary(r: ConfigReader) -> Rotary:
    """gpt-oss: stretched 32 times where the file does not say otherwise."""
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
    unstated = not (r.config.get("rope_scaling") or r.config.get("rope_parameters"))
    return read_rotary(r.within({**r.config, "rope_scaling": yarn}) if unstated else r, theta=150_000.0)


EXPERT_FAMILIES: Mapping[str, Callable[[ConfigReader], dict[str, Any]]] = {
    "mixtral": _mixtral,
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_moe_text"), _qwen3_moe),
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "kimi_k2": _deepseek_v3,
    "glm4_moe": _glm4_moe,
    "deepseek_v32": _deepseek_v32,
    "glm_moe_dsa": _glm_moe_dsa,
    "llama4_text": _llama4,
    "llama4": _llama4,
    "minimax_m2": _minimax_m2,
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text"), _minimax_m3),
    "gpt_oss": _gpt_oss,
}
