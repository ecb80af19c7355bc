"""Modules of a layer that Megatron-LM is told to recompute: which of them a model has, and which are priced.

Read in `TransformerConfig.__post_init__` of megatron-core 0.19.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from costmodel.layout import RECOMPUTES, LayoutTable, ParallelLayout
from planner.engines.limit import Limit, Question

PRICED = ("core_attn", "mla_up_proj", "layernorm", "moe_act")
"""The others (``mlp``, ``moe``, ``shared_experts``) are read, and taken for kept."""
_SELECTIVE = RECOMPUTES.index("selective")
_NOT_WITH_DELAYED_SCALING = {"layernorm", "moe_act"}


def modules_of(told: Sequence[str], *, latent: bool, experts: bool) -> tuple[str, ...]:
    """Those that a model has: norms stand alone only before experts and before latent attention.

    >>> modules_of(("mla_up_proj", "layernorm", "moe_act"), latent=False, experts=True)
    ('layernorm', 'moe_act')
    """
    has = {"core_attn": True, "mla_up_proj": latent, "layernorm": latent or experts, "moe_act": experts}
    return tuple(name for name in told if has.get(name, False))


def spelled_modules(given: Iterable[object]) -> tuple[str, ...]:
    """Names in a list of words, or in a text of several.

    >>> spelled_modules(["moe_act,layernorm"])
    ('moe_act', 'layernorm')
    """
    return tuple(name for one in given for name in re.findall(r"\w+", str(one)))


def _repeated(s: Question) -> tuple[str, ...]:
    told = s.stack.timing.recomputed_modules
    return modules_of(told, latent=not s.model.attention.shares_keys, experts=s.model.is_moe)


def _delayed(s: Question) -> list[str]:
    """Modules that eight bits with delayed scaling cannot repeat."""
    return sorted(_NOT_WITH_DELAYED_SCALING.intersection(_repeated(s))) if s.job.precision == "fp8" else []


def _broken(s: Question, t: LayoutTable) -> np.ndarray | bool:
    refused = not _repeated(s) or bool(_delayed(s))
    return refused and np.asarray(t.recompute == _SELECTIVE, dtype=bool)


def _says(s: Question, _: ParallelLayout) -> tuple[str, str]:
    modules = ", ".join(s.stack.timing.recomputed_modules)
    if not _repeated(s):
        return f"recompute = selective: {s.model.name} has none of {modules}", "set recompute=none"
    delayed = ", ".join(_delayed(s))
    return f"recompute = selective in fp8: delayed scaling repeats no {delayed}", "set recompute=none"


MODULES = Limit(name="recompute-modules", fields=("recompute",), broken=_broken, says=_says)
