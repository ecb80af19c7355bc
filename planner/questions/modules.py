"""Which parts of a layer are computed again, as written: names that exist, an engine that takes them."""

from __future__ import annotations

from planner.engines.contracts import CONTRACTS, engine_of_stack
from planner.engines.megatron_lm.modules import PRICED, spelled_modules
from planner.plan import FREE
from topology.base.errors import InputError
from topology.base.names import resolve

FIELD = "stack.recomputed_modules"


def recompute_modules(text: str | None, stack: str, engine: str | None) -> tuple[str, ...]:
    """The modules that were written, each once.

    >>> recompute_modules("mlp,layernorm", "megatron-core", None)
    ('mlp', 'layernorm')
    """
    if text is None:
        return ()
    words = spelled_modules([text])
    values = tuple(dict.fromkeys(resolve(word, PRICED, "module") for word in words))
    if not values:
        raise InputError(
            what="--recompute-modules names no module",
            cause=f"there are {', '.join(PRICED)}",
            fix="write for example --recompute-modules core_attn,mlp",
        )
    _require_engine(engine or engine_of_stack(stack))
    return values


def _require_engine(engine: str) -> None:
    """Refuse an engine that is not told modules."""
    able = [name for name, contract in CONTRACTS.items() if any(FIELD in s.fields for s in contract.settings)]
    if engine not in (*able, FREE):
        raise InputError(
            what=f"{CONTRACTS[engine].title} is not told which modules to recompute",
            cause=f"those that are: {', '.join(able)}",
            fix=f"use --for {able[0]}, or leave --recompute-modules out",
        )
