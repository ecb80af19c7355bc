"""Models by name, from ``data/models.toml``, or from a Hugging Face ``config.json``."""

from __future__ import annotations

import functools
import itertools
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel.models.names import (
    bare,
    count_of_size,
    spellings,
    stated_sizes,
    stated_versions,
    states_nvfp4,
    weight_format,
)
from costmodel.models.positions import positions_of, siblings_alike
from costmodel.models.sizes import WeightFormat
from costmodel.models.spec import ModelSpec
from costmodel.models.stored import NVFP4_GROUP, known_checkpoint
from costmodel.models.tower import Tower
from topology.base.errors import AmbiguousNameError, InputError, UnknownNameError, shown
from topology.base.names import matches, normalize, suggest, words

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

    A name with words of tuning, of a date or of a format (`costmodel.models.names`) has the shape of the
    model that it is of, and weights in that format.

    >>> model("70b").name, model("meta-llama/Llama-3.1-8B").name
    ('llama-3.1-70b', 'llama-3.1-8b')
    >>> quantised = model("Qwen/Qwen2.5-32B-Instruct-AWQ")
    >>> quantised.name, quantised.weight_format, quantised.source
    ('qwen2.5-32b', 'int4', 'https://huggingface.co/Qwen/Qwen2.5-32B-Instruct-AWQ')
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
    """Give the catalogued model of this lenient name; no file is looked for, so the name may be anybody's.

    Raises:
        UnknownNameError: no model here has that name, or several may.
    """
    exact = exact_model(name)
    return exact[0] if exact else _in_format(_entry(_resembling(name)), name)


def exact_model(name: str) -> tuple[ModelSpec, bool] | None:
    """Give the model whose shape a name states in full, and whether by the model's name, not a short one.

    Its case and separators are free, and words that change no shape are left out. Sizes must be those of the
    model: ``Qwen-34B`` is spelled as ``qwen3-4b``, and is another.

    >>> exact_model("Qwen/Qwen3-4B-Thinking-2507-FP8")[0].name, exact_model("qwen-4b")
    ('qwen3-4b', None)
    """
    for spelling in spellings(name):
        key = normalize(spelling.text)
        sizes = stated_sizes(spelling.text)
        alike = [known for known in _index().get(key, ()) if stated_sizes(known.text) == sizes]
        meant = {known.model for known in alike}
        if len(meant) == 1 and not (spelling.undated and _has_releases(spelling.text)):
            return _in_format(_entry(alike[0].model), name), any(not known.is_alias for known in alike)
        if bare_size := _without_size(spelling.text):
            text, size = bare_size
            whole = {known.model for known in _index().get(normalize(text), ())}
            if len(whole) == 1 and not spelling.undated and _counts(size, *whole):
                return _in_format(_entry(*whole), name), False
    return None


def published_model(name: str) -> ModelSpec:
    """Give the catalogued model of a name that a file states: lenient, but for the version of its family.

    People leave versions out and files do not: `gemma-2b` and `qwen2-7b` are no shorter names of
    `gemma-2-2b` and `qwen2.5-7b`, but other models.

    >>> published_model("Llama-3.1-70B").name, published_model("qwen3-30b").name
    ('llama-3.1-70b', 'qwen3-30b-a3b')

    Raises:
        UnknownNameError: no model here has that name, or the nearest one is of another version.
    """
    if exact := exact_model(name):
        return exact[0]
    model, stated = listed_model(name), stated_versions(bare(name))
    stated += tuple(f"{first}.{second}" for first, second in itertools.pairwise(stated))  # qwen2_5-7b
    spelt = {version.replace(".", "") for version in stated}
    missing = {version for version in stated_versions(model.name) if version.replace(".", "") not in spelt}
    if missing:
        raise UnknownNameError(
            f"unknown model {shown(name)}",
            f"the nearest here is {model.name}, of another version",
            f"use --model {model.name} if it is that one, or the model's config.json",
            (model.name,),
        )
    return model


@dataclass(frozen=True, slots=True)
class _Listed:
    """A name under which a model is known: its own, a short one, or that of its repository."""

    text: str
    model: str
    is_alias: bool


@functools.cache
def _index() -> Mapping[str, tuple[_Listed, ...]]:
    """Every name of every model, without case and separators."""
    names = [_Listed(name, name, is_alias=False) for name in model_names()]
    names += [_Listed(short, name, is_alias=True) for short, name in _parsed("aliases").items()]
    for name, text in _texts("models").items():
        repository = re.search(rf'(?m)^source = "{_HUB}[^/"]+/([^/" ]+)', text)
        if repository is not None:
            names += [
                _Listed(spelling.text, name, is_alias=False)
                for spelling in spellings(repository[1])
                if not spelling.undated
            ]
    index: dict[str, list[_Listed]] = {}
    for known in names:
        index.setdefault(normalize(known.text), []).append(known)
    return {key: _by_name_first(listed) for key, listed in index.items()}


