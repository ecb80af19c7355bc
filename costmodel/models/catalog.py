"""Models by name, from ``data/models.toml``, or from a Hugging Face ``config.json``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodel.models.spec import ModelSpec
from topology.base.errors import InputError

_FILE = Path(__file__).parents[1] / "data" / "models.toml"
_HUB = "https://huggingface.co/"


def model_names() -> tuple[str, ...]:
    """Names of the catalogued models, in the order of the file."""
    return tuple(_table()["models"])


def models() -> Mapping[str, ModelSpec]:
    """Every catalogued model by name, in the order of the file."""
    return {name: _entry(name) for name in model_names()}


def model(name_or_path: str) -> ModelSpec:
    """Give the model of this lenient name, of the ``config.json`` at this path, or of this hub repository.

    >>> model("70b").name, model("meta-llama/Llama-3.1-8B").name
    ('llama-3.1-70b', 'llama-3.1-8b')
    """
    from topology.base.names import resolve

    if name_or_path in _table()["models"]:
        return _entry(name_or_path)
    if name_or_path.endswith(".json") or Path(name_or_path).is_dir():
        return _read(name_or_path)
    if "/" in name_or_path:
        return _of_repository(name_or_path)
    return _entry(resolve(name_or_path, model_names(), "model", _table()["aliases"]))


def _of_repository(name: str) -> ModelSpec:
    """Give the model of ``organisation/name``: from the catalog, a path, or fetched from the hub."""
    for known, entry in _table()["models"].items():
        if entry["source"].lower() == f"{_HUB}{name}".lower():
            return _entry(known)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        return _read(name)
    return replace(_read(_download(name)), name=name, source=f"{_HUB}{name}")


def _download(name: str) -> str:
    """Give the path of a hub repository's ``config.json``, fetched if it is not cached."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        fix = "install meshplan[hub] to read it from huggingface.co, or give the path of its config.json"
        raise InputError(
            f"model {name!r} is not in the catalog", "huggingface_hub is not installed", fix
        ) from None
    try:
        return str(hf_hub_download(name, "config.json"))
    except (OSError, ValueError) as error:
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        fix = "check the name and the connection, or give the path of its config.json"
        raise InputError(f"model {name!r} cannot be read from huggingface.co", cause, fix) from None


def _read(path: str) -> ModelSpec:
    """Give the model of a ``config.json``."""
    from costmodel.models.hf_config import read_config

    return read_config(path)


@functools.cache
def _table() -> dict[str, Any]:
    """Give the catalog file as plain dicts, read once."""
    from topology.base.decode import read_toml

    return read_toml(_FILE)


@functools.cache
def _entry(name: str) -> ModelSpec:
    """Decode one model: what its entry states, over what its family does."""
    from topology.base.decode import structure

    table = _table()
    entry = dict(table["models"][name])
    family = table["families"][entry.pop("family")]
    return structure({"name": name, **family, **entry}, ModelSpec, f"model {name} in {_FILE.name}")
