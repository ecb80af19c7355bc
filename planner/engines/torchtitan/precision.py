"""Eight bits in torchtitan: converters that swap the linear layers of a model before it is built.

Names are those of ``torchtitan/components/quantization`` of the torchtitan 0.3.0 wheel. Head and router stay
in sixteen bits, as they are priced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from costmodel.layout import LayoutTable
from planner.engines.fields import Facts
from planner.engines.limit import block_scales_limit, columns_limit, limit
from planner.engines.setting import EngineSetting, Given, Word
from planner.engines.switch_words import switch_words
from planner.plan import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Converter:
    """One converter: the precision it means, the recipe where nobody says, and what it is told."""

    precision: str
    recipe: str
    experts: bool = False
    arguments: Mapping[str, Any]


CONVERTERS: Mapping[str, Converter] = {
    "Float8LinearConverter": Converter(
        precision="fp8", recipe="rowwise",
        arguments={"recipe_name": "rowwise", "filter_fqns": ["lm_head", "router.gate"]},
    ),
    "Float8GroupedExpertsConverter": Converter(
        precision="fp8", recipe="rowwise", experts=True, arguments={}
    ),
    "MXFP8LinearConverter": Converter(
        precision="mxfp8", recipe="mxfp8_rceil",
        arguments={"fqns": ["attention", "feed_forward", "shared_experts"]},
    ),
    "MXFP8GroupedExpertsConverter": Converter(
        precision="mxfp8", recipe="mxfp8_rceil", experts=True, arguments={"recipe_name": "mxfp8_rceil"}
    ),
}  # fmt: skip
_OF_FILES = {
    "float8": ("fp8", "tensorwise"), "quantize.linear.float8": ("fp8", "tensorwise"),
    "mx": ("mxfp8", "mxfp8_cublas"), "quantize.linear.mx": ("mxfp8", "mxfp8_cublas"),
    **{name: (converter.precision, converter.recipe) for name, converter in CONVERTERS.items()},
    "NVFP4LinearConverter": ("nvfp4", "nvfp4"),
}  # fmt: skip
"""Precision and usual recipe of every converter, those of the TOML files of 0.1 and 0.2 too.

That of NVFP4 is read, and no plan is written for it: experts have none, and nothing prices what stays wide.
"""
_MULTIPLE = {"fp8": 16, "mxfp8": 32}
"""Sides of a product are multiples of this: sixteen bytes of a row, or blocks of one scale."""


def _write(facts: Facts) -> dict[str, Any]:
    words: dict[str, Any] = {"training.mixed_precision_param": "bfloat16"}
    mine = [
        name
        for name, converter in CONVERTERS.items()
        if converter.precision == facts["job.precision"]
        and (facts["model.num_experts"] or not converter.experts)
    ]
    return words | ({"model.converters": mine} if mine else {})


def _read(given: Given) -> dict[str, Any]:
    """Half precision, or that of the first converter."""
    converters = given["model.converters"]
    listed = converters if isinstance(converters, (list, tuple)) else str(converters).split(",")
    names = [str(name).strip().removesuffix(".Config") for name in listed]
    low = [_OF_FILES[name] for name in names if name in _OF_FILES]
    if low:
        precision, usual = low[0]
        return {
            "job.precision": precision,
            "recipe.fp8_recipe": given["model.converters.recipe_name"] or usual,
        }
    return {"job.precision": "bf16"} if given["training.mixed_precision_param"] == "bfloat16" else {}


PRECISION = EngineSetting(
    words=(
        Word(name="training.mixed_precision_param", default="bfloat16"),
        Word(name="model.converters", kind="any", aliases=("converters",), states="said.converters"),
        Word(
            name="model.converters.recipe_name",
            aliases=(
                "float8.recipe_name", "quantize.linear.float8.recipe_name",
                "mx.recipe_name", "quantize.linear.mx.recipe_name",
            ),
        ),
    ),
    fields=("job.precision", "recipe.fp8_recipe"),
    write=_write,
    read=_read,
)  # fmt: skip


def _scaling(given: Given) -> str | None:
    """Of the recipe that is named, or of the first converter's own."""
    read = _read(given)
    if read.get("job.precision") != "fp8":
        return None
    return "rowwise" if "rowwise" in str(read["recipe.fp8_recipe"]) else "tensorwise"


SCALING = switch_words(
    "fp8_scaling",
    words=(),
    write=lambda _value, _facts: {},
    read=_scaling,
    untold={"tensorwise": "its converter has recipes of rows alone"},
)


def _untold(s: Problem, _: LayoutTable) -> bool:
    return s.job.precision not in ("bf16", *_MULTIPLE)


PRECISION_LIMITS = (
    limit(
        name="precision",
        reads=(),
        broken=_untold,
        says=lambda s, _: (
            f"precision = {s.job.precision}: sixteen bits are bf16, converters {' and '.join(_MULTIPLE)}",
            "use --precision bf16",
        ),
    ),
    block_scales_limit("converters"),
    columns_limit(_MULTIPLE),
)
