"""A Hugging Face ``config.json`` as a `ModelSpec`.

Each family states its sizes under its own keys and leaves others to the defaults of its configuration
in ``transformers``; one small function per family knows both. Everything wrong with a file is reported at
once. What a file says that a `ModelSpec` cannot is kept in its `unmodelled`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.models.hf.by_keys import sizes_by_keys
from costmodel.models.hf.compressed import COMPRESSED_FAMILIES
from costmodel.models.hf.dense import DENSE_FAMILIES
from costmodel.models.hf.experts import EXPERT_FAMILIES
from costmodel.models.hf.hearing import DECODERS, hearing_of
from costmodel.models.hf.hybrid import HYBRID_FAMILIES
from costmodel.models.hf.quantised import stored_parts
from costmodel.models.hf.reader import ConfigReader
from costmodel.models.hf.towers import tower_of
from costmodel.models.pattern import period_of
from costmodel.models.sizes import LARGEST_SIZE, WeightFormat
from costmodel.models.spec import ModelSpec
from topology.base.decode import as_text, read_json
from topology.base.errors import InputError, shown
from topology.base.units import BILLION

_MISSING = object()


def read_config(path: str | Path) -> ModelSpec:
    """Give the model that a ``config.json``, or a folder holding one, describes."""
    file, config = _decoded(path)
    if not isinstance(config, dict):
        raise InputError(f"{path} is not a model configuration", "its top level is not an object", _FIX)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return model_of_config(config, name=as_text(name), source=as_text(str(path)))


def library_of(path: str | Path) -> str:
    """The library whose configuration a file is, where its family is not one of those here; else ""."""
    _, config = _decoded(path)
    if not isinstance(config, dict):
        return ""
    if isinstance(config.get("_class_name"), str):
        return "diffusers"
    _, family = _language_model(config)
    return "transformers" if isinstance(family, str) and family not in _FAMILIES else ""


def _decoded(path: str | Path) -> tuple[Path, Any]:
    """The file of a configuration, or of the folder that holds one, and its content."""
    file = Path(path)
    if os.path.isfile(file / "config.json"):  # noqa: PTH113 - Path.is_file raises on a name that is too long
        file = file / "config.json"
    return file, read_json(file, named_constants=True)


def _language_model(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], object]:
    """A configuration and its family; of a model that also sees or hears those of its language model."""
    family = config.get("model_type", _MISSING)
    text = config.get("text_config")
    if text in (None, {}) or (isinstance(text, dict) and "model_type" not in text):
        usual = DECODERS.get(str(family))
        text = text if usual is None else {"model_type": usual, **(text or {})}
    return (text, text.get("model_type", family)) if isinstance(text, dict) else (config, family)


def model_of_config(config: Mapping[str, Any], *, name: str, source: str = "") -> ModelSpec:
    """Give the model that a decoded configuration describes.

    >>> sizes = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    >>> model_of_config({"model_type": "gpt2", **sizes}, name="gpt-2").intermediate_size
    3072
    """
    whole = config
    config, family = _language_model(whole)
    if config is not whole and isinstance(family, str):
        tied = {name: whole[name] for name in ("tie_word_embeddings",) if name in whole}
        unsaid = _UNSAID_OF.get(str(whole.get("model_type")), _UNSAID_WITHIN.get(family, {}))
        config = {**unsaid, **tied, **config}
        if str(whole.get("model_type")) in DECODERS:  # tied by the whole configuration alone
            config |= {"tie_word_embeddings": tied.get("tie_word_embeddings", False)}
    if not isinstance(family, str):
        cause = "missing key model_type" if family is _MISSING else f"model_type {shown(family)} is not known"
        raise InputError(
            f"{source or name} describes no model", cause, f"known: {', '.join(sorted(_FAMILIES))}"
        )
    weight_format = stated_format(whole) or stated_format(config)
    if family in _FAMILIES:
        reader = ConfigReader(config=config)
        sizes = _FAMILIES[family](reader)
    else:
        reader, sizes, family = sizes_by_keys(config, _FAMILIES, source or name)
    layers = int(sizes["num_layers"])
    tower = tower_of(whole, sizes["hidden_size"], reader.problems) or hearing_of(
        whole, sizes["hidden_size"], reader.problems
    )
    named = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    modules = next((count for name in named if (count := reader.count(name))), 0)
    if reader.problems:
        cause = "; ".join(dict.fromkeys(reader.problems))
        raise InputError(f"{source or name} is not a complete {family} configuration", cause, _FIX)
    if pattern := sizes.get("layer_pattern"):
        sizes["layer_pattern"] = period_of(pattern)
    if tower is not None:
        sizes["num_layers"] += tower.num_layers
    departures = tuple(dict.fromkeys(reader.departures))
    return ModelSpec(
        name=name,
        source=source,
        unmodelled=departures,
        left_out=towers_of({**whole, f"{tower.sense}_config": None} if tower else whole),
        tower=tower,
        num_nextn_predict_layers=modules,
        weight_format=weight_format,
        stored=stored_parts(whole if "quantization_config" in whole else config, layers),
        **sizes,
    )


def towers_of(config: Mapping[str, Any]) -> str:
    """What a configuration has besides its language model, with the size of a tower where it says it.

    A layer of a tower has 4·h² parameters of attention and 2·h·F of its feed-forward, norms and biases apart.

    >>> sizes = {"num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 4096}
    >>> towers_of({"vision_config": sizes}), towers_of({"model_type": "llama"})
    ('a vision tower of 24 layers (0.3 B parameters) and what joins it', '')
    """
    towers = [(kind, config.get(f"{kind}_config")) for kind in ("vision", "audio")]
    result = [f"{kind} tower{_tower_size(tower)}" for kind, tower in towers if isinstance(tower, dict)]
    if not result:
        return ""
    articles = [f"an {name}" if name.startswith("a") else f"a {name}" for name in result]
    return f"{' and '.join(articles)} and what joins {'it' if len(result) == 1 else 'them'}"


def _tower_size(tower: Mapping[str, Any]) -> str:
    """Layers and parameters of a tower; nothing where a size is missing, or none."""
    layers = tower.get("num_hidden_layers", tower.get("depth", tower.get("encoder_layers")))
    width = tower.get("hidden_size", tower.get("d_model"))
    stated = (layers, width, tower.get("intermediate_size", tower.get("encoder_ffn_dim")))
    sizes = [item for item in stated if type(item) is int and 0 < item <= LARGEST_SIZE]
    if len(sizes) < len(stated):
        return ""
    count, h, inner = sizes
    return f" of {count} layers ({count * (4 * h * h + 2 * h * inner) / BILLION:.1f} B parameters)"


def stated_format(config: Mapping[str, Any]) -> WeightFormat:
    """What a checkpoint is quantised to, as its ``quantization_config`` says; "" where it has none.

    Methods are those of ``transformers`` 5 and of the engines' own quantisers: fp8 (DeepSeek's blocks too),
    fbgemm_fp8, gptq, awq, compressed-tensors, modelopt, mxfp4. Activations are not looked at.

    >>> stated_format({"quantization_config": {"quant_method": "gptq", "bits": 4}}), stated_format({})
    ('int4', '')
    """
    stated = config.get("quantization_config", config.get("compression_config"))
    if not isinstance(stated, dict):
        return "" if stated is None else "other"
    method = str(stated.get("quant_method", "")).lower()
    if method in ("gptq", "awq", "gptq_marlin", "awq_marlin"):
        return _of_width(stated.get("bits", stated.get("w_bit")), floating=False)
    if method in ("compressed-tensors", "modelopt", "modelopt_fp4") and "quant_algo" not in stated:
        return _grouped(stated.get("config_groups"))
    name = str(stated.get("quant_algo", method)).lower()
    return next((known for words, known in _METHODS if name in words), "other")


def _grouped(groups: object) -> WeightFormat:
    """The format of ``config_groups``, where all weights have the same."""
    tables = groups.values() if isinstance(groups, dict) else ()
    weights = [table.get("weights") for table in tables if isinstance(table, dict)]
    grouped = {
        _of_width(weight.get("num_bits"), floating=weight.get("type") == "float")
        for weight in weights
        if isinstance(weight, dict)
    }
    return grouped.pop() if len(grouped) == 1 else "other"


def _of_width(bits: object, *, floating: bool) -> WeightFormat:
    """The format of numbers of so many bits."""
    if bits == 4:
        return "fp4" if floating else "int4"
    if bits == 8:
        return "fp8" if floating else "int8"
    return "other"


_METHODS: tuple[tuple[tuple[str, ...], WeightFormat], ...] = (
    (("fp8", "fbgemm_fp8", "fp8_pb_wo", "fp8_per_channel_per_token"), "fp8"),
    (("mxfp4", "nvfp4", "w4a16_nvfp4", "fp_quant"), "fp4"),
    (("w4a16_awq", "w4a8_awq", "int4_awq"), "int4"),
)


_UNSAID_WITHIN: Mapping[str, Mapping[str, int]] = {
    family: dict(zip(
        ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
         "max_position_embeddings", "num_key_value_heads"), sizes, strict=False,
    ))
    for family, sizes in {
        "llama": (4096, 11008, 32, 32, 32000, 2048),  # as many key/value heads as heads
        "mistral": (4096, 14336, 32, 32, 32000, 131072, 8),
        "qwen2": (4096, 22016, 32, 32, 151936, 32768, 32),
        "gemma3_text": (2304, 9216, 26, 8, 262208, 131072, 4),
        "llama4_text": (5120, 8192, 48, 40, 202048, 131072, 8),
    }.items()
}  # fmt: skip
"""Sizes that a language model inside another configuration leaves out where they are its family's defaults.

Source: the configuration classes of transformers 5.23; a file of the language model alone states them.
"""

_UNSAID_OF: Mapping[str, Mapping[str, float]] = {
    "voxtral": {
        "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 30, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 1e8,
    },
}  # fmt: skip
"""The same of models that give their language model other defaults."""

_FIX = "give the config.json that was published with the model"

_FAMILIES = {**DENSE_FAMILIES, **EXPERT_FAMILIES, **HYBRID_FAMILIES, **COMPRESSED_FAMILIES}
