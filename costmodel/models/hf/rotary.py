"""Rotary positions of a Hugging Face ``config.json``, in the old words and the new.

Until version 4 of ``transformers`` the base is ``rope_theta`` and the stretching ``rope_scaling``; from
version 5 both are in ``rope_parameters``, by kind of layer where these differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.models.hf.reader import ConfigReader
from costmodel.models.rotary import RopeScaling, RopeScalingKind, Rotary
from topology.base.errors import shown

_KINDS: dict[str, RopeScalingKind] = {"linear": "linear", "llama3": "llama3", "yarn": "yarn"}


def read_rotary(
    r: ConfigReader, *, theta: float = 10_000.0, fraction: float = 1.0, interleaved: bool = False
) -> Rotary:
    """Rotary positions; the arguments are the family's defaults."""
    stated = r.table("rope_parameters") or {}
    stretched = stated or r.table("rope_scaling") or {}
    inside = r.within({**r.config, **stated})
    return Rotary(
        theta=inside.positive("rope_theta", theta),
        fraction=inside.positive("partial_rotary_factor", fraction),
        interleaved=interleaved,
        scaling=_scaling(r, stretched),
    )


def read_rotary_by_layer(r: ConfigReader, *, theta: float, sliding_theta: float) -> Rotary:
    """Rotary positions where windowed layers have a base of their own (Gemma 3)."""
    stated = r.table("rope_parameters") or {}
    full, sliding = (r.within(stated).table(kind) or {} for kind in ("full_attention", "sliding_attention"))
    if _scaling(r, sliding) is not None:
        r.departures.append("rope_parameters stretches the angles of windowed layers")
    return Rotary(
        theta=r.within({**r.config, **full}).positive("rope_theta", theta),
        sliding_theta=r.within({"rope_theta": r.config.get("rope_local_base_freq", sliding_theta), **sliding})
        .positive("rope_theta", sliding_theta),
        scaling=_scaling(r, full or r.table("rope_scaling") or {}),
    )  # fmt: skip


def _scaling(r: ConfigReader, stated: Mapping[str, Any]) -> RopeScaling | None:
    """Stretching of angles that an object states, if any."""
    kind = stated.get("rope_type", stated.get("type", "default"))
    if kind == "default":
        return None
    if not isinstance(kind, str) or kind not in _KINDS:
        r.departures.append(f"rope_type = {shown(kind)}")
        return None
    inside, trained = r.within(stated), r.config.get("max_position_embeddings")
    original = inside.size("original_max_position_embeddings", default=trained) if kind != "linear" else 0
    factor = inside.optional("factor")
    if factor is None and kind == "yarn":
        factor = r.size("max_position_embeddings") / original
    if factor is None:
        r.problems.append(f"rope_type {shown(kind)} has no factor")
    return RopeScaling(
        kind=_KINDS[kind],
        factor=factor or 1.0,
        original_max_position_embeddings=original,
        low_freq_factor=inside.positive("low_freq_factor", 1.0),
        high_freq_factor=inside.positive("high_freq_factor", 4.0),
        beta_fast=inside.positive("beta_fast", 32.0),
        beta_slow=inside.positive("beta_slow", 1.0),
        attention_factor=inside.optional("attention_factor"),
        mscale=inside.weight("mscale"),
        mscale_all_dim=inside.weight("mscale_all_dim"),
        truncate=inside.flag("truncate", default=True),
    )
