"""What the recipes of an engine say of a row of measured runs that does not say it.

Recipes read by hand stand in `engine_recipes.toml` and come first; those of Megatron-Bridge, a release
each, in `costmodel.runs.bridge_recipes`.

Publishers print a table and run their recipes. What is taken of a recipe is what the cost model has a
mechanism for, of rows whose model, GPU, precision and layout are the recipe's.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.runs.bridge_recipes import bridge_cells
from costmodel.runs.cells import Row
from costmodel.runs.model_names import named_model

RECIPES = Path(__file__).parents[1] / "data" / "engine_recipes.toml"
MODULES = "mtp_layers"
"""The column that `costmodel.runs.mtp` reads, since a note says it too."""


def with_recipes(row: Row) -> Row:
    """The row, its empty cells filled by the recipe that its publisher ran; its own word comes first.

    >>> with_recipes({"framework": "torchtitan", "model": "llama-3.1-8b"})
    {'framework': 'torchtitan', 'model': 'llama-3.1-8b'}
    """
    filled = dict(row)
    for entry in _fitting(row):
        copied = entry.get("copied", {})
        for column, cell in entry["said"].items():
            if column != MODULES and filled.get(column, "") in ("", copied.get(column, "")):
                filled[column] = cell
    unsaid = {column: cell for column, cell in bridge_cells(row).items() if not filled.get(column)}
    return filled | unsaid


def modules_of_recipe(row: Row) -> int:
    """Modules that predict further tokens which the recipe trains."""
    modules = (entry["said"][MODULES] for entry in _fitting(row) if MODULES in entry["said"])
    return int(next(modules, 0))


def _fitting(row: Row) -> tuple[Any, ...]:
    """Recipes whose engine, model, cells and words of the note are the row's."""
    framework, named = row.get("framework", ""), row.get("model", "")
    return tuple(
        entry
        for entry in _of(framework, named)
        if all(_plain(row.get(column, "")) == cell for column, cell in entry.get("where", {}).items())
        and entry.get("noted", "") in row.get("note", "")
    )


def _plain(cell: str) -> str:
    """A cell as recipes write it: in small letters, a whole number without its point."""
    return cell.strip().lower().removesuffix(".0")


@functools.lru_cache(maxsize=4096)
def _of(framework: str, named: str) -> tuple[Any, ...]:
    """Recipes of an engine and a model."""
    candidates = [entry for entry in _recipes() if framework.startswith(entry["framework"])]
    pair = named_model(named) if candidates else None
    known = pair[0].name if pair else ""
    return tuple(entry for entry in candidates if entry.get("model", known) == known)


@functools.cache
def _recipes() -> tuple[Mapping[str, Any], ...]:
    """Entries of the file."""
    from topology.base.decode import read_toml

    return tuple(read_toml(RECIPES)["recipes"])
