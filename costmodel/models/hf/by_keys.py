"""A ``config.json`` of a family that has no name here, read by the keys of its blocks.

A family is mostly its blocks: grouped or latent heads, windows, chosen keys, recurrences, experts. Each has
keys of its own, and the family whose reader knows these is taken. A key that this reader does not ask for,
and that is no setting of training, generation or files, may be a block that nobody knows: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costmodel.models.hf.dense import attention_biases, decoder
from costmodel.models.hf.reader import ConfigReader
from costmodel.models.hf.rotary import read_rotary
from costmodel.models.spec import ModelSpec
from topology.base.errors import InputError, shown

Family = Callable[[ConfigReader], dict[str, Any]]

_SIGNATURES: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"hybrid_override_pattern", "mamba_num_heads"}), "nemotron_h"),
    (frozenset({"linear_attn_config", "kv_lora_rank"}), "kimi_linear"),
    (frozenset({"linear_num_value_heads", "num_experts"}), "qwen3_next"),
    (frozenset({"linear_num_value_heads"}), "qwen3_5_text"),
    (frozenset({"index_topk", "kv_lora_rank", "n_routed_experts"}), "deepseek_v32"),
    (frozenset({"kv_lora_rank", "n_routed_experts"}), "deepseek_v3"),
    (frozenset({"n_routed_experts"}), "glm4_moe"),
    (frozenset({"moe_intermediate_size", "num_experts"}), "qwen3_moe"),
    (frozenset({"num_local_experts", "moe_intermediate_size"}), "qwen3_moe"),
    (frozenset({"num_local_experts"}), "mixtral"),
)
"""Keys that only the blocks of a family have, the most telling first."""
_GATED = ("silu", "swish")  # activations of gated feed-forwards alone
BY_KEYS = "read by its keys"
MOST_NAMED = 4  # keys in one refusal
_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention", "linear_attention"})
_NO_BLOCK = frozenset({
    "_name_or_path", "architectures", "auto_map", "model_type", "torch_dtype", "dtype",
    "transformers_version", "use_cache", "initializer_range", "output_router_logits", "output_attentions",
    "output_hidden_states", "return_dict", "is_encoder_decoder", "pretraining_tp", "seq_aux",
    "aux_loss_alpha", "quantization_config", "rope_theta", "rope_scaling", "rope_parameters",
    "rope_interleave", "partial_rotary_factor", "hidden_act", "mlp_hidden_act", "layer_norm_epsilon",
    "rms_norm_eps", "norm_eps", "topk_method", "scoring_func", "n_group", "topk_group", "norm_topk_prob",
    "routed_scaling_factor", "ep_size", "max_window_layers", "use_sliding_window", "sliding_window_pattern",
    "attention_chunk_size", "time_step_limit", "time_step_min", "time_step_max", "time_step_floor",
    "rescale_prenorm_residual", "residual_in_fp32", "num_hidden_layers", "head_dim", "num_key_value_heads",
    "model_max_length", "mla_use_nope",
})  # fmt: skip
"""Keys of training, generation, files and numbers that change no size, and what a pattern states again."""


class _Asked(dict[str, Any]):
    """A configuration that remembers which of its keys were asked for."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value under a key, or the default."""
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


def sizes_by_keys(
    config: Mapping[str, Any], families: Mapping[str, Family], where: str
) -> tuple[ConfigReader, dict[str, Any], str]:
    """The reader and sizes of a configuration whose family has no name here, and whose blocks it has.

    Raises:
        InputError: Blocks that are not known, by their keys.
    """
    stated = {key: value for key, value in config.items() if value is not None}
    family = next((name for keys, name in _SIGNATURES if keys <= stated.keys()), "")
    chunks = _windows_of_chunks(config)
    asked = _Asked({**config, **chunks})
    reader = ConfigReader(config=asked)
    unknown = _unknown_layers(config)
    if not family and (act := config.get("hidden_act", "silu")) not in _GATED:
        unknown.append(
            f"hidden_act: {shown(act)} is of feed-forwards with a gate and without, and no key says"
        )
    sizes = families[family](reader) if family else _plain(reader)
    unread = [key for key in stated if key not in asked.asked and not _is_no_block(key)]
    unknown += [f"no block that is known here has {', '.join(sorted(unread)[:MOST_NAMED])}"] if unread else []
    if unknown and not reader.problems:
        raise InputError(
            what=f"{where} has blocks that are not known",
            cause=f"model_type {shown(config.get('model_type'))} has no name here; {'; '.join(unknown)}",
            fix="name a catalog model of its shape (plan models), or leave out keys that change no size",
        )
    blocks = family or "llama"
    if "sliding_window" in chunks:
        reader.departures.append("attention in chunks, priced as windows of their size")
    reader.departures.append(f"model_type {shown(config.get('model_type'))}, {BY_KEYS} as {blocks}")
    return reader, sizes, blocks


def _plain(r: ConfigReader) -> dict[str, Any]:
    """Grouped heads and one feed-forward, with windows where layers or a size state them."""
    stated = r.config.get("layer_types") is not None
    alike = 0 if stated or r.config.get("sliding_window_pattern") else r.size("num_hidden_layers")
    windows = r.windows(0, trailing=alike, pattern=r.count("sliding_window_pattern"))
    normed = any(r.flag(key, default=False) for key in ("qk_norm", "use_qk_norm"))
    biases = {**attention_biases(r), "mlp_bias": r.flag("mlp_bias", default=False)}
    return {**decoder(r), **biases, **windows, "qk_norm": normed, "rotary": read_rotary(r)}


def _windows_of_chunks(config: Mapping[str, Any]) -> dict[str, Any]:
    """Chunks of attention as windows of their size: no token sees more, and a cache keeps as many."""
    kinds, size = config.get("layer_types"), config.get("attention_chunk_size")
    if not isinstance(kinds, list) or "chunked_attention" not in kinds or size is None:
        return {}
    windowed = ["sliding_attention" if kind == "chunked_attention" else kind for kind in kinds]
    return {"layer_types": windowed, "sliding_window": size}


def _unknown_layers(config: Mapping[str, Any]) -> list[str]:
    """Kinds of layers that are not known, in words."""
    kinds = config.get("layer_types")
    names = dict.fromkeys(str(kind) for kind in kinds) if isinstance(kinds, list) else {}
    return [
        f"layer_types: {shown(name)} is no kind of layer that is known here"
        for name in names
        if name not in _LAYERS
    ]


def _is_no_block(key: str) -> bool:
    """Whether a key is of training, generation or files."""
    return key in _NO_BLOCK or key.endswith(("_token_id", "_token_ids", "_config", "_dropout", "_loss_coef"))


def is_read_by_keys(model: ModelSpec) -> bool:
    """Whether a model's family has no name here."""
    return any(BY_KEYS in setting for setting in model.unmodelled)
