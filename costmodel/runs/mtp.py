"""How many modules that predict further tokens a row of measured runs trained.

The column ``mtp_layers`` says it, or a note that reads ``w/ MTP`` or denies it; of the rest the recipes of
an engine do (`costmodel.runs.engine_recipes`). Any other row trained none, as its engine has it unasked.
"""

from __future__ import annotations

import re

from costmodel.runs.cells import Row, count
from costmodel.runs.engine_recipes import modules_of_recipe
from costmodel.runs.notes import stated

_WITH = re.compile(r"\bw(?:/|ith) ?mtp\b")


def mtp_layers_of(row: Row) -> int:
    """Modules that predict further tokens in this row.

    >>> mtp_layers_of({"note": "DeepSeekV3 (w/ MTP)"}), mtp_layers_of({"note": "DeepSeekV3 (w/o MTP)"})
    (1, 0)
    >>> mtp_layers_of({"framework": "Megatron-Bridge 26.04", "model": "DeepSeekV3"})
    1
    """
    if row.get("mtp_layers"):
        return count(row, "mtp_layers", 0)
    note = row.get("note", "")
    if stated(note, "further tokens") is False:
        return 0
    return 1 if _WITH.search(note.lower()) else modules_of_recipe(row)
