"""Vision towers of Hugging Face configurations: a function each family knows keys, defaults and what joins.

Shapes are those that ``transformers`` builds (`tests/published/costmodel/models/test_towers.py`, parameter by
parameter). A family that is not here has no tower: `hf.config.towers_of` says what of it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from costmodel.models.hf.reader import ConfigReader
from costmodel.models.tower import Tower

USUAL_TOKENS = 1024
"""Of an image of any size: 896 × 896 pixels at 28 × 28 a token, as Qwen2-VL counts them."""
MOST_TOKENS = 16384
"""Of the largest image of Qwen's (preprocessor_config.json): 12,845,056 pixels at 28 × 28 a token, 16,777,216
at 32 × 32."""
LAYER_NORM = 2
"""Parameters of a layer norm of width one: a scale and a shift."""
_CLASS = 1
"""A class token before the patches."""


def tower_of(config: Mapping[str, Any], hidden_size: int, problems: list[str]) -> Tower | None:
    """The vision tower of a whole configuration; None where it has none, or one that is not described.

    Args:
        config: The configuration of all of the model.
        hidden_size: Width of its decoder.
        problems: Where to say what cannot be read.
    """
    table, family = config.get("vision_config"), config.get("model_type")
    if not isinstance(table, dict) or not isinstance(family, str) or family not in _TOWERS:
        return None
    return _TOWERS[family](
        ConfigReader(config=table, problems=problems),
        ConfigReader(config=config, problems=problems),
        hidden_size,
    )


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    return inputs * outputs + outputs * bias


def _encoder(
    v: ConfigReader, *, depth: str = "num_hidden_layers", heads: str = "num_attention_heads", **usual: int
) -> dict[str, Any]:
    """Sizes under the keys of a family, with its defaults."""
    h, count = usual["hidden_size"], usual["num_attention_heads"]
    encoder = {
        "num_layers": v.size(depth, default=usual["num_layers"]),
        "hidden_size": v.size("hidden_size", default=h),
        "num_attention_heads": v.size(heads, default=count),
    }
    if encoder["hidden_size"] % encoder["num_attention_heads"]:
        v.problems.append(
            f"a tower {encoder['hidden_size']} wide is no multiple of {encoder['num_attention_heads']} heads"
        )
        encoder["num_attention_heads"] = 1
    return encoder


def _grid(v: ConfigReader, image_size: int, patch_size: int) -> tuple[int, int]:
    """Patches of an image of the configuration's size, and pixels of the side of a patch."""
    sides = [_side(v, key, usual) for key, usual in (("image_size", image_size), ("patch_size", patch_size))]
    if sides[0] < sides[1]:
        v.problems.append(f"image_size = {sides[0]} is smaller than patch_size = {sides[1]}")
    return max(1, sides[0] // sides[1]) ** 2, sides[1]


def _side(v: ConfigReader, key: str, usual: int) -> int:
    """A side that may be said twice, for height and width."""
    value = v.config.get(key)
    sides = value if isinstance(value, list) else []
    alike = len(sides) == 2 and sides[0] == sides[1]
    return ConfigReader(config={key: sides[0]} if alike else v.config, problems=v.problems).size(
        key, default=usual
    )


def _merged(h: int, merge: int, hidden_size: int, norm: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """A norm, and two matrices from as many patches as become one token to the decoder's width."""
    wide = merge * h
    return ((wide, wide), (wide, hidden_size)), norm + _linear(wide, wide) + _linear(wide, hidden_size)


def _qwen2(v: ConfigReader, _: ConfigReader, hidden_size: int) -> Tower:
    """Qwen2-VL: images of any size, four patches a token, two frames a patch."""
    h = v.size("embed_dim", default=1280)
    named = ConfigReader(config={**v.config, "hidden_size": h}, problems=v.problems)
    encoder = _encoder(
        named, depth="depth", heads="num_heads", num_layers=32, hidden_size=h, num_attention_heads=16
    )
    merge = v.size("spatial_merge_size", default=2) ** 2
    values = _patch_values(v, 14)
    join, joined = _merged(h, merge, hidden_size, LAYER_NORM * h)
    ratio = v.positive("mlp_ratio", 4.0)
    return Tower(
        **encoder,
        intermediate_size=round(h * ratio),
        patch_values=values,
        stem_parameters=values * h,
        join=join,
        join_parameters=joined,
        merge=merge,
        image_tokens=USUAL_TOKENS,
        any_size=True,
        most_tokens=MOST_TOKENS,
    )


def _patch_values(v: ConfigReader, side: int, frames: int = 2) -> int:
    """Numbers of a patch: channels, frames and pixels."""
    p = v.size("patch_size", default=side)
    return (
        v.size("in_channels", "in_chans", default=3) * v.size("temporal_patch_size", default=frames) * p * p
    )


def _qwen25(v: ConfigReader, _: ConfigReader, hidden_size: int) -> Tower:
    """Qwen2.5-VL: gated, root-mean-square norms, windows in most layers."""
    encoder = _encoder(
        v, depth="depth", heads="num_heads", num_layers=32, hidden_size=3584, num_attention_heads=16
    )
    h, merge = encoder["hidden_size"], v.size("spatial_merge_size", default=2) ** 2
    values = _patch_values(v, 14)
    join, joined = _merged(h, merge, hidden_size, h)
    full = v.config.get("fullatt_block_indexes", (7, 15, 23, 31))
    side = v.size("window_size", default=112) // v.size("patch_size", default=14)
    return Tower(
        **encoder,
        intermediate_size=v.size("intermediate_size", default=3420),
        norm="rmsnorm",
        gated_mlp=True,
        patch_values=values,
        stem_parameters=values * h,
        join=join,
        join_parameters=joined,
        merge=merge,
        image_tokens=USUAL_TOKENS,
        any_size=True,
        most_tokens=MOST_TOKENS,
        window_patches=max(1, side) ** 2,
        full_layers=min(encoder["num_layers"], len(full) if isinstance(full, list | tuple) else 0),
    )


def _qwen3(
    v: ConfigReader, _: ConfigReader, hidden_size: int, *, deep: tuple[int, ...] = (8, 16, 24)
) -> Tower:
    """Qwen3-VL: learned positions, and outputs of some layers joined as well (deepstack)."""
    encoder = _encoder(
        v, depth="depth", heads="num_heads", num_layers=27, hidden_size=1152, num_attention_heads=16
    )
    h, merge = encoder["hidden_size"], v.size("spatial_merge_size", default=2) ** 2
    values = _patch_values(v, 16)
    join, joined = _merged(h, merge, hidden_size, LAYER_NORM * h)
    value = v.config.get("deepstack_visual_indexes", deep)
    deepstack = min(encoder["num_layers"], len(value)) if isinstance(value, list | tuple) else 0
    deeper = _merged(h, merge, hidden_size, LAYER_NORM * merge * h)[1]
    positions = v.size("num_position_embeddings", default=2304) * h
    return Tower(
        **encoder,
        intermediate_size=v.size("intermediate_size", default=4304),
        patch_values=values,
        stem_parameters=_linear(values, h) + positions,
        join=join * (1 + deepstack),
        join_parameters=joined + deepstack * deeper,
        merge=merge,
        image_tokens=USUAL_TOKENS,
        any_size=True,
        most_tokens=MOST_TOKENS,
    )


def _qwen35(v: ConfigReader, whole: ConfigReader, hidden_size: int) -> Tower:
    """Qwen3.5: that of Qwen3-VL without deepstack."""
    return _qwen3(v, whole, hidden_size, deep=())


def _clip(v: ConfigReader) -> dict[str, Any]:
    """CLIP: a class token, positions, a norm before and one after."""
    encoder = _encoder(v, num_layers=12, hidden_size=768, num_attention_heads=12)
    h, (patches, p) = encoder["hidden_size"], _grid(v, 224, 32)
    values = v.size("num_channels", default=3) * p * p
    stem = values * h + (_CLASS + patches + _CLASS + LAYER_NORM) * h
    return {
        **encoder,
        "intermediate_size": v.size("intermediate_size", default=3072),
        "patch_values": values,
        "stem_parameters": stem,
        "after": LAYER_NORM * h,
        "image_patches": patches,
    }


def _siglip(v: ConfigReader) -> dict[str, Any]:
    """SigLIP: positions, a norm after, and where it is said a head that pools."""
    encoder = _encoder(v, num_layers=12, hidden_size=768, num_attention_heads=12)
    h, (patches, p) = encoder["hidden_size"], _grid(v, 224, 16)
    values, F = v.size("num_channels", default=3) * p * p, v.size("intermediate_size", default=3072)
    pools = v.flag("vision_use_head", default=True)
    head = h + 4 * _linear(h, h) + LAYER_NORM * h + _linear(h, F) + _linear(F, h)
    return {
        **encoder,
        "intermediate_size": F,
        "patch_values": values,
        "image_patches": patches,
        "stem_parameters": _linear(values, h) + patches * h,
        "after": LAYER_NORM * h + pools * head,
    }


def _pixtral(v: ConfigReader) -> dict[str, Any]:
    """Pixtral: images of any size, gated, root-mean-square norms, no biases."""
    encoder = _encoder(v, num_layers=24, hidden_size=1024, num_attention_heads=16)
    p, h = v.size("patch_size", default=16), encoder["hidden_size"]
    values = v.size("num_channels", default=3) * p * p
    return {
        **encoder,
        "intermediate_size": v.size("intermediate_size", default=4096),
        "norm": "rmsnorm",
        "gated_mlp": True,
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "patch_values": values,
        "stem_parameters": values * h + h,
        "after": 0,
        "any_size": True,
    }


_ENCODERS: Mapping[str, Callable[[ConfigReader], dict[str, Any]]] = {
    "clip_vision_model": _clip,
    "siglip_vision_model": _siglip,
    "pixtral": _pixtral,
}


def _named(v: ConfigReader, usual: str) -> dict[str, Any]:
    """The encoder that a configuration names."""
    name = v.config.get("model_type", usual)
    if not isinstance(name, str) or name not in _ENCODERS:
        v.problems.append(f"vision_config.model_type is not one of {', '.join(_ENCODERS)}")
        name = usual
    return _ENCODERS[name](v)


_WITH_NEWLINES = ("llava_next", "llava_onevision")


def _llava(v: ConfigReader, whole: ConfigReader, hidden_size: int) -> Tower:
    """LLaVA: every patch a token, two matrices; of images in tiles a token that ends a line."""
    named = _named(v, "clip_vision_model")
    after, patches = named.pop("after"), named.pop("image_patches", USUAL_TOKENS)
    h, bias = named["hidden_size"], whole.flag("multimodal_projector_bias", default=True)
    joined = _linear(h, hidden_size, bias=bias) + _linear(hidden_size, hidden_size, bias=bias)
    newline = hidden_size * (whole.config.get("model_type") in _WITH_NEWLINES)
    return Tower(
        **named,
        join=((h, hidden_size), (hidden_size, hidden_size)),
        join_parameters=after + joined + newline,
        image_tokens=patches,
    )


def _gemma3(v: ConfigReader, whole: ConfigReader, hidden_size: int) -> Tower:
    """Gemma-3: patches averaged to so many tokens, a norm and one matrix."""
    named = _named(v, "siglip_vision_model")
    after, patches = named.pop("after"), named.pop("image_patches", USUAL_TOKENS)
    h, tokens = named["hidden_size"], whole.size("mm_tokens_per_image", default=256)
    return Tower(
        **named,
        join=((h, hidden_size),),
        join_parameters=after + h * hidden_size + h,
        merge=max(1, patches // tokens),
        image_tokens=tokens,
    )


def _mistral3(v: ConfigReader, whole: ConfigReader, hidden_size: int) -> Tower:
    """Mistral-Small-3.1: Pixtral's encoder, four patches merged, two matrices."""
    named = _named(v, "pixtral")
    after, tokens = named.pop("after"), named.pop("image_patches", USUAL_TOKENS)
    h, merge = named["hidden_size"], whole.size("spatial_merge_size", default=2) ** 2
    bias = whole.flag("multimodal_projector_bias", default=False)
    join = ((merge * h, h), (h, hidden_size), (hidden_size, hidden_size))
    joined = h + merge * h * h + sum(_linear(*matrix, bias=bias) for matrix in join[1:])
    return Tower(**named, join=join, join_parameters=after + joined, merge=merge, image_tokens=tokens)


def _internvl(v: ConfigReader, whole: ConfigReader, hidden_size: int) -> Tower:
    """InternVL: tiles of one size, four patches a token, layers whose blocks are scaled."""
    encoder = _encoder(v, num_layers=24, hidden_size=1024, num_attention_heads=16)
    h, (patches, p) = encoder["hidden_size"], _grid(v, 448, 14)
    values, norms = v.size("num_channels", default=3) * p * p, v.flag("use_qk_norm", default=False)
    merge = max(1, round(whole.positive("downsample_ratio", 0.5) ** -2))
    wide, places = merge * h, _CLASS + patches
    pooled = v.flag("use_mean_pooling", default=True)
    positions = places * h * v.flag("use_absolute_position_embeddings", default=True)
    rms = v.config.get("norm_type", "layer_norm") == "rms_norm"
    return Tower(
        **encoder,
        intermediate_size=v.size("intermediate_size", default=4096),
        norm="rmsnorm" if rms else "layernorm",
        qkv_bias=v.flag("attention_bias", default=False),
        layer_extra=2 * h + 2 * h * norms,
        patch_values=values,
        stem_parameters=_linear(values, h) + _CLASS * h + positions,
        join=((wide, hidden_size), (hidden_size, hidden_size)),
        join_parameters=(
            LAYER_NORM * h * (not pooled)
            + LAYER_NORM * wide
            + _linear(wide, hidden_size)
            + _linear(hidden_size, hidden_size)
        ),
        merge=merge,
        image_tokens=max(1, patches // merge),
    )


def _llama4(v: ConfigReader, _: ConfigReader, hidden_size: int) -> Tower:
    """Llama-4: tiles of one size, four patches a token, three matrices without biases."""
    encoder = _encoder(v, num_layers=34, hidden_size=768, num_attention_heads=16)
    h, (patches, p) = encoder["hidden_size"], _grid(v, 448, 14)
    F, values = v.size("intermediate_size", default=5632), v.size("num_channels", default=3) * p * p
    merge = max(1, round(v.positive("pixel_shuffle_ratio", 0.5) ** -2))
    inner, outer = (v.size(f"projector_{end}_dim", default=4096) for end in ("input", "output"))
    join = ((F, inner), (inner, outer), (v.size("vision_output_dim", default=7680), hidden_size))
    return Tower(
        **encoder,
        intermediate_size=F,
        patch_values=values,
        join=join,
        merge=merge,
        stem_parameters=values * h + (_CLASS + patches + _CLASS + LAYER_NORM) * h,
        join_parameters=LAYER_NORM * h + sum(_linear(*matrix, bias=False) for matrix in join),
        image_tokens=max(1, patches // merge),
    )


_TOWERS: Mapping[str, Callable[[ConfigReader, ConfigReader, int], Tower]] = {
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen25,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
    "qwen3_5": _qwen35,
    "qwen3_5_moe": _qwen35,
    "gemma3": _gemma3,
    "llava": _llava,
    "llava_next": _llava,
    "llava_onevision": _llava,
    "mistral3": _mistral3,
    "internvl": _internvl,
    "llama4": _llama4,
}
