"""Recipes of Megatron-Bridge by release, model, GPU, precision and layout: what rows leave unsaid.

The table is built by `tools/build_bridge_recipes.py` from the recipe files of the repository (Apache-2.0).
A run of a release is taken for one of the latest release that is no newer and has a recipe of its model on as
many of its GPUs in its precision. If that has another layout, the table kept an older one, whose
switches are past.
"""

from __future__ import annotations

import csv
import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from costmodel.runs.cells import Row
from costmodel.runs.model_names import named_model

BRIDGE_RECIPES = Path(__file__).parents[1] / "data" / "bridge_recipes.csv"
SIZES = ("num_gpus", "tp", "pp", "virtual_stages", "cp", "ep", "microbatch_size")
WHERE = ("model", "gpu", "precision", *SIZES)
SWITCH_COLUMNS = ("recompute_modules", "cuda_graph_scope", "dispatcher", "moe_a2a_overlap", "offload_layers")
JOB = WHERE.index("num_gpus") + 1
"""Columns of `WHERE` that a publisher does not choose anew by release."""
_ENGINE = re.compile(r"Megatron-Bridge (\d+(?:\.\d+)+)")
Release = tuple[int, ...]


def release_of(text: str) -> Release:
    """A release as numbers, so that 26.04.01 is later than 26.04."""
    return tuple(int(part) for part in text.split("."))


def bridge_cells(row: Row) -> dict[str, str]:
    """Cells of the recipe that a row ran, of Megatron-Bridge; none where no recipe has its layout.

    Where several recipes of one release have it, what they agree in is said.

    >>> row = {"model": "qwen3-30b-a3b", "gpu": "h100-sxm", "precision": "fp8", "num_gpus": "16"}
    >>> row |= {"pp": "2", "virtual_stages": "12", "ep": "8"}
    >>> bridge_cells(row | {"framework": "Megatron-Bridge 26.02"})["dispatcher"]
    'deepep'
    >>> bridge_cells(row | {"framework": "Megatron-Bridge 26.02.01"})
    {}
    """
    engine = _ENGINE.match(row.get("framework", ""))
    pair = named_model(row.get("model", "")) if engine else None
    if engine is None or pair is None:
        return {}
    sizes = (_size(row.get(name, "")) for name in SIZES)
    where = (pair[0].name, row.get("gpu", ""), row.get("precision", ""), *sizes)
    recipes, run = _recipes().get(where, {}), release_of(engine[1])
    latest = max((release for release in _releases().get(where[:JOB], ()) if release <= run), default=None)
    if latest is None or latest not in recipes:
        return {}
    first, *others = recipes[latest]
    return {name: cell for name, cell in first.items() if cell and all(o[name] == cell for o in others)}


def _size(cell: str) -> str:
    """A size as the table writes it: what is not stated is one."""
    return cell.strip().removesuffix(".0") or "1"


@functools.cache
def _recipes() -> Mapping[tuple[str, ...], Mapping[Release, list[dict[str, str]]]]:
    """What recipes say, by what they are of and by release."""
    table: defaultdict[tuple[str, ...], dict[Release, list[dict[str, str]]]] = defaultdict(dict)
    with BRIDGE_RECIPES.open(encoding="utf-8", newline="") as stream:
        for recipe in csv.DictReader(stream):
            by_release = table[tuple(recipe[name] for name in WHERE)]
            stated = {name: recipe[name] for name in SWITCH_COLUMNS}
            by_release.setdefault(release_of(recipe["release"]), []).append(stated)
    return table


@functools.cache
def _releases() -> Mapping[tuple[str, ...], set[Release]]:
    """Releases that have recipes of a model on so many GPUs in a precision, whatever the layout."""
    releases: defaultdict[tuple[str, ...], set[Release]] = defaultdict(set)
    for where, by_release in _recipes().items():
        releases[where[:JOB]] |= by_release.keys()
    return releases
