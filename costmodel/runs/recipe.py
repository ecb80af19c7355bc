"""What a row states of its recipe beside degrees: its engine's switches, recomputed modules, offload.

Two runs of one layout were published up to twice as fast as each other, told apart by these alone. What the
cost model has a mechanism for sets it; the rest is carried with the run as not priced, never ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from costmodel.runs.cells import Row, count, yes_no_cell
from costmodel.stack import StackTiming
from costmodel.switches.switch import EngineSwitch, switches
from costmodel.updates.optimizers import optimizers

PRICED_MODULES = ("core_attn", "mla_up_proj", "layernorm", "moe_act", "mlp", "moe", "shared_experts")
"""Recomputed modules that the policy ``selective`` can stand for (`costmodel.stack`)."""
_YES_NO = frozenset({"off", "on"})
"""Values of a switch whose cells are a yes or a no."""
_ROWS_OF_LOGITS = re.compile(r"(\d{1,7}) (?:tokens|rows)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecipe:
    """Columns of the recipe; empty or zero where the row does not say.

    Attributes:
        switches: Switches of the engine that the row states and the cost model prices, in their order.
        unpriced: Words of other columns of switches, by column.
        recompute_modules: Parts of a layer that are computed again in the backward pass.
        offload_layers: Layers whose activations wait in host memory.
        fp8_output_proj: Whether the head multiplies in eight bits too, where layers do.
    """

    switches: Mapping[str, str] = field(default_factory=dict)
    unpriced: Mapping[str, str] = field(default_factory=dict)
    recompute_modules: tuple[str, ...] = ()
    offload_layers: int = 0
    fp8_output_proj: bool = False

    @property
    def repeats(self) -> tuple[str, ...]:
        """Recomputed modules that the cost model has."""
        return tuple(module for module in self.recompute_modules if module in PRICED_MODULES)


def recipe_of(row: Row) -> RunRecipe:
    """Read the recipe's columns.

    >>> recipe_of({"recompute_modules": "mla_up_proj; MLP", "moe_a2a_overlap": "1"}).switches
    {'exchange_overlap': 'on'}
    """
    priced, unpriced = {}, {}
    for name, switch in switches().items():
        column = next((column for column in switch.columns if row.get(column, "").strip()), "")
        if not column or (column == "weight_dtype" and row.get("adapter")):  # an adapter says its base's type
            continue
        if column == "optimizer" and row[column].strip().lower() in optimizers():  # nothing of its kernels
            continue
        value = _value(row, column, switch)
        if value and switch.value_of(value).is_priced:
            priced[name] = value
        else:
            unpriced[column] = row[column].strip().lower()
    return RunRecipe(
        switches=priced,
        unpriced={column: text for column, text in unpriced.items() if not _is_read(column, priced)},
        recompute_modules=_words(row, "recompute_modules"),
        offload_layers=count(row, "offload_layers", 0),
        fp8_output_proj=yes_no_cell(row, "fp8_output_proj", default=False),
    )


def _is_read(column: str, priced: Mapping[str, str]) -> bool:
    """Whether another switch of the same column is priced."""
    return any(column in switches()[name].columns for name in priced)


def _value(row: Row, column: str, switch: EngineSwitch) -> str:
    """The value of a switch that a cell states; "" for none of its own."""
    if switch.values.keys() == _YES_NO and not switch.of_cell(row[column]):
        yes_no_cell(row, column, default=False)  # refuses what is neither
    rows = _ROWS_OF_LOGITS.fullmatch(row[column].strip().lower()) if switch.number else None
    if rows:  # a chunk of so many rows of logits
        tokens = count(row, "sequence_length") * count(row, "microbatch_size", 1)
        return f"chunked:{max(1, math.ceil(tokens / max(1, int(rows[1]))))}"
    return switch.of_cell(row[column])


def with_recipe(timing: StackTiming, recipe: RunRecipe) -> StackTiming:
    """The engine's timing with what the recipe says beside its switches, as far as that is priced."""
    if recipe.repeats:
        timing = replace(timing, recomputed_modules=recipe.repeats)
    if recipe.fp8_output_proj:
        timing = replace(timing, narrow_head=True)
    return timing


def not_priced(recipe: RunRecipe) -> tuple[str, ...]:
    """What the recipe states and no term of the cost model answers to.

    >>> not_priced(RunRecipe(recompute_modules=("core_attn", "mhc"), offload_layers=4))
    ('recompute_modules mhc', 'offload_layers 4')
    """
    modules = [module for module in recipe.recompute_modules if module not in PRICED_MODULES]
    result = {
        "recompute_modules": ";".join(modules),
        **recipe.unpriced,
        "offload_layers": str(recipe.offload_layers or ""),
    }
    return tuple(f"{name} {value}" for name, value in result.items() if value)


def _words(row: Row, name: str) -> tuple[str, ...]:
    """Words of a cell that lists several."""
    return tuple(word.strip().lower() for word in row.get(name, "").split(";") if word.strip())
