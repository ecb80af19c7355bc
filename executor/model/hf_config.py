"""A `ModelSpec` as the Hugging Face ``config.json`` of a family that computes it.

The words are those that published files have and every version of ``transformers`` reads. A family is chosen
by reading back: the first whose file describes the very same model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from costmodel.models.hf.config import model_of_config
from costmodel.models.rotary import RopeScaling
from costmodel.models.spec import Activation, ModelSpec, is_sliding
from topology.base.errors import InputError

Words = dict[str, Any]
NOT_WRITTEN = ("as_of", "weight_format", "num_nextn_predict_layers", "left_out", "stored", "encoder")
"""What a file does not say: modules that predict further tokens, and towers, have no weights here, so none
are named; nor are the formats of a published checkpoint, as weights are written in one."""


class Published(NamedTuple):
    """A model in the words of a family."""

    family: str
    config: Words


def published_config(spec: ModelSpec) -> Published:
    """Write the ``config.json`` of a model; `InputError` where no known family computes it."""
    for family, (architecture, words) in _FAMILIES.items():
        config = {"architectures": [architecture], "model_type": family, **words(spec)}
        try:
            read = model_of_config(config, name=spec.name, source=spec.source)
        except InputError:
            continue
        apart = {name: getattr(spec, name) for name in NOT_WRITTEN}
        if replace(read, **apart) == spec:
            return Published(family, config)
    raise InputError(
        what=f"{spec.name} cannot be written as a Hugging Face config.json",
        cause="; ".join(spec.unmodelled) or "no family of transformers known here has all of its settings",
        fix=f"families that can be written: {', '.join(_FAMILIES)}",
    )


def _decoder(spec: ModelSpec) -> Words:
    """What nearly every family shares, and positions."""
    return {
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_sequence_length,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "rms_norm_eps": spec.norm_epsilon,
        "hidden_act": _ACTIVATIONS[spec.activation],
        "attention_bias": spec.qkv_bias and spec.attention_output_bias,
        "rope_theta": spec.rotary.theta,
        "rope_scaling": None if spec.rotary.scaling is None else _scaling(spec.rotary.scaling),
    }


_ACTIVATIONS: Mapping[Activation, str] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu2": "relu2",
}


def _scaling(scaling: RopeScaling) -> Words:
    """Stretching of angles."""
    words: Words = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind != "linear":
        words["original_max_position_embeddings"] = scaling.original_max_position_embeddings
    if scaling.kind == "llama3":
        words |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "yarn":
        words |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        words |= {} if scaling.attention_factor is None else {"attention_factor": scaling.attention_factor}
        words |= {key: value for key in ("mscale", "mscale_all_dim") if (value := getattr(scaling, key))}
        words |= {} if scaling.truncate else {"truncate": False}
    return words


def _windows(spec: ModelSpec) -> Words:
    """The window, and the kind of every layer."""
    kinds = [
        "sliding_attention" if is_sliding(spec, layer) else "full_attention"
        for layer in range(spec.num_layers)
    ]
    return {"sliding_window": spec.sliding_window, "layer_types": kinds}


def _llama(spec: ModelSpec) -> Words:
    return {**_decoder(spec), "mlp_bias": spec.mlp_bias}


def _mistral(spec: ModelSpec) -> Words:
    return {**_decoder(spec), "sliding_window": spec.sliding_window}


def _qwen(spec: ModelSpec) -> Words:
    late = {"use_sliding_window": True, "max_window_layers": spec.num_layers - spec.num_sliding_layers}
    return {**_decoder(spec), **(late | _windows(spec) if spec.sliding_window else {})}


def _mixtral(spec: ModelSpec) -> Words:
    return {
        **_mistral(spec),
        "num_local_experts": spec.num_experts,
        "num_experts_per_tok": spec.num_experts_per_token,
        "router_aux_loss_coef": spec.router_aux_loss_coef,
    }


def _qwen3_moe(spec: ModelSpec) -> Words:
    return {
        **_qwen(spec),
        "num_experts": spec.num_experts,
        "num_experts_per_tok": spec.num_experts_per_token,
        "moe_intermediate_size": spec.moe_intermediate_size,
        "mlp_only_layers": list(range(spec.num_dense_layers)),
        "decoder_sparse_step": 1,
        "norm_topk_prob": spec.routing.norm_topk_prob,
        "router_aux_loss_coef": spec.router_aux_loss_coef,
    }


def _grouped_experts(spec: ModelSpec) -> Words:
    """DeepSeek's experts, which GLM has too."""
    routing = spec.routing
    return {
        "n_routed_experts": spec.num_experts,
        "num_experts_per_tok": spec.num_experts_per_token,
        "moe_intermediate_size": spec.moe_intermediate_size,
        "n_shared_experts": spec.shared_expert_size // max(1, spec.moe_intermediate_size),
        "first_k_dense_replace": spec.num_dense_layers,
        "norm_topk_prob": routing.norm_topk_prob,
        "routed_scaling_factor": routing.routed_scaling_factor,
        "n_group": routing.n_group,
        "topk_group": routing.topk_group,
    }


