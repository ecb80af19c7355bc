"""Experts and their router in Megatron-LM's arguments.

Softmax scores are normalised unless ``--moe-router-pre-softmax``, sigmoid scores always.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from costmodel.models.routing import Routing
from planner.engines.fields import Facts
from planner.engines.setting import EngineSetting, Given, Word

_FREQUENCY = re.compile(r"^\(\[0\]\*(\d{1,6})\+\[1\]\*(\d{1,6})\)$")


def zeros_and_ones(text: str) -> tuple[int, int]:
    """Zeros and ones of a frequency written as ``([0]*a+[1]*b)``."""
    match = _FREQUENCY.match(re.sub(r"\s", "", text))
    if not match:
        raise ValueError(f"{text[:60]!r} is not of the form ([0]*a+[1]*b)")
    return int(match[1]), int(match[2])


def _write_experts(facts: Facts) -> dict[str, Any]:
    """Experts, their router, and the layers that have them."""
    experts = facts["model.num_experts"]
    if not experts:
        return {}
    scores = facts["model.routing.scoring_func"]
    words: dict[str, Any] = {
        "--num-experts": experts,
        "--moe-router-topk": facts["model.num_experts_per_token"],
        "--moe-ffn-hidden-size": facts["model.moe_intermediate_size"],
        "--moe-grouped-gemm": True,
        "--moe-router-score-function": scores,
        "--moe-router-dtype": "fp32",
    }
    if scores == "softmax" and not facts["model.routing.norm_topk_prob"]:
        words["--moe-router-pre-softmax"] = True
    if facts["model.routing.routed_scaling_factor"] != 1:
        words["--moe-router-topk-scaling-factor"] = facts["model.routing.routed_scaling_factor"]
    if facts["model.routing.n_group"] > 1:
        words["--moe-router-num-groups"] = facts["model.routing.n_group"]
        words["--moe-router-group-topk"] = facts["model.routing.topk_group"]
    if facts["model.routing.bias_selects"]:
        words["--moe-router-enable-expert-bias"] = True
    if facts["model.router_aux_loss_coef"]:
        words["--moe-router-load-balancing-type"] = "aux_loss"
        words["--moe-aux-loss-coeff"] = facts["model.router_aux_loss_coef"]
    dense, layers = facts["model.num_dense_layers"], facts["model.num_layers"]
    if dense:
        words["--moe-layer-freq"] = f"([0]*{dense}+[1]*{layers - dense})"
    if facts["model.shared_expert_size"]:
        words["--moe-shared-expert-intermediate-size"] = facts["model.shared_expert_size"]
    return words


def _read_experts(given: Given) -> dict[str, Any]:
    experts = given["--num-experts"] or 0
    if not experts:
        none: dict[str, Any] = dict.fromkeys((*_EXPERT_COUNTS, "model.num_dense_layers"), 0)
        usual = {f"model.routing.{name}": getattr(Routing(), name) for name in _ROUTING}
        return none | usual | {"model.router_aux_loss_coef": 0.0}
    scores = given["--moe-router-score-function"]
    width = given["--moe-ffn-hidden-size"]
    facts: dict[str, Any] = {
        "model.num_experts": experts,
        "model.num_experts_per_token": given["--moe-router-topk"],
        "model.shared_expert_size": given["--moe-shared-expert-intermediate-size"] or 0,
        "model.routing.scoring_func": scores,
        "model.routing.norm_topk_prob": scores == "sigmoid" or not given["--moe-router-pre-softmax"],
        "model.routing.routed_scaling_factor": given["--moe-router-topk-scaling-factor"] or 1.0,
        "model.routing.n_group": given["--moe-router-num-groups"] or 1,
        "model.routing.topk_group": given["--moe-router-group-topk"] or 1,
        "model.routing.bias_selects": given["--moe-router-enable-expert-bias"],
        "model.router_aux_loss_coef": _coefficient(given["--moe-aux-loss-coeff"]),
    }
    width = width if width is not None else given["--ffn-hidden-size"]
    facts |= {} if width is None else {"model.moe_intermediate_size": width}
    return facts | _dense_layers(given)


_ROUTING = tuple(field.name for field in fields(Routing))
_EXPERT_COUNTS = (
    "model.num_experts", "model.num_experts_per_token", "model.moe_intermediate_size",
    "model.shared_expert_size",
)  # fmt: skip


def _coefficient(given: Any) -> float:
    """The weight of the balancing loss, the first of several."""
    return float(given[0] if isinstance(given, (list, tuple)) else given or 0.0)


def _dense_layers(given: Given) -> dict[str, Any]:
    """Leading layers without experts; other patterns are none that a model of ours can have."""
    frequency = str(given["--moe-layer-freq"])
    if frequency in ("1", "None"):
        return {"model.num_dense_layers": 0}
    return {"model.num_dense_layers": zeros_and_ones(frequency)[0]}


EXPERTS = EngineSetting(
    words=(
        Word(name="--num-experts", kind="int", states="model.num_experts"),
        Word(name="--moe-router-topk", kind="int", default=2, states="model.num_experts_per_token"),
        Word(name="--moe-ffn-hidden-size", kind="int", states="model.moe_intermediate_size"),
        Word(name="--moe-router-score-function", default="softmax"),
        Word(name="--moe-router-dtype"),
        Word(name="--moe-router-pre-softmax", kind="flag", default=False),
        Word(name="--moe-router-topk-scaling-factor", kind="float"),
        Word(name="--moe-router-num-groups", kind="int"),
        Word(name="--moe-router-group-topk", kind="int"),
        Word(name="--moe-router-enable-expert-bias", kind="flag", default=False),
        Word(name="--moe-router-load-balancing-type", kind="any", default="aux_loss"),
        Word(name="--moe-aux-loss-coeff", kind="any", default=0.0),
        Word(name="--moe-layer-freq", kind="any", default="1"),
        Word(name="--moe-shared-expert-intermediate-size", kind="int", states="model.shared_expert_size"),
    ),
    fields=(
        *_EXPERT_COUNTS, "model.num_dense_layers", "model.router_aux_loss_coef",
        *(f"model.routing.{name}" for name in _ROUTING),
    ),
    write=_write_experts,
    read=_read_experts,
)  # fmt: skip
