"""Which catalogued model a name in a table of runs means, and which names mean layers that no column tells.

Tables write names their own way: an organisation before, tuning and precision behind, a remark in brackets,
the number of layers that are left. What remains must be a catalogued name, not merely resemble one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from costmodel.models.catalog import exact_model, model
from costmodel.models.recurrence import RECURRENCES
from costmodel.models.spec import ModelSpec
from costmodel.runs.cells import Row, UnsupportedRunError
from topology.base.errors import LONGEST_SHOWN, shown

MAMBA, LINEAR = RECURRENCES["mamba2"].run_words, RECURRENCES["gated-delta"].run_words
_HYBRIDS: Mapping[str, str] = {
    r"[mjzb]amba|falcon-?h1|granite-?4(\.0)?-?h|plamo-?2|phi-?4-mini-flash": MAMBA,
    r"nemotron-?h|nemotron-?nano-?\w*-?v?2\b|nemotron-?3-?(nano|super|ultra)": MAMBA,
    r"qwen-?3-?next|qwen-?3[.-]5(?!b|\d)|kimi-?linear|ring-?\w*-?linear": LINEAR,
    r"minimax-?(text-?01|m1)|rwkv|retnet": LINEAR,
}
"""Names, in small letters with dashes, of models with layers that are no transformer's."""
_HYBRID_COLUMN = re.compile(r"mamba|(^|_)ssm(_|$)|linear_att|hybrid", re.IGNORECASE)
_NOTHING = ("", "0", "none", "no", "false")
_LAYERS = re.compile(r"[-_ ]?\d{1,4}[-_ ]?layers?\b")
"""A number of layers that a row's name states: its columns hold it."""


@functools.lru_cache(maxsize=1024)
def named_model(name: str) -> tuple[ModelSpec, bool] | None:
    """The catalogued model of this name, and whether that is its own name; an alias is only short for one.

    >>> named_model("Llama3.1-8B (MLPerf v5.1)")[0].name, named_model("deepseekv3-4layers")[0].name
    ('llama-3.1-8b', 'deepseek-v3')
    >>> named_model("8b")[1], named_model("GPT-22B"), named_model("Llama")
    (False, None, None)
    """
    exact = exact_model(_LAYERS.sub("", name[:LONGEST_SHOWN]))
    return None if exact is None else (model(exact[0].name), exact[1])


def hybrid_layers(name: str) -> str:
    """What layers a model of this name has that no column of a run tells; empty where there are none.

    >>> hybrid_layers("nvidia/Nemotron-3-Nano-30B-A3B"), hybrid_layers("Qwen3-Next-80B-A3B")
    ('Mamba-2 layers', 'linear-attention layers')
    >>> hybrid_layers("Qwen3-32B")
    ''
    """
    if pair := named_model(name):
        recurrence = pair[0].recurrence
        return "" if recurrence is None else RECURRENCES[recurrence.kind].run_words
    key = re.sub(r"[_ ]", "-", name.rsplit("/", 1)[-1][:LONGEST_SHOWN].lower())
    return next((layers for pattern, layers in _HYBRIDS.items() if re.search(pattern, key)), "")


def refuse_hybrid(row: Row) -> None:
    """Refuse a row whose model mixes other layers with attention, by its name or a column that says so."""
    layers = hybrid_layers(row.get("model", ""))
    if layers:
        raise UnsupportedRunError(
            f"{shown(row['model'])} has {layers}, a kind of layer that the cost model lacks"
        )
    for column, cell in row.items():
        if _HYBRID_COLUMN.search(column) and cell.lower() not in _NOTHING:
            raise UnsupportedRunError(
                f"{column} = {shown(cell)} says that not all layers are attention and feed-forward, the only "
                "kinds that the cost model has"
            )
