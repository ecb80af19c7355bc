"""What a row states of its recipe beside degrees: recomputed modules, graphs, dispatcher, overlap, offload.

Two runs of one layout were published up to twice as fast as each other, told apart by these alone. What the
cost model has a mechanism for sets it; the rest is carried with the run as not priced, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.runs.cells import Row, count, yes_no_cell
from costmodel.stack import StackTiming

PRICED_MODULES = ("core_attn", "mla_up_proj", "layernorm", "moe_act", "mlp", "moe", "shared_experts")
"""Recomputed modules that the policy ``selective`` can stand for (`costmodel.stack`)."""
WHOLE_STEP = "full_iteration"
"""The scope of CUDA graphs that leaves no launch to the host."""
_PER_NODE = ("deepep", "hybridep")  # dispatchers that send a token once to every node
_PER_EXPERT = ("alltoall",)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecipe:
    """Columns of the recipe; empty, None or zero where the row does not say.

    Attributes:
        recompute_modules: Parts of a layer that are computed again in the backward pass.
        cuda_graph_scope: Parts of a step that run from captured graphs.
        dispatcher: How tokens reach their experts.
        moe_a2a_overlap: Whether the exchange of experts runs under another microbatch.
        offload_layers: Layers whose activations wait in host memory.
        fp8_output_proj: Whether the head multiplies in eight bits too, where layers do.
    """

    recompute_modules: tuple[str, ...] = ()
    cuda_graph_scope: tuple[str, ...] = ()
    dispatcher: str = ""
    moe_a2a_overlap: bool | None = None
    offload_layers: int = 0
    fp8_output_proj: bool = False

    @property
    def repeats(self) -> tuple[str, ...]:
        """Recomputed modules that the cost model has."""
        return tuple(module for module in self.recompute_modules if module in PRICED_MODULES)


def recipe_of(row: Row) -> RunRecipe:
    """Read the recipe's columns.

    >>> recipe_of({"recompute_modules": "mla_up_proj; MLP", "moe_a2a_overlap": "1"}).recompute_modules
    ('mla_up_proj', 'mlp')
    """
    overlap = yes_no_cell(row, "moe_a2a_overlap", default=False) if row.get("moe_a2a_overlap") else None
    return RunRecipe(
        recompute_modules=_words(row, "recompute_modules"),
        cuda_graph_scope=_words(row, "cuda_graph_scope"),
        dispatcher=row.get("dispatcher", "").lower(),
        moe_a2a_overlap=overlap,
        offload_layers=count(row, "offload_layers", 0),
        fp8_output_proj=yes_no_cell(row, "fp8_output_proj", default=False),
    )


def with_recipe(timing: StackTiming, recipe: RunRecipe) -> StackTiming:
    """The engine's timing with what the recipe says and the cost model has a mechanism for."""
    if recipe.dispatcher in (*_PER_NODE, *_PER_EXPERT):
        timing = replace(timing, dispatches_once_per_node=recipe.dispatcher in _PER_NODE)
    if recipe.moe_a2a_overlap is not None:
        timing = replace(timing, pairs_expert_passes=recipe.moe_a2a_overlap)
    if WHOLE_STEP in recipe.cuda_graph_scope:
        timing = replace(timing, cuda_graphs=True)
    if recipe.repeats:
        timing = replace(timing, recomputed_modules=recipe.repeats)
    if recipe.fp8_output_proj:
        timing = replace(timing, narrow_head=True)
    return timing


def not_priced(timing: StackTiming, recipe: RunRecipe) -> tuple[str, ...]:
    """What the recipe states and no term of the cost model answers to.

    >>> not_priced(StackTiming(), RunRecipe(recompute_modules=("core_attn", "mhc"), offload_layers=4))
    ('recompute_modules mhc', 'offload_layers 4')
    """
    modules = [module for module in recipe.recompute_modules if module not in PRICED_MODULES]
    scopes = () if WHOLE_STEP in recipe.cuda_graph_scope else recipe.cuda_graph_scope
    unknown = recipe.dispatcher not in ("", *_PER_NODE, *_PER_EXPERT)
    result = {
        "recompute_modules": ";".join(modules),
        "cuda_graph_scope": ";".join(scopes),
        "dispatcher": recipe.dispatcher if unknown else "",
        "moe_a2a_overlap": "1" if recipe.moe_a2a_overlap and not timing.pairs_expert_passes else "",
        "offload_layers": str(recipe.offload_layers or ""),
    }
    return tuple(f"{name} {value}" for name, value in result.items() if value)


def _words(row: Row, name: str) -> tuple[str, ...]:
    """Words of a cell that lists several."""
    return tuple(word.strip().lower() for word in row.get(name, "").split(";") if word.strip())