def _deepseek(spec: ModelSpec) -> Words:
    """Latent attention."""
    config = {
        "q_lora_rank": spec.q_lora_rank or None,
        "kv_lora_rank": spec.kv_lora_rank,
        "qk_nope_head_dim": spec.qk_nope_head_dim,
        "qk_rope_head_dim": spec.qk_rope_head_dim,
        "v_head_dim": spec.v_head_dim,
        "aux_loss_alpha": spec.router_aux_loss_coef,
        "scoring_func": spec.routing.scoring_func,
    }
    shared = {key: value for key, value in _decoder(spec).items() if key != "head_dim"}
    return {**shared, **_grouped_experts(spec), **config}


def _deepseek_v2(spec: ModelSpec) -> Words:
    method = "group_limited_greedy" if spec.routing.n_group > 1 else "greedy"
    return {**_deepseek(spec), "topk_method": method}


def _deepseek_v3(spec: ModelSpec) -> Words:
    return {**_deepseek(spec), "topk_method": "noaux_tc", "rope_interleave": spec.rotary.interleaved}


def _glm4_moe(spec: ModelSpec) -> Words:
    config = {
        "attention_bias": spec.qkv_bias,
        "use_qk_norm": spec.qk_norm,
        "partial_rotary_factor": spec.rotary.fraction,
    }
    return {**_decoder(spec), **_grouped_experts(spec), **config}


def _gpt_oss(spec: ModelSpec) -> Words:
    return {
        **_decoder(spec),
        **_windows(spec),
        "num_local_experts": spec.num_experts,
        "num_experts_per_tok": spec.num_experts_per_token,
        "swiglu_limit": spec.swiglu_limit,
        "router_aux_loss_coef": spec.router_aux_loss_coef,
    }


def _gemma(spec: ModelSpec) -> Words:
    return {
        **{key: value for key, value in _decoder(spec).items() if key != "hidden_act"},
        **_windows(spec),
        "hidden_activation": _ACTIVATIONS[spec.activation],
        "query_pre_attn_scalar": _whole(spec.query_pre_attn_scalar),
        "final_logit_softcapping": spec.final_logit_softcapping,
        "attn_logit_softcapping": spec.attn_logit_softcapping,
    }


def _whole(number: float | None) -> float | None:
    """A whole number as one, which transformers asks for."""
    return int(number) if number is not None and number.is_integer() else number


def _gemma3(spec: ModelSpec) -> Words:
    local = {} if spec.rotary.sliding_theta is None else {"rope_local_base_freq": spec.rotary.sliding_theta}
    return {**_gemma(spec), **local}


def _nemotron(spec: ModelSpec) -> Words:
    config = {
        "norm_eps": spec.norm_epsilon,
        "mlp_bias": spec.mlp_bias,
        "partial_rotary_factor": spec.rotary.fraction,
    }
    return {key: value for key, value in _decoder(spec).items() if key != "rms_norm_eps"} | config


def _gpt2(spec: ModelSpec) -> Words:
    return {
        "n_layer": spec.num_layers,
        "n_embd": spec.hidden_size,
        "n_head": spec.num_attention_heads,
        "n_inner": spec.intermediate_size,
        "n_positions": spec.learned_positions,
        "vocab_size": spec.vocab_size,
        "activation_function": {"gelu_tanh": "gelu_new"}.get(spec.activation, spec.activation),
        "layer_norm_epsilon": spec.norm_epsilon,
        "tie_word_embeddings": spec.tie_word_embeddings,
    }


_FAMILIES: Mapping[str, tuple[str, Callable[[ModelSpec], Words]]] = {
    "llama": ("LlamaForCausalLM", _llama),
    "mistral": ("MistralForCausalLM", _mistral),
    "qwen2": ("Qwen2ForCausalLM", _qwen),
    "qwen3": ("Qwen3ForCausalLM", _qwen),
    "mixtral": ("MixtralForCausalLM", _mixtral),
    "qwen3_moe": ("Qwen3MoeForCausalLM", _qwen3_moe),
    "deepseek_v2": ("DeepseekV2ForCausalLM", _deepseek_v2),
    "deepseek_v3": ("DeepseekV3ForCausalLM", _deepseek_v3),
    "glm4_moe": ("Glm4MoeForCausalLM", _glm4_moe),
    "gpt_oss": ("GptOssForCausalLM", _gpt_oss),
    "gemma2": ("Gemma2ForCausalLM", _gemma),
    "gemma3_text": ("Gemma3ForCausalLM", _gemma3),
    "nemotron": ("NemotronForCausalLM", _nemotron),
    "gpt2": ("GPT2LMHeadModel", _gpt2),
}