def _by_name_first(listed: list[_Listed]) -> tuple[_Listed, ...]:
    """Names that are a model's own, if any are: a repository may be called as another model's short name."""
    named = [known for known in listed if known.text == known.model or known.is_alias]
    return tuple(named or listed)


def _has_releases(text: str) -> bool:
    """Whether a name without its date or release may mean several: its models are told apart by those.

    It may where nothing else of it is a number, as `mistral-small` of 22 and of 24 B.
    """
    key = normalize(text)
    longer = [known[len(key) :] for known in _index() if known.startswith(key)]
    return not re.search(r"\d", text) or any(re.fullmatch(r"v0\d+|\d{4}", rest) for rest in longer)


def _without_size(text: str) -> tuple[str, str] | None:
    """A name without the size at its end, and that size; None where it has none or is nothing else."""
    words, _, last = text.rpartition("-")
    return (words, last.lower()) if words and count_of_size(last.lower()) else None


SIZE_TOLERANCE = 0.03
"""Share by which a size in a name may differ from the count: 1T are 1.03 T, 671B 671.03 B. Names round."""


def _counts(size: str, name: str) -> bool:
    """Whether a model has as many parameters as a size states."""
    from costmodel.models.parameters import parameter_count

    count = count_of_size(size)
    return count is not None and abs(count / parameter_count(_entry(name)) - 1) < SIZE_TOLERANCE


def _resembling(name: str) -> str:
    """The one model of which a name has some words, all its sizes and all its versions."""
    if missing := _missing_of(name):
        raise _known_by_name(name, missing)
    known: list[str] = []
    for spelling in spellings(name):
        if _KINDS.issuperset(words(spelling.text)):
            continue
        if not (spelling.undated and _has_releases(spelling.text)) and not _tells_apart(name, spelling.text):
            known = [each for each in matches(spelling.text, model_names()) if _agrees(spelling.text, each)]
            known = [each for each in known if not _SEEING & (set(words(each)) - set(words(name)))]
        if known:
            break
    if len(known) == 1:
        return known[0]
    if known:
        raise AmbiguousNameError("model", name, known)
    if traced := traced_as(name):
        cause = "it is of a family that is traced, not described"
        raise UnknownNameError(f"unknown model {shown(name)}", cause, f"use --model {traced}", ())
    close = _close_to(name)
    listed = f"did you mean: {', '.join(close)}?" if close else "plan models lists them;"
    raise UnknownNameError(
        f"unknown model {shown(name)}",
        f"none of the {len(model_names())} known names match; no word is left out that may change a shape",
        f"{listed} of any other give the path of its config.json",
        close,
    )


def _known_by_name(name: str, missing: str) -> UnknownNameError:
    """What is said of a model that is served and cannot be priced."""
    unpriced = missing.startswith("a price for ")
    fix = "name another" if unpriced else "give the path of its config.json, which says so"
    return UnknownNameError(
        f"model {shown(name)} is known by its name alone", f"not known here: {missing}", fix, _close_to(name)
    )


def _missing_of(name: str) -> str:
    """What is not known of a model that is served; "" of a name that is not listed so."""
    unlisted = {normalize(known): missing for known, missing in _parsed("unlisted").items()}
    return next((unlisted[key] for each in spellings(name) if (key := normalize(each.text)) in unlisted), "")


def _tells_apart(name: str, text: str) -> bool:
    """Whether a word that a spelling lacks tells models of its family apart, as coder does of DeepSeek's."""
    dropped, family = set(words(bare(name))) - set(words(text)), re.match(r"[a-z]*", text.lower())
    related = (each for each in model_names() if family and family[0] and each.startswith(family[0]))
    return any(dropped & set(words(each)) for each in related)


_KINDS = frozenset({"moe", "dense", "hybrid"})
"""Words that say what kind a model is, not which."""
_SEEING = frozenset({"vl"})
"""Words of models that also see; Qwen3-235B is no shorter name of Qwen3-VL-235B."""
SUGGESTED = 5
"""Names that are proposed in place of one that is unknown."""


def _close_to(name: str) -> tuple[str, ...]:
    """Models that look most like a name, those that share most of its words first."""
    *_, last = (each.text for each in spellings(name) if not _tells_apart(name, each.text))
    alike = suggest(last, model_names(), 2 * SUGGESTED)
    shared = {each: len(set(words(last)) & set(words(each))) for each in alike}
    return tuple(sorted(alike, key=lambda each: -shared[each])[:SUGGESTED])


def _agrees(text: str, name: str) -> bool:
    """Whether a model has every size and every version that a name states."""
    sizes, listed = stated_sizes(text), stated_sizes(name)
    versions = {version.replace(".", "") for version in stated_versions(name)}
    versions |= {re.sub(r"\D", "", size) for size in listed}  # llama-3-8 is of 8b
    stated = {version.replace(".", "") for version in stated_versions(text)}
    return sizes <= listed and (stated <= versions or not versions)


