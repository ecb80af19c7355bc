"""What a model is, in Megatron-LM's arguments, and what of it they cannot say.

Names and meanings are those of ``megatron/training/arguments.py`` (commit 000c4ac, 2025):
``--use-rope-scaling`` is Llama 3.1's with its fixed bounds, softmax scores are normalised unless
``--moe-router-pre-softmax``, sigmoid scores always, groups of experts are ranked by the sum of their best
top-k / group-top-k, and a router has a bias where linear layers have.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.models.rotary import RopeScaling
from costmodel.models.spec import ModelSpec

_LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=8192)
_YARN = RopeScaling(kind="yarn", factor=1.0, original_max_position_embeddings=4096)


def model_arguments(model: ModelSpec) -> list[str]:
    """Words for sizes, positions, norms, activation, attention and biases; experts are `expert_arguments`."""
    words = [
        "--num-layers", str(model.num_layers),
        "--hidden-size", str(model.hidden_size),
        "--ffn-hidden-size", str(model.intermediate_size),
        "--num-attention-heads", str(model.num_attention_heads),
        "--kv-channels", str(model.head_dim),
    ]  # fmt: skip
    if model.attention.whole_heads != model.num_attention_heads:
        words += ["--group-query-attention", "--num-query-groups", str(model.num_key_value_heads)]
    words += _norms(model) + _activation(model) + _positions(model) + _attention(model)
    words += [] if _biased_everywhere(model) else ["--disable-bias-linear"]
    words += ["--add-qkv-bias"] if model.qkv_bias and not _biased_everywhere(model) else []
    return words if model.tie_word_embeddings else [*words, "--untie-embeddings-and-output-weights"]


def _is_latent(model: ModelSpec) -> bool:
    """Whether attention goes through latents, which Megatron builds as another module."""
    return model.attention.name == "latent"


def _norms(model: ModelSpec) -> list[str]:
    """Kind of the norms, what their weights count from, and epsilon."""
    kind = "RMSNorm" if model.norm.startswith("rms") else "LayerNorm"
    words = ["--normalization", kind, "--norm-epsilon", f"{model.norm_epsilon:g}"]
    words += ["--apply-layernorm-1p"] if model.norm.endswith("1p") else []
    return words + (["--qk-layernorm"] if model.qk_norm or _is_latent(model) else [])  # norms of latents


def _activation(model: ModelSpec) -> list[str]:
    """Activation of the feed-forward; plain GELU is Megatron's own."""
    if model.swiglu_limit is not None:
        clamp = ["--activation-func-clamp-value", f"{model.swiglu_limit:g}"]
        return ["--quick-geglu", "--glu-linear-offset", "1.0", *clamp]
    if model.gated_mlp:
        return ["--swiglu"] if model.activation == "silu" else []
    return ["--squared-relu"] if model.activation == "relu2" else []


def _positions(model: ModelSpec) -> list[str]:
    """Rotary positions and their stretching."""
    if model.learned_positions:
        return []
    rotary, scaling = model.rotary, model.rotary.scaling
    words = ["--position-embedding-type", "rope", "--rotary-base", str(round(rotary.theta))]
    words += ["--rotary-percent", f"{rotary.fraction:g}"] if rotary.fraction != 1 else []
    if scaling is None or _inexpressible_scaling(model):
        return [*words, "--rope-type", "rope"] if _is_latent(model) else words
    factor = f"{scaling.factor:g}"
    if scaling.kind == "llama3":
        return [*words, "--use-rope-scaling", "--rope-scaling-factor", factor]
    if scaling.kind == "linear":
        return [*words, "--rotary-seq-len-interpolation-factor", factor]
    words += ["--rope-type", "yarn", "--rotary-scaling-factor", factor]
    return [*words, "--mscale", f"{scaling.mscale:g}", "--mscale-all-dim", f"{scaling.mscale_all_dim:g}"]


def _inexpressible_scaling(model: ModelSpec) -> bool:
    """Whether the stretching of rotary angles has no arguments, or bounds other than Megatron's."""
    found = model.rotary.scaling
    if found is None:
        return False
    if found.kind == "linear":
        return found.factor != round(found.factor) or model.rotary.sliding_theta is not None
    if found.kind == "llama3":
        return replace(found, factor=_LLAMA3.factor) != _LLAMA3
    usual = replace(found, factor=_YARN.factor, mscale=_YARN.mscale, mscale_all_dim=_YARN.mscale_all_dim)
    return not _is_latent(model) or usual != _YARN


