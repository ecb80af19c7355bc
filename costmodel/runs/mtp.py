"""How many modules that predict further tokens a row of measured runs trained.

The column ``mtp_layers`` says it, or a note that reads ``w/ MTP`` or ``w/o MTP``; of the rest the recipes of
an engine do (`costmodel/data/mtp_recipes.toml`). Any other row trained none, as its engine has it unasked.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from costmodel.runs.cells import Row, count
from costmodel.runs.model_names import named_model

RECIPES = Path(__file__).parents[1] / "data" / "mtp_recipes.toml"
_SAID = re.compile(r"\bw/(o)? ?mtp\b")


def mtp_layers_of(row: Row) -> int:
    """Modules that predict further tokens in this row.

    >>> mtp_layers_of({"note": "DeepSeekV3 (w/ MTP)"}), mtp_layers_of({"note": "DeepSeekV3 (w/o MTP)"})
    (1, 0)
    >>> mtp_layers_of({"framework": "Megatron-Bridge 26.04", "model": "DeepSeekV3"})
    1
    """
    if row.get("mtp_layers"):
        return count(row, "mtp_layers", 0)
    if said := _SAID.search(row.get("note", "").lower()):
        return int(said.group(1) is None)
    return _of_recipe(row.get("framework", ""), row.get("model", ""))


@functools.lru_cache(maxsize=4096)
def _of_recipe(framework: str, named: str) -> int:
    """What the recipes of an engine train of a model."""
    found = named_model(named)
    known = found[0].name if found else ""
    fitting = (
        entry["mtp_layers"]
        for entry in _recipes()
        if framework.startswith(entry["framework"]) and known == entry["model"]
    )
    return int(next(fitting, 0))


@functools.cache
def _recipes() -> tuple[Any, ...]:
    """Entries of the file."""
    from topology.base.decode import read_toml

    return tuple(read_toml(RECIPES)["recipes"])