def _in_format(spec: ModelSpec, name: str) -> ModelSpec:
    """A model with its weights stored as a name says."""
    stated = weight_format(name) or _wide(spec, name)
    if known := known_checkpoint(name):
        heads = known.num_key_value_heads or spec.num_key_value_heads
        spec = replace(spec, stored=known.stored, num_key_value_heads=heads)
    if states_nvfp4(name) and not spec.stored.group:
        spec = replace(spec, stored=replace(spec.stored, group=NVFP4_GROUP))
    if positions := positions_of(name):
        spec = replace(spec, max_sequence_length=positions)
    return replace(spec, weight_format=stated) if stated else spec


def _wide(spec: ModelSpec, name: str) -> WeightFormat:
    """bf16 of a name whose checkpoint is not quantised as the model's usual one is; "" of any other name."""
    stated = (
        set(_parsed("models", spec.name).get("bf16_words", ())) if spec.name in _texts("models") else set()
    )
    return "bf16" if stated & {word.lower() for word in words(bare(name))} else ""


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


def uncompared_note(model: ModelSpec) -> str:
    """What the sizes of a model rest on whose configuration was nowhere to be read; "" of all others.

    >>> uncompared_note(published_model("llama-3.1-8b"))
    ''
    """
    rests_on = _parsed("uncompared").get(model.name, "")
    if not rests_on:
        return ""
    from costmodel.models.parameters import parameter_count, without_tower

    count = f"{parameter_count(without_tower(model)) / 1e9:.4g} B"
    return (
        f"sizes of {model.name} were not compared with its config.json: they sum to {count}, and {rests_on} "
        "are published"
    )


def hub_checkpoint(model: ModelSpec) -> str:
    """Name on the Hugging Face hub of the checkpoint that a server of a model loads; "" where none is known.

    A catalogued model names it where its configuration was read elsewhere, or of a base that has a tuned one.

    >>> hub_checkpoint(listed_model("qwen3-32b")), hub_checkpoint(listed_model("gemma-3-27b"))
    ('Qwen/Qwen3-32B', 'google/gemma-3-27b-it')
    """
    if model.name in _texts("models"):
        entry = _parsed("models", model.name)
        if "checkpoint" in entry and entry["source"] == model.source:
            return str(entry["checkpoint"])
    stated = re.fullmatch(rf"{_HUB}([\w.-]+/[\w.-]+)(?: \(.*\))?", model.source)
    return stated[1] if stated else ""


def knows_positions(name: str, model: ModelSpec) -> bool:
    """Whether the positions of a checkpoint are known, and not those of another with the same shape.

    They are of a name that is listed with them, of the checkpoint whose configuration was read, and of
    others of a maker who gives all of a shape the same.

    >>> base = listed_model("qwen2.5-7b")
    >>> [knows_positions(f"Qwen/Qwen2.5-7B{end}", base) for end in ("", "-Instruct-FP8", "-Chat")]
    [True, True, False]
    """
    if model.name not in _texts("models") or model.name in siblings_alike() or positions_of(name):
        return True
    names = (normalize(bare(hub_checkpoint(_entry(model.name)))), normalize(model.name))
    kept = (each.text for each in spellings(name) if not (each.untuned or each.undated))
    return any(normalize(text) in names for text in kept)


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
    if exact := exact_model(name):
        return replace(exact[0], source=f"{_HUB}{name}")
    try:
        return replace(_read(_download(name)), name=name, source=f"{_HUB}{name}")
    except InputError as unread:
        if missing := _missing_of(name):
            raise _known_by_name(name, missing) from None
        close = f"; here are {', '.join(names)}" if (names := _close_to(name)) else ""
        raise InputError(unread.what, unread.cause, f"{unread.fix}{close}") from None


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
    from topology.base.decode import toml_tables
    from topology.base.files import read_text

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
    vision = entry.pop("vision", None)
    for key in ("checkpoint", "bf16_words"):  # of its checkpoints, not of its shape
        entry.pop(key, None)
    if family not in families:
        cause = "missing key family" if family is None else f"family = {shown(family)} is none of the file's"
        raise InputError(f"{where} cannot be read", cause, f"give it as family one of {', '.join(families)}")
    spec = structure({"name": name, **_parsed("families", family), **entry}, ModelSpec, where)
    return replace(spec, encoder=_listed_tower(vision, spec.hidden_size, where)) if vision else spec


def _listed_tower(name: str, hidden_size: int, where: str) -> Tower:
    """The tower of a catalogued model, whose ``vision_config`` it names."""
    from costmodel.models.hf.towers import tower_of

    if name not in _texts("vision"):
        raise InputError(f"{where} cannot be read", f"vision = {shown(name)}", "name a vision table")
    problems: list[str] = []
    config = dict(_parsed("vision", name))
    whole = {"model_type": config.pop("model_type"), "vision_config": config}
    tower = tower_of(whole, hidden_size, problems)
    if tower is None or problems:
        cause = "; ".join(problems) or "no tower is read"
        raise InputError(f"{where} cannot be read", cause, f"mend vision table {name}")
    return tower
