"""Models by name, from ``data/models.toml``, or from a Hugging Face ``config.json``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.model import ModelSpec

_FILE = Path(__file__).parent / "data" / "models.toml"


def model_names() -> tuple[str, ...]:
    """Names of the catalogued models, in the order of the file."""
    return tuple(_table()["models"])


def models() -> Mapping[str, ModelSpec]:
    """Every catalogued model by name, in the order of the file."""
    return {name: _entry(name) for name in model_names()}


def model(name_or_path: str) -> ModelSpec:
    """Give the model of this lenient name, or of the ``config.json`` at this path.

    >>> model("70b").name
    'llama-3.1-70b'
    """
    from topology.names import resolve

    if name_or_path.endswith(".json") or "/" in name_or_path or Path(name_or_path).is_dir():
        from costmodel.hf_config import read_config

        return read_config(name_or_path)
    if name_or_path in _table()["models"]:
        return _entry(name_or_path)
    return _entry(resolve(name_or_path, model_names(), "model", _table()["aliases"]))


@functools.cache
def _table() -> dict[str, Any]:
    """Give the catalog file as plain dicts, read once."""
    from topology.decode import read_toml

    return read_toml(_FILE)


@functools.cache
def _entry(name: str) -> ModelSpec:
    """Decode one model: what its entry states, over what its family does."""
    from topology.decode import structure

    table = _table()
    entry = dict(table["models"][name])
    family = table["families"][entry.pop("family")]
    return structure({"name": name, **family, **entry}, ModelSpec, f"model {name} in {_FILE.name}")