def _attention(model: ModelSpec) -> list[str]:
    """Latent projections, windows and sinks; a window of w tokens reaches w − 1 to the left."""
    words: list[str] = []
    if _is_latent(model):
        words += ["--multi-latent-attention", "--kv-lora-rank", str(model.kv_lora_rank)]
        words += ["--q-lora-rank", str(model.q_lora_rank)] if model.q_lora_rank else []
        words += ["--qk-head-dim", str(model.qk_nope_head_dim), "--v-head-dim", str(model.v_head_dim)]
        words += ["--qk-pos-emb-head-dim", str(model.qk_rope_head_dim)]
    if model.sliding_window is not None and model.num_sliding_layers:
        words += ["--window-size", f"{model.sliding_window - 1},0"]
        full = model.num_layers - model.num_sliding_layers
        if model.sliding_window_pattern:
            words += ["--window-attn-skip-freq", str(model.sliding_window_pattern)]
        elif full:
            words += ["--window-attn-skip-freq", f"([0]*{full}+[1]*{model.num_sliding_layers})"]
    return words + (["--softmax-type", "learnable"] if model.attention_sinks else [])


def expert_arguments(model: ModelSpec) -> list[str]:
    """Words for experts, their router, and the layers that have them."""
    routing = model.routing
    words = [
        "--num-experts", str(model.num_experts),
        "--moe-router-topk", str(model.num_experts_per_token),
        "--moe-ffn-hidden-size", str(model.moe_intermediate_size),
        "--moe-router-score-function", routing.scoring_func,
        "--moe-router-dtype", "fp32",
    ]  # fmt: skip
    if routing.scoring_func == "softmax" and not routing.norm_topk_prob:
        words.append("--moe-router-pre-softmax")
    if routing.routed_scaling_factor != 1:
        words += ["--moe-router-topk-scaling-factor", f"{routing.routed_scaling_factor:g}"]
    if routing.n_group > 1:
        words += ["--moe-router-num-groups", str(routing.n_group)]
        words += ["--moe-router-group-topk", str(routing.topk_group)]
    words += ["--moe-router-enable-expert-bias"] if routing.bias_selects else []
    if model.router_aux_loss_coef:
        words += ["--moe-router-load-balancing-type", "aux_loss"]
        words += ["--moe-aux-loss-coeff", f"{model.router_aux_loss_coef:g}"]
    if model.num_dense_layers:
        dense, moe = model.num_dense_layers, model.num_layers - model.num_dense_layers
        words += ["--moe-layer-freq", f"([0]*{dense}+[1]*{moe})"]
    if model.shared_expert_size:
        words += ["--moe-shared-expert-intermediate-size", str(model.shared_expert_size)]
    return words


def _biased_everywhere(model: ModelSpec) -> bool:
    """Whether every linear layer of attention and feed-forward has a bias."""
    return model.qkv_bias and model.attention_output_bias and model.mlp_bias


def not_said(model: ModelSpec) -> list[str]:
    """What the model has and the arguments cannot say."""
    routing, sigmoid = model.routing, model.routing.scoring_func == "sigmoid"
    scaling = model.rotary.scaling.kind if model.rotary.scaling else "none"
    best_of_group = model.num_experts_per_token // routing.topk_group
    missing = {
        "biases of attention's output or the feed-forward alone": not _biased_everywhere(model)
        and (model.attention_output_bias or model.mlp_bias),
        "four norms per layer": model.norms_per_layer > 2,
        f"the gate of the feed-forward ({model.activation})": model.gated_mlp
        and model.activation != "silu",
        f"rope scaling ({scaling})": _inexpressible_scaling(model),
        "the rotary base of windowed layers": model.rotary.sliding_theta is not None,
        "the scale of attention's scores": model.query_pre_attn_scalar not in (None, model.head_dim),
        "soft caps": model.attn_logit_softcapping is not None or model.final_logit_softcapping is not None,
        "scaled embeddings": model.scale_embeddings,
        "the router's bias": model.router_bias
        and not routing.bias_selects
        and not _biased_everywhere(model),
        "the norm of routing weights": sigmoid and not routing.norm_topk_prob,
        "the rank of a group of experts": routing.n_group > 1
        and best_of_group != (2 if routing.bias_selects else 1),
    }  # fmt: skip
    return [name for name, has in missing.items() if has] + list(model.unmodelled)
