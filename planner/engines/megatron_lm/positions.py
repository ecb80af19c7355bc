"""Positions in Megatron-LM's arguments: learned ones, or the angles of rotary ones and their stretching.

``--use-rope-scaling`` is Llama 3.1's with its fixed bounds; latent attention is stretched by YaRN unless
``--rope-type rope``, with bounds that no argument moves; ``--position-embedding-type yarn`` states all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.models.rotary import RopeScaling, Rotary
from planner.engines.fields import Facts
from planner.engines.setting import EngineSetting, Given, Word

_LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=8192)
_YARN = RopeScaling(kind="yarn", factor=1.0, original_max_position_embeddings=4096)
DEFAULT_BASE = 10_000.0


def _latent(facts: Facts) -> bool:
    return bool(facts["model.kv_lora_rank"])


def _write_positions(facts: Facts) -> dict[str, Any]:
    """Rotary positions and their stretching; positions that are learned are Megatron's default."""
    words: dict[str, Any] = {"--max-position-embeddings": facts["model.max_sequence_length"]}
    if facts["model.learned_positions"]:
        return words
    latent, scaling = _latent(facts), facts["model.rotary.scaling"]
    stretched = scaling is not None and scaling.kind == "yarn" and not latent
    words |= {"--position-embedding-type": "yarn" if stretched else "rope"}
    words |= {"--rotary-base": round(facts["model.rotary.theta"])}
    if facts["model.rotary.fraction"] != 1:
        words["--rotary-percent"] = facts["model.rotary.fraction"]
    if facts["model.rotary.interleaved"] and not latent:
        words["--rotary-interleaved"] = True
    return words | _write_scaling(scaling, latent=latent)


def _write_scaling(scaling: RopeScaling | None, *, latent: bool) -> dict[str, Any]:
    """How angles are stretched; latent attention is stretched unless told otherwise."""
    plain: dict[str, Any] = {"--rope-type": "rope"} if latent else {}
    if scaling is None:
        return plain
    if scaling.kind == "llama3":
        return plain | {"--use-rope-scaling": True, "--rope-scaling-factor": scaling.factor}
    if scaling.kind == "linear":
        return plain | {"--rotary-seq-len-interpolation-factor": round(scaling.factor)}
    factor = {"--rotary-scaling-factor": scaling.factor}
    if latent:
        means = {"--mscale": scaling.mscale, "--mscale-all-dim": scaling.mscale_all_dim}
        return {"--rope-type": "yarn", **factor, **means}
    rounding = {} if scaling.truncate else {"--no-yarn-correction-range-round-to-int": True}
    return {
        **factor,
        "--yarn-original-max-position-embeddings": scaling.original_max_position_embeddings,
        "--yarn-beta-fast": scaling.beta_fast,
        "--yarn-beta-slow": scaling.beta_slow,
        **rounding,
    }


def _read_scaling(given: Given, *, latent: bool) -> RopeScaling | None:
    """What angles are stretched by, of either kind of attention."""
    factor, ratio, all_dim = (
        given[word] for word in ("--rotary-scaling-factor", "--mscale", "--mscale-all-dim")
    )
    if latent and (given["--rope-type"] or "yarn") == "yarn":
        return replace(_YARN, factor=factor, mscale=ratio, mscale_all_dim=all_dim)
    if given["--position-embedding-type"] == "yarn":
        usual = (ratio, all_dim) == (1.0, 0.0)  # what 0.1·ln(factor) + 1 is in these words
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_position_embeddings=given["--yarn-original-max-position-embeddings"],
            beta_fast=given["--yarn-beta-fast"],
            beta_slow=given["--yarn-beta-slow"],
            mscale=0.0 if usual else ratio,
            mscale_all_dim=all_dim,
            truncate=not given["--no-yarn-correction-range-round-to-int"],
        )
    if given["--use-rope-scaling"]:
        return replace(_LLAMA3, factor=given["--rope-scaling-factor"])
    interpolated = given["--rotary-seq-len-interpolation-factor"]
    return None if interpolated is None else RopeScaling(kind="linear", factor=float(interpolated))


def _read_positions(given: Given) -> dict[str, Any]:
    """Learned positions, or the angles of rotary ones; an unused angle is that of a plain model."""
    longest, kind = given["--max-position-embeddings"], given["--position-embedding-type"]
    latent = given["--multi-latent-attention"]
    rotary = kind in ("rope", "yarn") or given["--use-rotary-position-embeddings"]
    learned = longest if kind == "learned_absolute" and not rotary else 0
    facts: dict[str, Any] = {} if longest is None else {"model.max_sequence_length": longest}
    facts |= {} if learned is None else {"model.learned_positions": learned}
    if not rotary:
        return {f"model.rotary.{name}": getattr(Rotary(), name) for name in _ANGLES} | facts
    return facts | {
        "model.rotary.theta": float(given["--rotary-base"]),
        "model.rotary.fraction": given["--rotary-percent"],
        "model.rotary.interleaved": latent or given["--rotary-interleaved"],
        "model.rotary.scaling": _read_scaling(given, latent=latent),
    }


_ANGLES = ("theta", "fraction", "interleaved", "scaling")

POSITIONS = EngineSetting(
    words=(
        Word(name="--max-position-embeddings", kind="int", states="model.max_sequence_length"),
        Word(name="--position-embedding-type", default="learned_absolute"),
        Word(name="--use-rotary-position-embeddings", kind="flag", default=False),
        Word(name="--rotary-base", kind="float", default=DEFAULT_BASE),
        Word(name="--rotary-percent", kind="float", default=1.0),
        Word(name="--rotary-interleaved", kind="flag", default=False),
        Word(name="--use-rope-scaling", kind="flag", default=False),
        Word(name="--rope-scaling-factor", kind="float", default=8.0),
        Word(name="--rotary-seq-len-interpolation-factor", kind="int"),
        Word(name="--rope-type"),
        Word(name="--rotary-scaling-factor", kind="float", default=1.0),
        Word(name="--mscale", kind="float", default=1.0),
        Word(name="--mscale-all-dim", kind="float", default=0.0),
        Word(name="--yarn-original-max-position-embeddings", kind="int", default=4096),
        Word(name="--yarn-beta-fast", kind="float", default=32.0),
        Word(name="--yarn-beta-slow", kind="float", default=1.0),
        Word(name="--no-yarn-correction-range-round-to-int", kind="flag", default=False),
    ),
    fields=(
        "model.max_sequence_length", "model.learned_positions",
        *(f"model.rotary.{name}" for name in _ANGLES),
    ),
    write=_write_positions,
    read=_read_positions,
)  # fmt: skip
