"""Families of Hugging Face configurations whose layers mix tokens by a recurrence and by attention.

What changes shapes and is not understood here is a problem, and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from costmodel.models.hf.dense import attention_biases, decoder
from costmodel.models.hf.reader import ConfigReader
from costmodel.models.hf.rotary import read_rotary
from costmodel.models.recurrence import Recurrence
from costmodel.models.routing import Routing
from topology.base.errors import shown

_NO_POSITIONS = "attention without positions"
_ATTENTION = ("full_attention", "attention")
_RECURRENCE = ("linear_attention", "mamba")


def _pattern(r: ConfigReader, key: str, usual: Sequence[str], letters: Mapping[str, str]) -> str:
    """One letter a layer from a list of kinds of layers, by default `usual`."""
    stated = r.config.get(key)
    kinds = usual if stated is None else stated
    if not isinstance(kinds, list | tuple) or not kinds:
        r.problems.append(f"{key} = {shown(kinds)} is not a list of kinds of layers")
        return next(iter(letters.values()))
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in letters]
    if unknown:
        r.problems.append(f"{key} has {shown(unknown[0])}, not one of {', '.join(letters)}")
        return next(iter(letters.values())) * len(kinds)
    return "".join(letters[kind] for kind in kinds)


def _whole_layers(r: ConfigReader, usual: Sequence[str], dense: int, *, key: str = "layer_types") -> str:
    """Letters of layers of a mixer and a feed-forward; `dense` layers lead, the others have experts."""
    letters = dict.fromkeys(_RECURRENCE, "L") | dict.fromkeys(_ATTENTION, "A")
    layers = r.size("num_hidden_layers")
    pattern = _pattern(r, key, usual, letters)
    if len(pattern) != layers:
        r.problems.append(f"{key} names {len(pattern)} layers, num_hidden_layers is {layers}")
        return ""
    return pattern[:dense].lower() + pattern[dense:]


def _every(r: ConfigReader, interval: int) -> list[str]:
    """Kinds of layers of which every `interval`-th has attention."""
    layers = range(1, r.size("num_hidden_layers") + 1)
    return ["linear_attention" if layer % interval else "full_attention" for layer in layers]


def _qwen_hybrid(r: ConfigReader, *, dense: bool) -> dict[str, Any]:
    """Common to Qwen3-Next and Qwen3.5: Gated DeltaNet, and gated attention on every fourth layer."""
    if not r.flag("attn_output_gate", default=True):
        r.problems.append("attn_output_gate = false is not supported")
    usual = _every(r, r.size("full_attention_interval", default=4))
    inner = r.size("moe_intermediate_size" if not dense else "intermediate_size")
    recurrence = Recurrence(
        kind="gated-delta",
        key_heads=r.size("linear_num_key_heads", default=16),
        value_heads=r.size("linear_num_value_heads", default=32),
        key_dim=r.size("linear_key_head_dim", default=128),
        value_dim=r.size("linear_value_head_dim", default=128),
        conv_kernel=r.size("linear_conv_kernel_dim", default=4),
    )
    return {
        **decoder(r, head_dim=256, intermediate=inner),
        **attention_biases(r),
        "norm": "rmsnorm1p",
        "qk_norm": True,
        "attention_gate": True,
        "rotary": read_rotary(r, theta=1e7, fraction=0.25),
        "layer_pattern": _whole_layers(r, usual, r.size("num_hidden_layers") if dense else 0),
        "recurrence": recurrence,
    }


def _qwen_hybrid_moe(r: ConfigReader) -> dict[str, Any]:
    """Qwen3-Next and Qwen3.5 with experts on every layer, and a gated shared one."""
    if r.config.get("decoder_sparse_step", 1) != 1 or r.config.get("mlp_only_layers"):
        r.problems.append("dense layers (decoder_sparse_step, mlp_only_layers) are not supported")
    return {
        **_qwen_hybrid(r, dense=False),
        "num_experts": r.size("num_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok"),
        "moe_intermediate_size": r.size("moe_intermediate_size"),
        "shared_expert_size": r.size("shared_expert_intermediate_size"),
        "shared_expert_gate": True,
        "routing": Routing(norm_topk_prob=r.flag("norm_topk_prob", default=True)),
        "router_aux_loss_coef": r.weight("router_aux_loss_coef"),
    }


def _qwen3_5(r: ConfigReader) -> dict[str, Any]:
    """Qwen3.5 without experts."""
    return _qwen_hybrid(r, dense=True)


_BLOCKS = {
    "linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip


def _nemotron_h(r: ConfigReader) -> dict[str, Any]:
    """Nemotron-H and Nemotron 3: layers of one block, no positions, squared ReLU without a gate."""
    stated = r.config.get("hybrid_override_pattern")
    if isinstance(stated, str):
        pattern = stated
        if set(pattern) - set("M*-E") or not pattern:
            r.problems.append(
                f"hybrid_override_pattern = {shown(stated)} has letters other than M, *, - and E"
            )
            pattern = "M*"
    else:
        pattern = _pattern(r, "layers_block_type", ("mamba", "moe", "attention", "mlp"), _BLOCKS)
    for key in ("use_bias", "mamba_proj_bias"):
        if r.flag(key, default=False):
            r.problems.append(f"{key} = true is not supported")
    if not r.flag("use_conv_bias", default=True):
        r.problems.append("use_conv_bias = false is not supported")
    if "E" in pattern and r.flag("mlp_bias", default=False):
        r.problems.append("mlp_bias = true beside experts is not supported")
    r.departures.append(_NO_POSITIONS)
    hidden, heads = r.size("hidden_size"), r.size("num_attention_heads")
    experts = {
        "num_experts": r.size("n_routed_experts", default=8),
        "num_experts_per_token": r.size("num_experts_per_tok", default=2),
        "moe_intermediate_size": r.size("moe_intermediate_size", default=7688),
        "shared_expert_size": r.size("moe_shared_expert_intermediate_size", default=7688)
        * r.count("n_shared_experts", 1),
        "moe_latent_size": r.count("moe_latent_size"),
        "routing": _sigmoid_routing(r),
        "router_bias": True,
    }
    return {
        "num_layers": len(pattern),
        "hidden_size": hidden,
        "intermediate_size": r.size("intermediate_size", default=21504),
        "num_attention_heads": heads,
        "num_key_value_heads": r.size("num_key_value_heads", default=heads),
        "head_dim": r.size("head_dim", "attention_head_dim", default=128),
        "vocab_size": r.size("vocab_size"),
        "max_sequence_length": r.size("max_position_embeddings", default=4096),
        "tie_word_embeddings": r.flag("tie_word_embeddings", default=False),
        "norm_epsilon": r.positive("layer_norm_epsilon", 1e-5),
        "activation": r.activation("mlp_hidden_act", "relu2"),
        "gated_mlp": False,
        "mlp_bias": r.flag("mlp_bias", default=False),
        **attention_biases(r),
        "layer_pattern": pattern,
        **({"recurrence": _mamba2(r, "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups")}
           if "M" in pattern else {}),
        **(experts if "E" in pattern else {}),
    }  # fmt: skip


LONGEST_WITHOUT_POSITIONS = 1_048_576
"""Tokens of a sequence that nothing limits: no position is learned, no key kept."""


def _mamba2_alone(r: ConfigReader) -> dict[str, Any]:
    """Mamba-2 without attention: every layer is one mixer, and its heads stand for those of attention."""
    if r.flag("use_bias", default=False):
        r.problems.append("use_bias = true is not supported")
    if not r.flag("use_conv_bias", default=True):
        r.problems.append("use_conv_bias = false is not supported")
    layers, hidden = r.size("num_hidden_layers"), r.size("hidden_size")
    recurrence = _mamba2(r, "num_heads", "head_dim", "state_size", "n_groups")
    if recurrence.value_width != r.size("expand", default=2) * hidden:
        r.problems.append(f"num_heads x head_dim = {recurrence.value_width} is not expand x hidden_size")
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": recurrence.value_width,
        "num_attention_heads": recurrence.value_heads,
        "num_key_value_heads": recurrence.value_heads,
        "head_dim": recurrence.value_dim,
        "vocab_size": r.size("vocab_size"),
        "max_sequence_length": r.size("max_position_embeddings", default=LONGEST_WITHOUT_POSITIONS),
        "tie_word_embeddings": r.flag("tie_word_embeddings", default=False),
        "norm_epsilon": r.positive("layer_norm_epsilon", 1e-5),
        "activation": r.activation("hidden_act", "silu"),
        "gated_mlp": False,
        "layer_pattern": "M" * layers,
        "recurrence": recurrence,
    }


def _mamba2(r: ConfigReader, heads: str, head_dim: str, state: str, groups: str) -> Recurrence:
    """Mamba-2 under a family's keys."""
    return Recurrence(
        kind="mamba2",
        key_heads=r.size(groups, "mamba_n_groups", default=1),
        value_heads=r.size(heads),
        key_dim=r.size(state, default=128),
        value_dim=r.size(head_dim),
        conv_kernel=r.size("conv_kernel", "mamba_d_conv", default=4),
        chunk=r.size("chunk_size", "mamba_chunk_size", default=128),
    )


