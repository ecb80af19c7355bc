"""Models by name, from ``data/models.toml``, or from a Hugging Face ``config.json``."""

from __future__ import annotations

import functools
import itertools
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodel.models.spec import ModelSpec
from topology.base.errors import InputError, shown

_FILE = Path(__file__).parents[1] / "data" / "models.toml"
HUB_TIMEOUT_S = 5.0  # for a file of a kilobyte
_HUB = "https://huggingface.co/"


def model_names() -> tuple[str, ...]:
    """Names of the catalogued models, in the order of the file."""
    return tuple(_texts("models"))


def model_aliases() -> Mapping[str, str]:
    """Short names that people give, and the catalogued model each is taken for."""
    return dict(_parsed("aliases"))


def models() -> Mapping[str, ModelSpec]:
    """Every catalogued model by name, in the order of the file."""
    return {name: _entry(name) for name in model_names()}


def model(name_or_path: str) -> ModelSpec:
    """Give the model of this lenient name, of the ``config.json`` at this path, or of this hub repository.

    >>> model("70b").name, model("meta-llama/Llama-3.1-8B").name
    ('llama-3.1-70b', 'llama-3.1-8b')
    """
    if name_or_path in _texts("models"):
        return _entry(name_or_path)
    if name_or_path.endswith(".json") or os.path.isdir(name_or_path):  # noqa: PTH112 - Path.is_dir may raise
        return _read(name_or_path)
    if "/" in name_or_path:
        return _of_repository(name_or_path)
    return listed_model(name_or_path)


def library_of_config(path: str) -> str:
    """The library that reads a ``config.json`` of a family not described here; "" of any other model."""
    if not (path.endswith(".json") or os.path.isdir(path)):  # noqa: PTH112 - Path.is_dir may raise
        return ""
    from costmodel.models.hf.config import library_of

    return library_of(path)


def listed_model(name: str) -> ModelSpec:
    """Give the catalogued model of this lenient name; no file is looked for, so the name may be anybody's."""
    from topology.base.errors import UnknownNameError
    from topology.base.names import resolve

    try:
        return _entry(resolve(name, model_names(), "model", _parsed("aliases")))
    except UnknownNameError as unknown:
        if traced := traced_as(name):
            cause = "it is of a family that is traced, not described"
            raise UnknownNameError(
                unknown.what, cause, f"use --model {traced}", unknown.suggestions
            ) from None
        raise


def published_model(name: str) -> ModelSpec:
    """Give the catalogued model of a name that a file states: lenient, but for the version of its family.

    People leave versions out and files do not: `gemma-2b` and `qwen2-7b` are no shorter names of
    `gemma-2-2b` and `qwen2.5-7b`, but other models.

    >>> published_model("Llama-3.1-70B").name, published_model("qwen3-30b").name
    ('llama-3.1-70b', 'qwen3-30b-a3b')

    Raises:
        UnknownNameError: no model here has that name, or the nearest one is of another version.
    """
    from topology.base.errors import UnknownNameError, shown

    model, stated = listed_model(name), _versions(name)
    stated += tuple(f"{first}.{second}" for first, second in itertools.pairwise(stated))  # qwen2_5-7b
    spelt = {version.replace(".", "") for version in stated}
    missing = {version for version in _versions(model.name) if version.replace(".", "") not in spelt}
    if missing and model.name not in _parsed("aliases").values():
        raise UnknownNameError(
            f"unknown model {shown(name)}",
            f"the nearest here is {model.name}, of another version",
            f"use --model {model.name} if it is that one, or the model's config.json",
            (model.name,),
        )
    return model


def _versions(name: str) -> tuple[str, ...]:
    """Numbers of a name that count nothing: `qwen2.5-7b` is 2.5 with 7 B parameters.

    >>> _versions("qwen2.5-7b"), _versions("Llama-3.1-8B-Instruct"), _versions("mixtral-8x7b")
    (('2.5',), ('3.1',), ())
    """
    return tuple(re.findall(r"(?<![\d.x])\d+(?:\.\d+)*(?![\d.]*[a-zA-Z\d])", name.lower()))


