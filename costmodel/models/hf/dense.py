"""Families of Hugging Face configurations without experts: a function each knows keys and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costmodel.models.attention import GlobalHeads
from costmodel.models.hf.reader import ConfigReader
from costmodel.models.hf.rotary import read_rotary, read_rotary_by_layer
from topology.base.errors import shown


def decoder(r: ConfigReader, *, tied: bool = False, epsilon: float = 1e-6, **defaults: int) -> dict[str, Any]:
    """Sizes under the keys that nearly every family shares; `defaults` are the family's own."""
    heads = r.size("num_attention_heads", default=defaults.get("heads"))
    hidden = r.size("hidden_size")
    return {
        "num_layers": r.size("num_hidden_layers"),
        "hidden_size": hidden,
        "intermediate_size": r.size("intermediate_size", default=defaults.get("intermediate")),
        "num_attention_heads": heads,
        "num_key_value_heads": r.size("num_key_value_heads", default=defaults.get("kv_heads", heads)),
        "head_dim": r.size("head_dim", default=defaults.get("head_dim", max(1, hidden // heads))),
        "vocab_size": r.size("vocab_size", default=defaults.get("vocabulary")),
        "max_sequence_length": r.size("max_position_embeddings", default=defaults.get("positions")),
        "tie_word_embeddings": r.flag("tie_word_embeddings", default=tied),
        "norm_epsilon": r.positive("rms_norm_eps", epsilon),
        "activation": r.activation("hidden_act", "silu"),
    }


def attention_biases(r: ConfigReader, *, default: bool = False) -> dict[str, Any]:
    """Biases of all four projections of attention alike."""
    bias = r.flag("attention_bias", default=default)
    return {"qkv_bias": bias, "attention_output_bias": bias}


def _llama(r: ConfigReader) -> dict[str, Any]:
    """Llama: biases only where stated."""
    biases = {**attention_biases(r), "mlp_bias": r.flag("mlp_bias", default=False)}
    return {**decoder(r), **biases, "rotary": read_rotary(r)}


def mistral(r: ConfigReader, *, window: int = 4096) -> dict[str, Any]:
    """Mistral: a window, if any, on every layer."""
    windows = r.windows(window, trailing=r.size("num_hidden_layers"))
    return {**decoder(r), **windows, "rotary": read_rotary(r)}


def _late_windows(r: ConfigReader) -> dict[str, Any]:
    """Qwen's windows: if switched on, from layer `max_window_layers` up."""
    if not r.flag("use_sliding_window", default=False):
        return {}
    layers = r.size("num_hidden_layers")
    return r.windows(4096, trailing=layers - min(layers, r.count("max_window_layers", 28)))


def _qwen2(r: ConfigReader) -> dict[str, Any]:
    """Qwen2 and 2.5: biased q, k, v."""
    return {**decoder(r), "qkv_bias": True, "rotary": read_rotary(r), **_late_windows(r)}


def _qwen3(r: ConfigReader) -> dict[str, Any]:
    """Qwen3: normed query and key heads of their own size."""
    specific = {"qk_norm": True, "rotary": read_rotary(r), **attention_biases(r), **_late_windows(r)}
    return {**decoder(r, head_dim=128), **specific}


def _phi3(r: ConfigReader) -> dict[str, Any]:
    """Phi-3 and Phi-4: fused projections cost what single ones do; a window, if any, on every layer."""
    windows = r.windows(0, trailing=r.size("num_hidden_layers"))
    return {**decoder(r, epsilon=1e-5), **windows, "rotary": read_rotary(r)}


def _smollm3(r: ConfigReader) -> dict[str, Any]:
    """SmolLM3: a Llama whose every fourth layer knows no positions."""
    stated = r.config.get("no_rope_layers")
    interval = r.size("no_rope_layer_interval", default=4)
    if stated is None or stated != [1] * r.size("num_hidden_layers"):
        r.departures.append(f"no_rope_layer_interval = {interval} (layers without rotary positions)")
    biases = {**attention_biases(r), "mlp_bias": r.flag("mlp_bias", default=False)}
    return {**decoder(r, tied=True), **biases, **_late_windows(r), "rotary": read_rotary(r, theta=2e6)}


def _olmo2(r: ConfigReader) -> dict[str, Any]:
    """OLMo 2: norms after attention and feed-forward, and one norm over all query and over all key heads."""
    r.departures.append("norms after attention and feed-forward, and over all heads together (OLMo 2)")
    return {**decoder(r), **attention_biases(r), "rotary": read_rotary(r)}


def _olmo3(r: ConfigReader) -> dict[str, Any]:
    """OLMo 3: OLMo 2 with a window on three layers of four."""
    return {**_olmo2(r), **r.windows(4096, pattern=4)}


def _gemma(r: ConfigReader) -> dict[str, Any]:
    """Common to Gemma 2 and 3: four norms around one, scaled embeddings, and scores scaled by a number."""
    r.expects("use_bidirectional_attention", usual=False)
    return {
        "norm": "rmsnorm1p",
        "norms_per_layer": 4,
        "scale_embeddings": True,
        "activation": r.activation("hidden_activation", "gelu_tanh"),
        "query_pre_attn_scalar": r.positive("query_pre_attn_scalar", 256),
        **attention_biases(r),
    }


def _gemma2(r: ConfigReader) -> dict[str, Any]:
    """Gemma 2: capped scores and logits, tied embeddings, a window on every other layer."""
    caps = {
        "attn_logit_softcapping": r.optional("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": r.optional("final_logit_softcapping", 30.0),
    }
    window = r.windows(4096, pattern=2)
    return {
        **decoder(r, tied=True, head_dim=256),
        **_gemma(r),
        **caps,
        **window,
        "rotary": read_rotary(r),
    }


def _gemma3(r: ConfigReader) -> dict[str, Any]:
    """Gemma 3 (text part): normed heads, and five windowed layers with their own rotary base to one full."""
    r.expects("attn_logit_softcapping", None)
    specific = {
        "qk_norm": True,
        "final_logit_softcapping": r.optional("final_logit_softcapping"),
        "rotary": read_rotary_by_layer(r, theta=1e6, sliding_theta=1e4),
    }
    sizes = decoder(r, tied=True, heads=8, kv_heads=4, head_dim=256, vocabulary=262208, positions=131072)
    pattern = r.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return {**sizes, **_gemma(r), **specific, **r.windows(4096, pattern=pattern)}


_GLOBAL = "full_attention"


def _gemma4(r: ConfigReader) -> dict[str, Any]:
    """Gemma 4 (text part): a Gemma 3 whose global layers have wider heads, fewer of keys, often no values.

    Smaller ones embed tokens in every layer and share caches, which is not supported. One has experts beside
    its feed-forward, as wide as shared ones, and three further norms of a layer.
    """
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if r.config.get(key):
            r.problems.append(f"{key} = {shown(r.config[key])} (Gemma 4) is not supported")
    sizes = decoder(r, tied=True, heads=8, kv_heads=4, head_dim=256, vocabulary=262144, positions=131072)
    window, layers = r.windows(512, pattern=6), r.size("num_hidden_layers")
    alike = r.flag("attention_k_eq_v", default=False)
    specific = {
        "qk_norm": True,
        "norm": "rmsnorm",
        "query_pre_attn_scalar": 1.0,
        "final_logit_softcapping": r.optional("final_logit_softcapping"),
        "rotary": read_rotary_by_layer(r, theta=1e6, sliding_theta=1e4),
    }
    if not window:
        r.problems.append("no layer has a window (sliding_window, layer_types): not a Gemma 4")
        return {**sizes, **_gemma(r), **specific}
    period = window.pop("sliding_window_pattern", layers)
    kinds = r.config.get("layer_types") or [_GLOBAL if i % period == 0 else "" for i in range(1, layers + 1)]
    wide = r.count("num_global_key_value_heads") if alike else 0
    heads = GlobalHeads(
        num_key_value_heads=wide or sizes["num_key_value_heads"],
        head_dim=r.size("global_head_dim", default=512),
        key_value_products=1 if alike else 2,
    )
    pattern = "".join("g" if kind == _GLOBAL else "w" for kind in kinds)
    known = {**sizes, **_gemma(r), **specific, **window, "global_heads": heads, "layer_pattern": pattern}
    if not r.flag("enable_moe_block", default=False):
        return known
    experts = {
        "num_experts": r.size("num_experts"),
        "num_experts_per_token": r.size("top_k_experts"),
        "moe_intermediate_size": r.size("moe_intermediate_size"),
        "shared_expert_size": sizes["intermediate_size"],
        "norms_per_layer": known["norms_per_layer"] + 3,
    }
    return {**known, **experts, "layer_pattern": pattern.replace("w", "N").replace("g", "G")}


def _nemotron(r: ConfigReader) -> dict[str, Any]:
    """Nemotron-4: squared ReLU without a gate, layer norm around one, half of each head turned."""
    specific = {
        "gated_mlp": False,
        "norm": "layernorm1p",
        "norm_epsilon": r.positive("norm_eps", 1e-5),
        "activation": r.activation("hidden_act", "relu2"),
        "rotary": read_rotary(r, fraction=0.5),
        **attention_biases(r),
        "mlp_bias": r.flag("mlp_bias", default=False),
    }
    return {**decoder(r), **specific}


def _ministral3(r: ConfigReader) -> dict[str, Any]:
    """Ministral 3: a Mistral whose queries may be scaled by their position."""
    if (r.table("rope_parameters") or {}).get("llama_4_scaling_beta"):
        r.departures.append("llama_4_scaling_beta (queries scaled by position)")
    return mistral(r, window=0)


def _cohere(r: ConfigReader) -> dict[str, Any]:
    """Command R and R+: attention and feed-forward beside each other after one norm without shift."""
    r.departures.append(
        "attention and feed-forward beside each other after one layer norm without shift (Cohere)"
    )
    r.departures.append(f"logit_scale = {r.positive('logit_scale', 0.0625):g}")
    if r.flag("use_qk_norm", default=False):
        r.problems.append("use_qk_norm (a norm of its own for each head) is not supported")
    specific = {
        "norms_per_layer": 1,
        "norm_epsilon": r.positive("layer_norm_eps", 1e-5),
        "rotary": read_rotary(r, interleaved=True),
        **attention_biases(r),
    }
    return {**decoder(r, tied=True), **specific}


def _cohere2(r: ConfigReader) -> dict[str, Any]:
    """Command A and R7B: a window on three layers of four, the fourth without positions."""
    r.departures.append("full attention without rotary positions (Cohere 2)")
    pattern = r.size("sliding_window_pattern", "_sliding_window_pattern", default=4)
    return {**_cohere(r), **r.windows(4096, pattern=pattern)}


def _gpt2(r: ConfigReader) -> dict[str, Any]:
    """GPT-2: its own key names, learned positions, biases everywhere."""
    hidden, heads, positions = r.size("n_embd"), r.size("n_head"), r.size("n_positions", "n_ctx")
    r.expects("scale_attn_weights", usual=True)
    r.expects("scale_attn_by_inverse_layer_idx", usual=False)
    return {
        "num_layers": r.size("n_layer"),
        "hidden_size": hidden,
        "intermediate_size": r.size("n_inner", default=4 * hidden),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": max(1, hidden // heads),
        "vocab_size": r.size("vocab_size"),
        "max_sequence_length": positions,
        "learned_positions": positions,
        "tie_word_embeddings": r.flag("tie_word_embeddings", default=True),
        "gated_mlp": False,
        "activation": r.activation("activation_function", "gelu_tanh"),
        "norm": "layernorm",
        "norm_epsilon": r.positive("layer_norm_epsilon", 1e-5),
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
    }


DENSE_FAMILIES: Mapping[str, Callable[[ConfigReader], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": mistral,
    **dict.fromkeys(("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _qwen2),
    **dict.fromkeys(("qwen3", "qwen3_vl_text"), _qwen3),
    "phi3": _phi3,
    "smollm3": _smollm3,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "gemma4_text": _gemma4,
    "nemotron": _nemotron,
    "gpt2": _gpt2,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "ministral3": _ministral3,
}