def _sigmoid_routing(r: ConfigReader) -> Routing:
    """Sigmoid scores with a bias that only chooses."""
    return Routing(
        scoring_func="sigmoid",
        norm_topk_prob=r.flag("norm_topk_prob", default=True),
        routed_scaling_factor=r.positive("routed_scaling_factor", 1.0),
        n_group=r.size("n_group", default=1),
        topk_group=r.size("topk_group", default=1),
        bias_selects=True,
    )


def _granite_hybrid(r: ConfigReader) -> dict[str, Any]:
    """Granite 4 H: Mamba-2 or attention, then experts with a shared one, or the shared one alone."""
    for key in ("mamba_proj_bias", "attention_bias"):
        if r.flag(key, default=False):
            r.problems.append(f"{key} = true is not supported")
    if not r.flag("mamba_conv_bias", default=True):
        r.problems.append("mamba_conv_bias = false is not supported")
    for key in ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"):
        r.expects(key, 1.0)
    r.expects("position_embedding_type", "rope")
    layers, hidden, shared = (
        r.size("num_hidden_layers"),
        r.size("hidden_size"),
        r.size("shared_intermediate_size"),
    )
    experts = r.count("num_local_experts", 8)
    inner = r.size("mamba_expand", default=2) * hidden
    key = "layers_block_type" if r.config.get("layers_block_type") else "layer_types"
    stated = r.config.get("mamba_d_head", "auto")
    heads = r.size("mamba_n_heads", default=128)
    sized = r if stated != "auto" else r.within({**r.config, "mamba_d_head": max(1, inner // heads)})
    moe = {
        "num_experts": experts,
        "num_experts_per_token": r.size("num_experts_per_tok"),
        "moe_intermediate_size": r.size("intermediate_size"),
        "shared_expert_size": shared,
        "routing": Routing(norm_topk_prob=True),
        "router_aux_loss_coef": r.weight("router_aux_loss_coef"),
    }
    return {
        **decoder(r),
        "intermediate_size": shared,
        "rotary": read_rotary(r),
        "layer_pattern": _whole_layers(r, ["linear_attention"] * layers, 0 if experts else layers, key=key),
        "recurrence": _mamba2(sized, "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups"),
        **(moe if experts else {}),
    }


def _kimi_linear(r: ConfigReader) -> dict[str, Any]:
    """Kimi-Linear: Kimi Delta Attention, and latent attention without positions on every fourth layer."""
    layers, dense = r.size("num_hidden_layers"), r.count("first_k_dense_replace", 1)
    linear = r.within(r.table("linear_attn_config") or {})
    full = linear.config.get("full_attn_layers")
    chosen = set(range(5, layers + 1, 4))
    if isinstance(full, list) and all(isinstance(layer, int) for layer in full):
        chosen = set(full)
    elif full is not None:
        r.problems.append("full_attn_layers is no list of layers")
    usual = ["full_attention" if layer in chosen else "linear_attention" for layer in range(1, layers + 1)]
    if r.config.get("moe_layer_freq", 1) != 1:
        r.problems.append("moe_layer_freq other than 1 is not supported")
    r.departures.append(_NO_POSITIONS)
    if blocks := r.count("attn_res_block_size"):
        r.departures.append(f"residuals that attend to blocks of {blocks} layers (attn_res_block_size)")
    heads = linear.size("num_heads", default=r.size("linear_num_heads", default=32))
    width = linear.size("head_dim", default=r.size("linear_head_dim", default=128))
    kernel = r.size("linear_conv_kernel_dim", default=4)
    nope, rope = r.size("qk_nope_head_dim", default=128), r.size("qk_rope_head_dim", default=64)
    inner = r.size("moe_intermediate_size")
    return {
        **decoder(r, epsilon=1e-5, positions=1048576),
        "head_dim": nope + rope,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": r.size("v_head_dim", default=128),
        "q_lora_rank": r.count("q_lora_rank"),
        "kv_lora_rank": r.size("kv_lora_rank", default=512),
        "layer_pattern": _whole_layers(r, usual, dense),
        "recurrence": Recurrence(
            kind="kimi-delta", key_heads=heads, value_heads=heads, key_dim=width, value_dim=width,
            conv_kernel=linear.size("short_conv_kernel_size", default=kernel),
            full_rank_gate=linear.flag("use_full_rank_gate", default=False),
        ),
        "attention_gate": r.flag("mla_use_output_gate", default=False),
        "moe_latent_size": r.count("routed_expert_hidden_size"),
        "num_experts": r.size("num_experts", "num_local_experts"),
        "num_experts_per_token": r.size("num_experts_per_token", "num_experts_per_tok"),
        "moe_intermediate_size": inner,
        "shared_expert_size": inner * r.count("num_shared_experts", r.count("n_shared_experts", 1)),
        "routing": _sigmoid_routing(r.within({"routed_scaling_factor": 2.446, **r.config})),
        "router_bias": True,
    }  # fmt: skip


def _minimax(r: ConfigReader) -> dict[str, Any]:
    """MiniMax-Text-01 and M1: Lightning attention, and attention on every eighth layer; experts on all."""
    stated = r.config.get("attn_type_list")
    usual = _every(r, 2)[1:] + _every(r, 2)[:1]
    if isinstance(stated, list):
        usual = ["full_attention" if kind else "linear_attention" for kind in stated]
    if (
        any(r.config.get("shared_intermediate_size") or [0])
        if isinstance(r.config.get("shared_intermediate_size"), list)
        else r.config.get("shared_intermediate_size")
    ):
        r.problems.append("shared_intermediate_size (shared experts) is not supported")
    r.departures.append("residuals of the normed input, scaled (MiniMax-01)")
    sizes = decoder(r, epsilon=1e-5)
    heads, width = sizes["num_attention_heads"], sizes["head_dim"]
    return {
        **sizes,
        "rotary": read_rotary(r, theta=1e7, fraction=r.size("rotary_dim", default=width) / width),
        "layer_pattern": _whole_layers(r, usual, 0),
        "recurrence": Recurrence(
            kind="lightning", key_heads=heads, value_heads=heads, key_dim=width, value_dim=width,
            conv_kernel=0, chunk=r.size("block_size", default=256),
        ),
        "num_experts": r.size("num_local_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok"),
        "moe_intermediate_size": r.size("intermediate_size"),
        "router_aux_loss_coef": r.weight("router_aux_loss_coef"),
    }  # fmt: skip


HYBRID_FAMILIES: Mapping[str, Callable[[ConfigReader], dict[str, Any]]] = {
    "qwen3_next": _qwen_hybrid_moe,
    "qwen3_5": _qwen3_5,
    "qwen3_5_text": _qwen3_5,
    "qwen3_5_moe": _qwen_hybrid_moe,
    "qwen3_5_moe_text": _qwen_hybrid_moe,
    "nemotron_h": _nemotron_h,
    "mamba2": _mamba2_alone,
    "granitemoehybrid": _granite_hybrid,
    "kimi_linear": _kimi_linear,
    "minimax": _minimax,
    "minimax_text_01": _minimax,
    "minimax_m1": _minimax,
}
