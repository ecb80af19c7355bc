"""Vision towers are those that transformers builds, parameter by parameter, and of published models their sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from costmodel.models.hf.config import model_of_config
from costmodel.models.parameters import parameter_count
from costmodel.models.spec import layer_runs

_TEXT: Mapping[str, Any] = {
    "hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 900, "max_position_embeddings": 4096, "pad_token_id": None,
}  # fmt: skip
_DEEP: Mapping[str, Any] = {"depth": 4, "num_heads": 4}
_PLAIN: Mapping[str, Any] = {
    "hidden_size": 96, "intermediate_size": 224, "num_hidden_layers": 4, "num_attention_heads": 4,
    "image_size": 112, "patch_size": 14,
}  # fmt: skip
CONFIGS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "qwen2_vl": ("qwen2_vl_text", {**_DEEP, "embed_dim": 80, "hidden_size": 192, "mlp_ratio": 3}, {}),
    "qwen2_5_vl": (
        "qwen2_5_vl_text",
        {**_DEEP, "hidden_size": 80, "intermediate_size": 212, "out_hidden_size": 192,
         "fullatt_block_indexes": [1, 3]},
        {},
    ),
    "qwen3_vl": (
        "qwen3_vl_text",
        {**_DEEP, "hidden_size": 96, "intermediate_size": 200, "out_hidden_size": 192,
         "num_position_embeddings": 144, "deepstack_visual_indexes": [1, 2]},
        {},
    ),
    "gemma3": (
        "gemma3_text",
        {**_PLAIN, "model_type": "siglip_vision_model", "vision_use_head": False},
        {"mm_tokens_per_image": 16},
    ),
    "gemma3 that pools": (
        "gemma3_text",
        {**_PLAIN, "model_type": "siglip_vision_model"},
        {"mm_tokens_per_image": 16},
    ),
    "llava": ("llama", {**_PLAIN, "model_type": "clip_vision_model"}, {"tie_word_embeddings": False}),
    "llava of pixtral": ("mistral", {**_PLAIN, "model_type": "pixtral"}, {"tie_word_embeddings": False}),
    "llava_next": ("mistral", {**_PLAIN, "model_type": "clip_vision_model"}, {"tie_word_embeddings": False}),
    "llava_onevision": (
        "qwen2",
        {**_PLAIN, "model_type": "siglip_vision_model", "vision_use_head": False},
        {"tie_word_embeddings": False},
    ),
    "mistral3": ("mistral", {**_PLAIN, "model_type": "pixtral"}, {"tie_word_embeddings": False}),
    "internvl": (
        "qwen2",
        {**_PLAIN, "image_size": [112, 112], "patch_size": [14, 14], "attention_bias": True, "use_qk_norm": True},
        {"tie_word_embeddings": False},
    ),
    "llama4": (
        "llama4_text",
        {**_PLAIN, "vision_output_dim": 160, "projector_input_dim": 160, "projector_output_dim": 160,
         "intermediate_size": 384},
        {},
    ),
}  # fmt: skip


def told(case: str) -> dict[str, Any]:
    """The configuration of a case, as it would be published."""
    text, seen, more = CONFIGS[case]
    sizes = {**_TEXT, "model_type": text}
    if text == "llama4_text":
        sizes |= {"intermediate_size_mlp": 320, "num_local_experts": 4, "interleave_moe_layer_step": 1}
    return {
        "model_type": case.split(maxsplit=1)[0],
        "text_config": sizes,
        "vision_config": dict(seen),
        **more,
    }


@pytest.mark.parametrize("case", CONFIGS)
def test_a_model_that_sees_has_the_parameters_that_transformers_gives_it(case: str) -> None:
    """Exactly: the tower, what joins it, and the decoder."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = told(case)
    spec = model_of_config(config, name=case)
    assert spec.tower is not None
    assert spec.left_out == ""
    built_from = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    with torch.device("meta"):
        built = transformers.AutoModelForImageTextToText.from_config(built_from)
    parameters = {id(one): one.numel() for one in built.parameters()}
    assert parameter_count(spec) == sum(parameters.values())
    assert sum(run.count for run in layer_runs(spec)) == spec.num_layers


