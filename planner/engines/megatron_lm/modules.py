"""Modules of a layer that Megatron-LM is told to recompute: which of them a model has, and which are priced.

Read in `TransformerConfig.__post_init__` of megatron-core 0.19.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from costmodel.layout import RECOMPUTES, LayoutTable, ParallelLayout
from planner.engines.limit import limit
from planner.plan import Problem

PRICED = ("core_attn", "mla_up_proj", "layernorm", "moe_act", "mlp", "moe", "shared_experts")
"""The only other, ``gdn_norm_out``, belongs to an attention that is not described."""
_SELECTIVE = RECOMPUTES.index("selective")
_NOT_WITH_DELAYED_SCALING = {"layernorm", "moe_act"}


def modules_of(
    modules: Sequence[str], *, latent: bool, dense: bool, experts: bool, shared: bool
) -> tuple[str, ...]:
    """Those that a model has: norms stand alone only before experts and before latent attention.

    >>> modules_of(("layernorm", "mlp", "moe"), latent=False, dense=False, experts=True, shared=False)
    ('layernorm', 'moe')
    """
    has = {
        "core_attn": True, "mla_up_proj": latent, "layernorm": latent or experts, "moe_act": experts,
        "mlp": dense, "moe": experts, "shared_experts": shared,
    }  # fmt: skip
    return tuple(name for name in modules if has.get(name, False))


def spelled_modules(given: Iterable[object]) -> tuple[str, ...]:
    """Names in a list of words, or in a text of several.

    >>> spelled_modules(["moe_act,layernorm"])
    ('moe_act', 'layernorm')
    """
    return tuple(name for text in given for name in re.findall(r"\w+", str(text)))


def _repeated(s: Problem) -> tuple[str, ...]:
    modules = s.stack.timing.recomputed_modules
    return modules_of(
        modules,
        latent="mla_up_proj" in s.model.attention.modules,
        dense=not s.model.is_moe or s.model.num_dense_layers > 0,
        experts=s.model.is_moe,
        shared=s.model.shared_expert_size > 0,
    )


def _paired(s: Problem) -> bool:
    """Whether tokens of a recomputed block of experts would be exchanged under another microbatch."""
    return s.stack.timing.pairs_expert_passes and "moe" in _repeated(s)


def _delayed(s: Problem) -> list[str]:
    """Modules that eight bits with delayed scaling cannot repeat."""
    return sorted(_NOT_WITH_DELAYED_SCALING.intersection(_repeated(s))) if s.job.precision == "fp8" else []


def _broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    refused = not _repeated(s) or bool(_delayed(s)) or _paired(s)
    return refused and np.asarray(t.recompute == _SELECTIVE, dtype=bool)


def _says(s: Problem, _: ParallelLayout) -> tuple[str, str]:
    modules = ", ".join(s.stack.timing.recomputed_modules)
    if not _repeated(s):
        return f"recompute = selective: {s.model.name} has none of {modules}", "set recompute=none"
    if _paired(s):
        return "recompute = selective of moe: no overlap of experts beside it", "set recompute=none"
    delayed = ", ".join(_delayed(s))
    return f"recompute = selective in fp8: delayed scaling repeats no {delayed}", "set recompute=none"


MODULES = limit(name="recompute-modules", reads=("recompute",), broken=_broken, says=_says)
