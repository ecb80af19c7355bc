"""Models by name, from ``data/models.toml``, or from a Hugging Face ``config.json``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from costmodel.model import ModelSpec

_FILE = Path(__file__).parent / "data" / "models.toml"


@functools.cache
def models() -> Mapping[str, ModelSpec]:
    """Every catalogued model by name, in the order of the file."""
    from topology.decode import read_toml, structure

    table = read_toml(_FILE)["models"]
    return {name: structure({"name": name, **entry}, ModelSpec, f"{_FILE.name}: {name}") for name, entry in table.items()}


def model(name_or_path: str) -> ModelSpec:
    """Give the model of this lenient name, or of the ``config.json`` at this path.

    >>> model("70b").name
    'llama-3.1-70b'
    """
    from topology.names import resolve

    if name_or_path.endswith(".json") or "/" in name_or_path:
        from costmodel.hf_config import read_config

        return read_config(Path(name_or_path))
    return models()[resolve(name_or_path, tuple(models()), "model")]
