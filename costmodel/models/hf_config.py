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

from costmodel.models.hf_dense import DENSE_FAMILIES
from costmodel.models.hf_experts import EXPERT_FAMILIES
from costmodel.models.hf_hybrid import HYBRID_FAMILIES
from costmodel.models.hf_reader import ConfigReader
from costmodel.models.pattern import period_of
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
    if isinstance(text := config.get("text_config"), dict):  # the language model of one that also sees
        config, family = text, text.get("model_type", family)
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
    if pattern := sizes.get("layer_pattern"):
        sizes["layer_pattern"] = period_of(pattern)
    departures = tuple(dict.fromkeys(reader.departures))
    return ModelSpec(name=name, source=source, unmodelled=departures, **sizes)


_FIX = "give the config.json that was published with the model"

_FAMILIES = {**DENSE_FAMILIES, **EXPERT_FAMILIES, **HYBRID_FAMILIES}
