"""Formats of weights, and on which GPUs engines serve them: by units of the format, or widened as read.

A plan asks this before it proposes a precision, an audit of the checkpoint that a server loads.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from costmodel.models.spec import ModelSpec
from costmodel.serving.deployment import PUBLISHED_WEIGHTS, Weights
from costmodel.serving.engine import ServingStack, is_before
from topology.hardware.datasheets import capability, generation_of
from topology.hardware.gpu import Gpu

_FILE = Path(__file__).parents[1] / "data" / "served_formats.toml"
Format = Literal["fp8", "modelopt_fp8", "nvfp4", "mxfp4", "awq", "gptq"]
_UNITS = {"fp8": "fp8", "modelopt_fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}
"""The number format in which a GPU multiplies such weights; it has none for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFormat:
    """From which of NVIDIA's GPUs on an engine serves a format, since one of its releases.

    Attributes:
        engine: By the name of its profile.
        format: As engines name it.
        since: The first release of which this holds.
        capability: The least compute capability of a GPU without units for it.
        experts_capability: The same of mixtures of experts, where it differs.
        some_models: Whether it does so of some models alone, which are not known here.
        halves_only: Whether products are in float16 alone, where the format is named.
        source: Where that is read.
        as_of: When.
    """

    engine: str
    format: Format
    since: str
    capability: str
    experts_capability: str = ""
    some_models: bool = False
    halves_only: bool = False
    source: str
    as_of: str

    def least(self, *, experts: bool) -> str:
        """The least capability of a model with or without experts."""
        return (self.experts_capability if experts else "") or self.capability


@functools.cache
def served_formats() -> tuple[ServedFormat, ...]:
    """Every row, earlier releases first."""
    from topology.base.decode import read_toml, structure

    rows = read_toml(_FILE)["served"]
    return tuple(structure(row, ServedFormat, f"{_FILE.name}: {at}") for at, row in enumerate(rows))


def served_format(engine: str, name: str, version: str = "") -> ServedFormat | None:
    """The row of a release, the newest where none is said; None where nothing is known of the format.

    >>> [served_format("sglang", "nvfp4", release).capability for release in ("0.4.7", "0.5.13", "")]
    ['10.0', '8.0', '8.0']
    """
    rows = [row for row in served_formats() if (row.engine, row.format) == (engine, name)]
    return next((row for row in reversed(rows) if not is_before(version, row.since)), None)


def starts_on(engine: ServingStack, gpu: Gpu) -> bool:
    """Whether an engine starts on a GPU at all, whatever it serves there.

    >>> from costmodel.serving.engine import serving_stack
    >>> from topology.catalog import gpus
    >>> [starts_on(serving_stack("sglang"), gpus()[name]) for name in ("v100-sxm-32gb", "t4", "mi300x")]
    [False, True, True]
    """
    generation = generation_of(gpu)
    if generation.maker not in engine.makers:
        return False
    asks = engine.least_capability and generation.maker == "nvidia"
    return not asks or generation.capability >= capability(engine.least_capability)


def serves_format(engine: str, gpu: Gpu, name: str, version: str = "", *, experts: bool = False) -> bool:
    """Whether an engine may serve a format on a GPU; of what no row is about nothing is refused.

    Other makers' GPUs multiply fp8 or do not; what of the rest their engines take is not known here.
    """
    row, generation = served_format(engine, name, version), generation_of(gpu)
    if has_units(gpu, name) or row is None:
        return True
    if generation.maker != "nvidia":
        return _UNITS.get(name) != "fp8"
    return generation.capability >= capability(row.least(experts=experts))


def is_sure(engine: str, gpu: Gpu, name: str, version: str = "") -> bool:
    """Whether an engine that may serve a format on a GPU does so of every model.

    >>> from topology.catalog import gpus
    >>> [is_sure("trtllm", gpus()[name], "nvfp4") for name in ("b200-sxm", "h100-sxm")]
    [True, False]
    """
    row = served_format(engine, name, version)
    return has_units(gpu, name) or row is None or not row.some_models


def has_units(gpu: Gpu, name: str) -> bool:
    """Whether a GPU multiplies in a format; four bits with NVFP4's scales are not all makers'."""
    scaled = name != "nvfp4" or generation_of(gpu).nvfp4
    return _UNITS.get(name, "") in gpu.peak_flop_per_s and scaled


def format_of(weights: Weights, model: ModelSpec | None, gpu: Gpu, words: str = "") -> str:
    """The format of weights, as engines name it; "" where nothing is known of it.

    Args:
        weights: Their precision.
        model: What is served; None for any model.
        gpu: Where: four bits of floats are NVFP4 on NVIDIA's GPUs, MXFP4 on others, unless words or the
            checkpoint say.
        words: What files say of them: the checkpoint, and the method that they name.
    """
    lower = words.lower()
    if weights == "fp4":
        return _four_bit_floats(model, lower) or (
            "nvfp4" if generation_of(gpu).maker == "nvidia" else "mxfp4"
        )
    if weights == "fp8":
        return "modelopt_fp8" if lower.startswith("nvidia/") or "modelopt" in lower else "fp8"
    return next((name for name in ("awq", "gptq") if weights == "int4" and name in lower), "")


def _four_bit_floats(model: ModelSpec | None, words: str) -> str:
    """The format of four-bit floats, where words or a checkpoint say it; "" where neither does.

    A configuration that says four bits of floats is not asked whose scales they have: either's.
    """
    if "mxfp4" in words:
        return "mxfp4"
    if "nvfp4" in words or "modelopt" in words or words.startswith("nvidia/"):
        return "nvfp4"
    if model is not None and PUBLISHED_WEIGHTS.get(model.name) == "fp4":
        return "mxfp4"
    return "fp4" if model is not None and model.weight_format == "fp4" else ""
