"""A Hugging Face ``config.json`` as a `ModelSpec`.

Each family states its sizes under its own keys and leaves others to the defaults of its configuration
in ``transformers``; one small function per family knows both. Everything wrong with a file is reported at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from costmodel.model import LARGEST_SIZE, ModelSpec
from topology.decode import read_json
from topology.errors import InputError

_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Typed access to a configuration that remembers every problem instead of stopping at the first."""

    config: Mapping[str, Any]
    problems: list[str] = field(default_factory=list)

    def size(self, *keys: str, default: int | None = None) -> int:
        """Give the positive integer under the first of the keys that is there, or the default."""
        value = next((self.config[key] for key in keys if self.config.get(key) is not None), default)
        if value is None:
            self.problems.append(f"missing key {keys[0]}")
        elif not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LARGEST_SIZE:
            self.problems.append(f"{keys[0]} = {value!r} is not an integer between 1 and {LARGEST_SIZE}")
        else:
            return value
        return 1

    def count(self, key: str, default: int = 0) -> int:
        """Give the integer under a key where zero and null mean none."""
        return self.size(key) if self.config.get(key, default) else 0

    def flag(self, key: str, *, default: bool) -> bool:
        """Give the truth value under a key, or the default."""
        value = self.config.get(key, default)
        if not isinstance(value, bool):
            self.problems.append(f"{key} = {value!r} is neither true nor false")
            return default
        return value

    def weight(self, *keys: str) -> float:
        """Non-negative number under the first of these keys that is given, else 0."""
        value = next((self.config[key] for key in keys if self.config.get(key) is not None), 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            self.problems.append(f"{keys[0]} is {value!r}, not a number of at least 0")
            return 0.0
        return float(value)

    def sliding_layers(self, otherwise: int) -> int:
        """How many layers `layer_types` calls sliding, or `otherwise` when it is not stated."""
        kinds = self.config.get("layer_types")
        if isinstance(kinds, list):
            return sum(kind == "sliding_attention" for kind in kinds[: self.size("num_hidden_layers")])
        return otherwise


def read_config(path: str | Path) -> ModelSpec:
    """Give the model that a ``config.json``, or a folder holding one, describes."""
    file = Path(path)
    if (file / "config.json").is_file():
        file = file / "config.json"
    config = read_json(file)
    if not isinstance(config, dict):
        raise InputError(f"{path} is not a model configuration", "its top level is not an object", _FIX)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return model_of_config(config, name=name, source=str(path))


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
        cause = "missing key model_type" if family is _MISSING else f"model_type {family!r} is not known"
        raise InputError(
            f"{source or name} describes no model", cause, f"known: {', '.join(sorted(_FAMILIES))}"
        )
    reader = _Reader(config=config)
    sizes = _FAMILIES[family](reader)
    if reader.problems:
        cause = "; ".join(dict.fromkeys(reader.problems))
        raise InputError(f"{source or name} is not a complete {family} configuration", cause, _FIX)
    return ModelSpec(name=name, source=source, **sizes)


_FIX = "give the config.json that was published with the model"


def _decoder(r: _Reader, *, tied: bool = False, **defaults: int) -> dict[str, Any]:
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
    }


def _llama(r: _Reader) -> dict[str, Any]:
    """Llama: biases only where stated, on all four projections alike."""
    bias = r.flag("attention_bias", default=False)
    biases = {"qkv_bias": bias, "attention_output_bias": bias, "mlp_bias": r.flag("mlp_bias", default=False)}
    return {**_decoder(r), **biases}


def _windowed(r: _Reader, layers: int) -> dict[str, Any]:
    """Window of so many layers, when there is one."""
    window = r.count("sliding_window")
    return {"sliding_window": window, "num_sliding_layers": layers} if window and layers else {}


def _mistral(r: _Reader) -> dict[str, Any]:
    """Mistral: a window, if any, on every layer."""
    return {**_decoder(r), **_windowed(r, r.sliding_layers(r.size("num_hidden_layers")))}


def _mixtral(r: _Reader) -> dict[str, Any]:
    """Mixtral: every feed-forward is routed, at the size of a dense one."""
    experts = {
        "num_experts": r.size("num_local_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok"),
        "moe_intermediate_size": r.size("intermediate_size"),
        "router_aux_loss_coef": r.weight("router_aux_loss_coef"),
    }
    return {**_mistral(r), **experts}


def _qwen2(r: _Reader) -> dict[str, Any]:
    """Qwen2 and 2.5: biased q, k, v; if switched on, a window from layer `max_window_layers` up."""
    layers, used = r.size("num_hidden_layers"), r.flag("use_sliding_window", default=False)
    window = (
        _windowed(r, r.sliding_layers(layers - min(layers, r.count("max_window_layers")))) if used else {}
    )
    return {**_decoder(r), "qkv_bias": True, **window}


