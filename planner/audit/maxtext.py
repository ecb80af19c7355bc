"""What MaxText keeps of a layer under a policy of recomputation, as modules that are priced.

A policy keeps tensors by their names and makes all else again: configs/base.yml (``remat_policy``) and
get_remat_policy of layers/decoders.py. Kept in host memory is not on a GPU; moving it has no price.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_QKV = frozenset(("query_proj", "key_proj", "value_proj", "qkv_proj"))
_ATTENTION = _QKV | {"out_proj"}
_MLP = frozenset(("mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo"))
_LATENT = frozenset(("mla_q", "mla_kv", "query_wa_proj", "kv_wa_proj"))
_CONTEXT = frozenset(("context",))
POLICIES: Mapping[str, frozenset[str]] = {
    "minimal_with_context": _ATTENTION | _MLP | _CONTEXT,
    "minimal_flash": _ATTENTION | _MLP | _CONTEXT,  # its older name
    "minimal": _ATTENTION | _MLP,
    "save_dot_with_context_except_mlp": _ATTENTION | _CONTEXT,
    "save_dot_except_mlpwi": _ATTENTION | {"mlpwo"},
    "save_dot_except_mlp": _ATTENTION,
    "save_qkv_proj": _QKV,
    "save_out_proj": frozenset({"out_proj"}),
    "qkv_proj_offloaded": frozenset(),
    "minimal_offloaded": frozenset(),
    "full": frozenset(),
}
"""Tensors that each policy keeps on the GPU."""
CUSTOM = "custom"
"""The policy whose tensors are said one by one: ``context: device``."""
ON_DEVICE, OFFLOADED = "device", "offload"
NAMED = (
    frozenset().union(*POLICIES.values()) | _LATENT | {"moe_mlpwi", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo"}
)
"""Tensors that a custom policy may name."""


@dataclass(frozen=True, slots=True)
class KeptOfLayer:
    """A policy as it is priced: what is recomputed, of ``selective`` which modules, and what has no price."""

    recompute: str
    modules: tuple[str, ...] = ()
    note: str = ""


def kept_by(policy: str, custom: Mapping[str, str]) -> KeptOfLayer | None:
    """What a policy means in prices; None of one that is not known.

    Args:
        policy: The value of ``remat_policy``.
        custom: Tensors with where they are kept, for the policy ``custom``.

    >>> kept_by("minimal", {}).modules
    ('core_attn', 'layernorm', 'norm_outputs', 'mla_up_proj', 'mlp_act', 'moe')
    >>> kept_by("custom", {"out_proj": "device"}).recompute, kept_by("of_next_year", {})
    ('full', None)
    """
    if policy == CUSTOM:
        kept = frozenset(name for name, place in custom.items() if place == ON_DEVICE)
        offloaded = OFFLOADED in custom.values()
    elif policy in POLICIES:
        kept, offloaded = POLICIES[policy], policy.endswith("_offloaded")
    else:
        return None
    moved = f"remat_policy {policy}: what waits in host memory is moved there and back, which has no price"
    note = moved if offloaded else ""
    if not _keeps_projections(kept):
        return KeptOfLayer("full", note=note)
    return KeptOfLayer("selective", tuple(_repeated(kept)), note)


def _keeps_projections(kept: frozenset[str]) -> bool:
    """Whether queries, keys and values are kept, which most of a layer follows from."""
    return "qkv_proj" in kept or kept >= {"query_proj", "key_proj", "value_proj"}


def _repeated(kept: Iterable[str]) -> Iterable[str]:
    """Modules of a layer that are made again."""
    names = frozenset(kept)
    if "context" not in names:
        yield "core_attn"
    yield from ("layernorm", "norm_outputs")
    if not names & _LATENT:
        yield "mla_up_proj"
    inner = "mlpwi" in names or names >= {"mlpwi_0", "mlpwi_1"}
    yield "mlp_act" if inner else "mlp"
    experts = "moe_mlpwi" in names or names >= {"moe_mlpwi_0", "moe_mlpwi_1"}
    yield "moe_act" if experts else "moe"
