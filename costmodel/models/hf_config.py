"""A Hugging Face ``config.json`` as a `ModelSpec`.

Each family states its sizes under its own keys and leaves others to the defaults of its configuration
in ``transformers``; one small function per family knows both. Everything wrong with a file is reported at
once. What a file says that a `ModelSpec` cannot is kept in its `unmodelled`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from costmodel.models.hf_reader import ConfigReader
from costmodel.models.hf_rotary import read_rotary, read_rotary_by_layer
from costmodel.models.rotary import Rotary
from costmodel.models.routing import Routing
from costmodel.models.spec import ModelSpec
from topology.base.decode import as_text, read_json
from topology.base.errors import InputError, shown

_MISSING = object()


def read_config(path: str | Path) -> ModelSpec:
    """Give the model that a ``config.json``, or a folder holding one, describes."""
    file = Path(path)
    if os.path.isfile(file / "config.json"):  # noqa: PTH113 - Path.is_file raises on a name that is too long
        file = file / "config.json"
    config = read_json(file)
    if not isinstance(config, dict):
        raise InputError(f"{path} is not a model configuration", "its top level is not an object", _FIX)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return model_of_config(config, name=as_text(name), source=as_text(str(path)))


def model_of_config(config: Mapping[str, Any], *, name: str, source: str = "") -> ModelSpec:
    """Give the model that a decoded configuration describes.

    >>> sizes = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    >>> model_of_config({"model_type": "gpt2", **sizes}, name="gpt-2").intermediate_size
    3072
    """
    family = config.get("model_type", _MISSING)
    if family == "gemma3" and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    if not isinstance(family, str) or family not in _FAMILIES:
        cause = "missing key model_type" if family is _MISSING else f"model_type {shown(family)} is not known"
        raise InputError(
            f"{source or name} describes no model", cause, f"known: {', '.join(sorted(_FAMILIES))}"
        )
    reader = ConfigReader(config=config)
    sizes = _FAMILIES[family](reader)
    if reader.problems:
        cause = "; ".join(dict.fromkeys(reader.problems))
        raise InputError(f"{source or name} is not a complete {family} configuration", cause, _FIX)
    departures = tuple(dict.fromkeys(reader.departures))
    return ModelSpec(name=name, source=source, unmodelled=departures, **sizes)


_FIX = "give the config.json that was published with the model"


def _decoder(
    r: ConfigReader, *, tied: bool = False, epsilon: float = 1e-6, **defaults: int
) -> dict[str, Any]:
    """Sizes under the keys that nearly every family shares; `defaults` are the family's own."""
    heads = r.size("num_attention_heads", default=defaults.get("heads"))
    hidden = r.size("hidden_size")
    return {
        "num_layers": r.size("num_hidden_layers"),
        "hidden_size": hidden,
        "intermediate_size": r.size("intermediate_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": r.size("num_key_value_heads", default=defaults.get("kv_heads", heads)),
        "head_dim": r.size("head_dim", default=defaults.get("head_dim", max(1, hidden // heads))),
        "vocab_size": r.size("vocab_size", default=defaults.get("vocabulary")),
        "max_sequence_length": r.size("max_position_embeddings", default=defaults.get("positions")),
        "tie_word_embeddings": r.flag("tie_word_embeddings", default=tied),
        "norm_epsilon": r.positive("rms_norm_eps", epsilon),
        "activation": r.activation("hidden_act", "silu"),
    }


def _attention_biases(r: ConfigReader, *, default: bool = False) -> dict[str, Any]:
    """Biases of all four projections of attention alike."""
    bias = r.flag("attention_bias", default=default)
    return {"qkv_bias": bias, "attention_output_bias": bias}


def _llama(r: ConfigReader) -> dict[str, Any]:
    """Llama: biases only where stated."""
    biases = {**_attention_biases(r), "mlp_bias": r.flag("mlp_bias", default=False)}
    return {**_decoder(r), **biases, "rotary": read_rotary(r)}


def _mistral(r: ConfigReader, *, window: int = 4096) -> dict[str, Any]:
    """Mistral: a window, if any, on every layer."""
    windows = r.windows(window, trailing=r.size("num_hidden_layers"))
    return {**_decoder(r), **windows, "rotary": read_rotary(r)}


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
    return {**_mistral(r, window=0), **experts}


def _late_windows(r: ConfigReader) -> dict[str, Any]:
    """Qwen's windows: if switched on, from layer `max_window_layers` up."""
    if not r.flag("use_sliding_window", default=False):
        return {}
    layers = r.size("num_hidden_layers")
    return r.windows(4096, trailing=layers - min(layers, r.count("max_window_layers", 28)))


def _qwen2(r: ConfigReader) -> dict[str, Any]:
    """Qwen2 and 2.5: biased q, k, v."""
    return {**_decoder(r), "qkv_bias": True, "rotary": read_rotary(r), **_late_windows(r)}


def _qwen3(r: ConfigReader) -> dict[str, Any]:
    """Qwen3: normed query and key heads of their own size."""
    specific = {"qk_norm": True, "rotary": read_rotary(r), **_attention_biases(r), **_late_windows(r)}
    return {**_decoder(r, head_dim=128), **specific}


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
    specific = {"qk_norm": True, "rotary": read_rotary(r), **_attention_biases(r)}
    return {**_decoder(r), **specific, **windows, **experts}


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
    return {**_decoder(r), **latent, **experts}


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


def _deepseek_v3(r: ConfigReader) -> dict[str, Any]:
    """DeepSeek-V3: sigmoid scores with a bias that only chooses."""
    r.expects("topk_method", "noaux_tc")
    r.expects("scoring_func", "sigmoid")
    routing = Routing(
        scoring_func="sigmoid",
        norm_topk_prob=r.flag("norm_topk_prob", default=True),
        routed_scaling_factor=r.positive("routed_scaling_factor", 2.5),
        n_group=r.size("n_group", default=8),
        topk_group=r.size("topk_group", default=4),
        bias_selects=True,
    )
    return _deepseek(r, routing, interleaved=r.flag("rope_interleave", default=True))


def _glm4_moe(r: ConfigReader) -> dict[str, Any]:
    """GLM-4.5: grouped-query attention with biased q, k, v, and DeepSeek-V3's experts."""
    inner = r.size("moe_intermediate_size")
    routing = Routing(
        scoring_func="sigmoid",
        norm_topk_prob=r.flag("norm_topk_prob", default=True),
        routed_scaling_factor=r.positive("routed_scaling_factor", 1.0),
        n_group=r.size("n_group", default=1),
        topk_group=r.size("topk_group", default=1),
        bias_selects=True,
    )
    specific = {
        "qkv_bias": r.flag("attention_bias", default=False),
        "qk_norm": r.flag("use_qk_norm", default=False),
        "rotary": read_rotary(r, fraction=0.5),
        "num_experts": r.size("n_routed_experts", "num_local_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok"),
        "moe_intermediate_size": inner,
        "shared_expert_size": inner * r.count("n_shared_experts", 1),
        "num_dense_layers": r.count("first_k_dense_replace", 1),
        "routing": routing,
        "router_bias": True,
    }
    return {**_decoder(r, epsilon=1e-5), **specific}


SWIGLU_ALPHA = 1.702  # slope of gpt-oss's sigmoid, a literal of its published code


def _gpt_oss(r: ConfigReader) -> dict[str, Any]:
    """gpt-oss: biases everywhere, attention sinks, a window on every other layer, experts on all."""
    r.expects("swiglu_alpha", SWIGLU_ALPHA)
    specific = {
        **_attention_biases(r, default=True),
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
    return {**_decoder(r, head_dim=64, epsilon=1e-5), **specific, **r.windows(128, pattern=2)}


def _gpt_oss_rotary(r: ConfigReader) -> Rotary:
    """gpt-oss: stretched 32 times where the file does not say otherwise."""
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
    unstated = not (r.config.get("rope_scaling") or r.config.get("rope_parameters"))
    return read_rotary(r.within({**r.config, "rope_scaling": yarn}) if unstated else r, theta=150_000.0)


def _gemma(r: ConfigReader) -> dict[str, Any]:
    """Common to Gemma 2 and 3: four norms around one, scaled embeddings, and scores scaled by a number."""
    r.expects("use_bidirectional_attention", usual=False)
    return {
        "norm": "rmsnorm1p",
        "norms_per_layer": 4,
        "scale_embeddings": True,
        "activation": r.activation("hidden_activation", "gelu_tanh"),
        "query_pre_attn_scalar": r.positive("query_pre_attn_scalar", 256),
        **_attention_biases(r),
    }


def _gemma2(r: ConfigReader) -> dict[str, Any]:
    """Gemma 2: capped scores and logits, tied embeddings, a window on every other layer."""
    caps = {
        "attn_logit_softcapping": r.optional("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": r.optional("final_logit_softcapping", 30.0),
    }
    window = r.windows(4096, pattern=2)
    return {**_decoder(r, tied=True, head_dim=256), **_gemma(r), **caps, **window, "rotary": read_rotary(r)}


def _gemma3(r: ConfigReader) -> dict[str, Any]:
    """Gemma 3 (text part): normed heads, and five windowed layers with their own rotary base to one full."""
    r.expects("attn_logit_softcapping", None)
    specific = {
        "qk_norm": True,
        "final_logit_softcapping": r.optional("final_logit_softcapping"),
        "rotary": read_rotary_by_layer(r, theta=1e6, sliding_theta=1e4),
    }
    sizes = _decoder(r, tied=True, heads=8, kv_heads=4, head_dim=256, vocabulary=262208, positions=131072)
    pattern = r.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return {**sizes, **_gemma(r), **specific, **r.windows(4096, pattern=pattern)}


def _nemotron(r: ConfigReader) -> dict[str, Any]:
    """Nemotron-4: squared ReLU without a gate, layer norm around one, half of each head turned."""
    specific = {
        "gated_mlp": False,
        "norm": "layernorm1p",
        "norm_epsilon": r.positive("norm_eps", 1e-5),
        "activation": r.activation("hidden_act", "relu2"),
        "rotary": read_rotary(r, fraction=0.5),
        **_attention_biases(r),
        "mlp_bias": r.flag("mlp_bias", default=False),
    }
    return {**_decoder(r), **specific}


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


_FAMILIES: dict[str, Callable[[ConfigReader], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "kimi_k2": _deepseek_v3,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "nemotron": _nemotron,
    "gpt2": _gpt2,
}