def _qwen3(r: _Reader) -> dict[str, Any]:
    """Qwen3: normed query and key heads of their own size."""
    bias = r.flag("attention_bias", default=False)
    return {**_decoder(r, head_dim=128), "qk_norm": True, "qkv_bias": bias, "attention_output_bias": bias}


def _qwen3_moe(r: _Reader) -> dict[str, Any]:
    """Qwen3 with experts on every layer, but for leading layers listed as dense."""
    if r.config.get("decoder_sparse_step", 1) != 1:
        r.problems.append(
            "decoder_sparse_step other than 1 (dense layers between expert layers) is not supported"
        )
    dense = r.config.get("mlp_only_layers") or []
    if dense != list(range(len(dense))):
        r.problems.append("mlp_only_layers other than the first layers are not supported")
    experts = {
        "num_experts": r.size("num_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok"),
        "moe_intermediate_size": r.size("moe_intermediate_size"),
        "num_dense_layers": len(dense),
        "router_aux_loss_coef": r.weight("router_aux_loss_coef"),
    }
    return {**_qwen3(r), **experts}


def _deepseek(r: _Reader) -> dict[str, Any]:
    """DeepSeek-V2 and V3: latent attention, shared experts, leading dense layers."""
    if r.config.get("moe_layer_freq", 1) != 1:
        r.problems.append("moe_layer_freq other than 1 is not supported")
    nope, rope = r.size("qk_nope_head_dim"), r.size("qk_rope_head_dim")
    inner = r.size("moe_intermediate_size")
    latent = {
        "head_dim": nope + rope,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": r.size("v_head_dim"),
        "q_lora_rank": r.count("q_lora_rank"),
        "kv_lora_rank": r.size("kv_lora_rank"),
    }
    experts = {
        "num_experts": r.size("n_routed_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok"),
        "moe_intermediate_size": inner,
        "shared_expert_size": inner * r.count("n_shared_experts"),
        "num_dense_layers": r.count("first_k_dense_replace"),
        "router_bias": r.config.get("topk_method") == "noaux_tc",
        "router_aux_loss_coef": r.weight("aux_loss_alpha"),
    }
    return {**_decoder(r), **latent, **experts}


def _gpt_oss(r: _Reader) -> dict[str, Any]:
    """gpt-oss: biases everywhere, attention sinks, a window on every other layer, experts on all."""
    bias = r.flag("attention_bias", default=True)
    layers = r.size("num_hidden_layers")
    own = {
        "qkv_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": True,
        "router_bias": True,
        "attention_sinks": True,
        "num_experts": r.size("num_local_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok", "experts_per_token"),
        "moe_intermediate_size": r.size("intermediate_size"),
    }
    return {**_decoder(r, head_dim=64), **own, **_windowed(r, r.sliding_layers((layers + 1) // 2))}


def _gemma2(r: _Reader) -> dict[str, Any]:
    """Gemma 2: norms before and after each block, tied embeddings, a window on every other layer."""
    layers = r.size("num_hidden_layers")
    window = _windowed(r, r.sliding_layers((layers + 1) // 2))
    return {**_decoder(r, tied=True, head_dim=256), "norms_per_layer": 4, **window}


def _gemma3(r: _Reader) -> dict[str, Any]:
    """Gemma 3 (text part): as Gemma 2 with normed heads and five windowed layers to one full."""
    layers = r.size("num_hidden_layers")
    full = layers // r.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    sizes = _decoder(r, tied=True, heads=8, kv_heads=4, head_dim=256, vocabulary=262208, positions=131072)
    return {**sizes, "norms_per_layer": 4, "qk_norm": True, **_windowed(r, r.sliding_layers(layers - full))}


def _nemotron(r: _Reader) -> dict[str, Any]:
    """Nemotron-4: squared ReLU without a gate, layer norm around one."""
    own = {
        "gated_mlp": False,
        "norm": "layernorm1p",
        "qkv_bias": r.flag("attention_bias", default=False),
        "attention_output_bias": r.flag("attention_bias", default=False),
        "mlp_bias": r.flag("mlp_bias", default=False),
    }
    return {**_decoder(r), **own}


def _gpt2(r: _Reader) -> dict[str, Any]:
    """GPT-2: its own key names, learned positions, biases everywhere."""
    hidden, heads, positions = r.size("n_embd"), r.size("n_head"), r.size("n_positions", "n_ctx")
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
        "norm": "layernorm",
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
    }


_FAMILIES: dict[str, Callable[[_Reader], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "nemotron": _nemotron,
    "gpt2": _gpt2,
}