TRACED_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "torchvision": (
        "resnet", "resnext", "wide_resnet", "convnext", "efficientnet", "densenet", "vgg", "mobilenet",
        "regnet", "swin",
    ),
    "timm": ("deit", "eva", "maxvit", "vit_"),
    "transformers": (
        "bert", "roberta", "distilbert", "deberta", "electra", "modernbert", "t5", "mt5", "bart", "whisper",
        "wav2vec2", "clip", "siglip", "vit", "mamba", "mamba", "rwkv",
    ),
    "diffusers": ("dit", "unet", "sdxl", "sd3", "flux"),
}  # fmt: skip
"""How names of families begin that `transformers`, `torchvision`, `timm` and `diffusers` build."""


def traced_as(name: str) -> str:
    """How a model is named that a library builds and the catalog does not describe; "" of any other name.

    >>> traced_as("resnet50"), traced_as("whisper-base"), traced_as("71b")
    ('torchvision:resnet50', 'PATH/config.json, its own, which transformers reads', '')
    """
    traced = name.strip().lower()
    for library, beginnings in TRACED_FAMILIES.items():
        if traced.startswith(beginnings):
            if library in ("torchvision", "timm"):
                return f"{library}:{traced.replace('-', '_')}"
            return f"PATH/config.json, its own, which {library} reads"
    return ""


def _of_repository(name: str) -> ModelSpec:
    """Give the model of ``organisation/name``: from the catalog, a path, or fetched from the hub."""
    for known in model_names():
        if _parsed("models", known).get("source", "").lower() == f"{_HUB}{name}".lower():
            return _entry(known)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        return _read(name)
    return replace(_read(_download(name)), name=name, source=f"{_HUB}{name}")


def _download(name: str) -> str:
    """Give the path of a hub repository's ``config.json``, fetched if it is not cached."""
    import logging

    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        fix = "install meshplan[hub] to read it from huggingface.co, or give the path of its config.json"
        raise InputError(
            f"model {shown(name)} is not in the catalog", "huggingface_hub is not installed", fix
        ) from None
    download: list[str] = []
    causes: list[str] = []

    def fetch() -> None:
        try:
            download.append(str(hf_hub_download(name, "config.json", etag_timeout=HUB_TIMEOUT_S / 2)))
        except Exception as error:  # noqa: BLE001 - a library's own errors; all mean that there is no file
            causes.append(str(error).strip().partition("\n")[0] or type(error).__name__)

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it reports every attempt
    thread = threading.Thread(target=fetch, daemon=True)  # its own limits are for each of many attempts
    thread.start()
    thread.join(HUB_TIMEOUT_S)
    if download:
        return download[0]
    cause = causes[0] if causes else f"it did not answer within {HUB_TIMEOUT_S:g} s"
    fix = "check the name and the connection, or give the path of its config.json"
    raise InputError(f"model {shown(name)} cannot be read from huggingface.co", cause, fix)


def _read(path: str) -> ModelSpec:
    """Give the model of a ``config.json``."""
    from costmodel.models.hf.config import read_config

    return read_config(path)


@functools.cache
def _texts(kind: str) -> dict[str, str]:
    """Texts of the tables of a kind by name, in the order of the file: all take the parser 20 ms."""
    from topology.base.decode import read_text, toml_tables

    tables = {header.partition("."): text for header, text in toml_tables(read_text(_FILE)).items()}
    return {name.strip('"'): text for (of, _, name), text in tables.items() if of == kind}


@functools.cache
def _parsed(kind: str, name: str = "") -> dict[str, Any]:
    """Content of one table."""
    from topology.base.decode import toml_value

    parsed: dict[str, Any] = toml_value(_texts(kind)[name], _FILE.name)[kind]
    return parsed[name] if name else parsed


@functools.cache
def _entry(name: str) -> ModelSpec:
    """Decode one model: what its entry states, over what its family does."""
    from topology.base.decode import structure

    entry, where = dict(_parsed("models", name)), f"model {name} in {_FILE.name}"
    family, families = entry.pop("family", None), _texts("families")
    if family not in families:
        cause = "missing key family" if family is None else f"family = {shown(family)} is none of the file's"
        raise InputError(f"{where} cannot be read", cause, f"give it as family one of {', '.join(families)}")
    return structure({"name": name, **_parsed("families", family), **entry}, ModelSpec, where)