@pytest.mark.parametrize(
    ("family", "text"),
    [("llava", "llama"), ("llava", "mistral"), ("llava_onevision", "qwen2"), ("gemma3", "gemma3_text")],
)
def test_sizes_that_a_language_model_inside_leaves_out_are_its_familys(family: str, text: str) -> None:
    """As published files of LLaVA and Pixtral have it: only what differs is written."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    vision = {**_PLAIN, "model_type": "siglip_vision_model", "vision_use_head": False}
    config = {
        "text_config": {"model_type": text, "num_hidden_layers": 2},
        "vision_config": vision,
        "tie_word_embeddings": text == "gemma3_text",
    }
    spec = model_of_config({"model_type": family, **config}, name=family)
    built_from = transformers.AutoConfig.for_model(family, **config)
    with torch.device("meta"):
        built = transformers.AutoModelForImageTextToText.from_config(built_from)
    assert parameter_count(spec) == sum({id(one): one.numel() for one in built.parameters()}.values())


def decoder(family: str, *sizes: int, **more: Any) -> dict[str, Any]:
    """H, F, layers, heads, key/value heads, vocabulary of a language model."""
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "vocab_size",
    )  # fmt: skip
    return {
        "model_type": family,
        **dict(zip(names, sizes, strict=True)),
        "max_position_embeddings": 131072,
        **more,
    }


def qwen25(width: int) -> dict[str, Any]:
    """The tower of Qwen2.5-VL, whose feed-forward is a little wider in the larger models."""
    return {"depth": 32, "hidden_size": 1280, "intermediate_size": width, "num_heads": 16, "patch_size": 14}


SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
    "num_attention_heads": 16, "image_size": 896, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
}  # fmt: skip
PUBLISHED: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], int]] = {
    "Qwen2-VL-7B": (
        decoder("qwen2_vl", 3584, 18944, 28, 28, 4, 152064),
        {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16},
        8291375616,
    ),
    "Qwen2.5-VL-3B": (
        decoder("qwen2_5_vl", 2048, 11008, 36, 16, 2, 151936, tie_word_embeddings=True), qwen25(3420), 3754622976
    ),
    "Qwen2.5-VL-7B": (decoder("qwen2_5_vl", 3584, 18944, 28, 28, 4, 152064), qwen25(3420), 8292166656),
    "Qwen2.5-VL-32B": (decoder("qwen2_5_vl", 5120, 27648, 64, 40, 8, 152064), qwen25(3456), 33452718336),
    "Qwen2.5-VL-72B": (decoder("qwen2_5_vl", 8192, 29568, 80, 64, 8, 152064), qwen25(3456), 73410777344),
    "Qwen3-VL-8B": (
        decoder("qwen3_vl", 4096, 12288, 36, 32, 8, 151936, head_dim=128),
        {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16},
        8767123696,
    ),
    "LLaVA-1.5-7B": (decoder("llava", 4096, 11008, 32, 32, 32, 32064), CLIP, 7063427072),
    "Gemma-3-4B": (decoder("gemma3", 2560, 10240, 34, 8, 4, 262208, head_dim=256), SIGLIP, 4300079472),
    "Gemma-3-27B": (decoder("gemma3", 5376, 21504, 62, 32, 16, 262208, head_dim=128), SIGLIP, 27432406640),
    "Mistral-Small-3.1-24B": (
        decoder("mistral3", 5120, 32768, 40, 32, 8, 131072, head_dim=128, sliding_window=None),
        {"model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
         "num_attention_heads": 16, "patch_size": 14},
        24011361280,
    ),
}  # fmt: skip
"""Sizes of published configurations, and the parameters that their cards count."""
_WITHIN = {"llava": "llama", "gemma3": "gemma3_text", "mistral3": "mistral", "qwen3_vl": "qwen3_vl_text"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_that_see_have_their_parameters(name: str) -> None:
    """Exactly, towers and what joins them included."""
    text, tower, count = PUBLISHED[name]
    family = text["model_type"]
    whole = dict(text) if family not in _WITHIN else {
        "model_type": family, "text_config": {**text, "model_type": _WITHIN[family]}
    }  # fmt: skip
    assert parameter_count(model_of_config({**whole, "vision_config": tower}, name=name)) == count
