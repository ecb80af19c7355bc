"""Configurations whose attention reads entries that stand for several tokens: DeepSeek-V4, in both its words.

Published checkpoints have ``compress_ratios``, tokens to an entry layer by layer, and one more for the module
that predicts a further token; files that transformers 5 wrote have ``layer_types`` and ``compress_rates``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costmodel.models.compressed_attention import AttentionCompression
from costmodel.models.hf.dense import decoder
from costmodel.models.hf.reader import ConfigReader
from costmodel.models.hf.rotary import read_rotary
from costmodel.models.routing import Routing
from topology.base.errors import shown

_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_LETTERS = {"sliding_attention": "W", _SPARSE: "S", _HEAVY: "H"}
_SPARSE_RATE, _HEAVY_RATE = 4, 128
_OF_RATIO = {0: "W", 4: "S", 128: "H"}
DEPARTURES = (
    "attention to compressed keys (DeepSeek-V4)",
    "residual streams (DeepSeek-V4)",
    "square roots of softplus for scores, and experts by token on the first layers (DeepSeek-V4)",
)


def _deepseek_v4(r: ConfigReader) -> dict[str, Any]:
    """DeepSeek-V4: one key for all heads, experts on every layer, four residual streams."""
    r.departures.extend(DEPARTURES)
    for key in ("attention_bias", "mlp_bias"):
        if r.flag(key, default=False):
            r.problems.append(f"{key} = true is not supported")
    if r.count("n_shared_experts", 1) != 1:
        r.problems.append("n_shared_experts other than 1 is not supported")
    if r.size("hc_mult", default=4) == 1:
        r.problems.append("hc_mult = 1 is not supported")
    r.expects("scoring_func", "sqrtsoftplus")
    inner, head = r.size("moe_intermediate_size"), r.size("head_dim", default=512)
    rope = r.size("qk_rope_head_dim", default=round(head * r.positive("partial_rotary_factor", 64 / 512)))
    if rope > head or rope % 2:
        r.problems.append(f"{rope} of {head} dimensions of a head cannot be turned in pairs")
        rope = 2
    rates = r.within(r.table("compress_rates") or {})
    return {
        **decoder(r, intermediate=inner, kv_heads=1, head_dim=head),
        "rotary": read_rotary(_main_positions(r), fraction=rope / head, interleaved=True),
        "q_lora_rank": r.size("q_lora_rank", default=1024),
        "sliding_window": r.size("sliding_window", default=128),
        "layer_pattern": _pattern(r),
        "compression": AttentionCompression(
            output_groups=r.size("o_groups", default=8),
            output_rank=r.size("o_lora_rank", default=1024),
            sparse_rate=r.size("compress_rate_csa", default=rates.size(_SPARSE, default=_SPARSE_RATE)),
            heavy_rate=r.size("compress_rate_hca", default=rates.size(_HEAVY, default=_HEAVY_RATE)),
        ),
        "residual_streams": r.size("hc_mult", default=4),
        "index_heads": r.size("index_n_heads", default=64),
        "index_head_dim": r.size("index_head_dim", default=128),
        "index_topk": r.size("index_topk", default=512),
        "num_experts": r.size("n_routed_experts", "num_local_experts"),
        "num_experts_per_token": r.size("num_experts_per_tok", default=6),
        "moe_intermediate_size": inner,
        "shared_expert_size": inner,
        "routing": Routing(
            scoring_func="sigmoid",
            norm_topk_prob=r.flag("norm_topk_prob", default=True),
            routed_scaling_factor=r.positive("routed_scaling_factor", 1.5),
            bias_selects=True,
        ),
        "router_bias": True,
        "router_aux_loss_coef": r.weight("router_aux_loss_coef"),
    }


def _main_positions(r: ConfigReader) -> ConfigReader:
    """The positions of windows: stretching is of entries alone."""
    stated = r.table("rope_parameters") or {}
    main = stated.get("main", {}) if isinstance(stated.get("main", {}), dict) else {}
    return r.within({**r.config, "rope_scaling": None, "rope_parameters": main})


def _pattern(r: ConfigReader) -> str:
    """One letter a layer; by default two heavy ones, then heavy and sparse in turn (V4-Pro)."""
    layers = r.size("num_hidden_layers")
    kinds, letters = r.config.get("layer_types"), _LETTERS
    if kinds is None and r.config.get("compress_ratios") is not None:
        kinds, letters = r.config["compress_ratios"], _OF_RATIO  # type: ignore[assignment]
    if kinds is None:
        return ("HH" + "HS" * layers)[:layers]
    if not isinstance(kinds, list) or len(kinds) < layers:
        r.problems.append(f"layer_types or compress_ratios = {shown(kinds)} does not name {layers} layers")
        return "H" * layers
    unknown = [kind for kind in kinds[:layers] if not isinstance(kind, int | str) or kind not in letters]
    if unknown:
        r.problems.append(f"{shown(unknown[0])} is not one of {', '.join(map(str, letters))}")
        return "H" * layers
    return "".join(letters[kind] for kind in kinds[:layers])


COMPRESSED_FAMILIES: Mapping[str, Callable[[ConfigReader], dict[str, Any]]] = {"deepseek_v4": _deepseek_v4}
