"""What is fitted: its physical range, where fits set out, and step times under given values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from fit_sample import Sample

from costmodel.accuracy.constants_table import heirs
from costmodel.stack import stacks
from costmodel.training.constants import default_constants
from costmodel.training.score import even_step_seconds
from costmodel.training.slowdowns import Environment
from costmodel.training.step_time import compose
from topology.base.arrays import Vector

GLOBALS: Mapping[str, tuple[float, float, float]] = {
    "picojoule_per_flop": (1.0, 0.4, 2.0),
    "split_accumulation": (1.1, 1.0, 1.5),
    "scores_in_step": (0.82, 0.6, 2.0),
    "elementwise_in_step": (1.3, 1.0, 1.8),
    "socket_skew_s": (0.00015, 0.0, 6e-4),
    "network_in_step": (1.0, 0.9, 1.4),
    "p2p_exposed": (2.0, 0.5, 3.0),
    "p2p_latency_s": (0.0001, 1e-5, 3e-4),
    "p2p_overlapped": (0.25, 0.0, 0.6),
    "step_fixed_s": (0.006, 0.0, 0.03),
    "jitter": (0.004, 0.0, 0.012),
    "expert_host_s": (0.0012, 0.0, 3e-3),
    "expert_launch_s": (1e-4, 0.0, 5e-4),
    "routing_wait_s": (0.003, 0.0, 6e-3),
}
"""Constants that are fitted: where the prior is centred, and the range in which each is physical."""

STACK_FIELDS: Mapping[str, tuple[float, float, float]] = {
    "megatron-lm-2021.product_time_ratio": (0.92, 0.8, 1.1),
    "megatron-deepspeed.host_s_per_layer": (0.00092, 5e-4, 1.5e-3),
    "megatron-deepspeed.host_s_per_microbatch": (0.0011, 0.0, 5e-3),
    "megatron-deepspeed.tp_slowdown": (1.5, 1.0, 2.5),
    "megatron-core.host_s_per_layer": (4e-4, 1e-4, 1.5e-3),
    "megatron-core.tp_overlap_share": (0.5, 0.3, 0.8),
    "torchtitan.product_time_ratio": (1.2, 0.9, 1.4),
    "pytorch-fsdp1.fsdp_exposed_share": (0.43, 0.05, 0.7),
}
"""Properties of stacks that are fitted: the same."""


def profiles_of(name: str) -> tuple[str, ...]:
    """Profiles a fitted property belongs to."""
    return heirs(*name.split(".", maxsplit=1))


Values = dict[str, float]
Trials = Mapping[str, float | Vector]


def shipped() -> Values:
    """Shipped values of everything that is fitted."""
    values = {name: getattr(default_constants(), name) for name in GLOBALS}
    for name in STACK_FIELDS:
        profile, field = name.split(".")
        values[name] = float(getattr(stacks()[profile].timing, field))
    return values


def prior_centres() -> Values:
    """Physical starting values, from which every fit sets out."""
    return {name: centre for name, (centre, _, _) in {**GLOBALS, **STACK_FIELDS}.items()}


def predict(sample: Sample, values: Trials) -> Vector:
    """Step times of all runs under these constants, which may differ from run to run."""
    tried: dict[str, Any] = {n: v for n, v in values.items() if "." not in n}
    constants = replace(default_constants(), **tried)
    changed: dict[str, Vector] = {}
    for name, value in values.items():
        if "." not in name:
            continue
        field = name.split(".")[1]
        where = np.isin(sample.stack, profiles_of(name))
        old = changed.get(field, getattr(sample.features.environment, field))
        changed[field] = np.where(where, value, old)
    if "tp_overlap_share" in changed:  # notes of single rows may state another share
        keep = np.isin(sample.stack, profiles_of("megatron-core.tp_overlap_share"))
        changed["tp_overlap_share"] = np.where(
            keep, changed["tp_overlap_share"], sample.features.environment.tp_overlap_share
        )
    environment: Environment = replace(sample.features.environment, **changed)
    costs = compose(replace(sample.features, environment=environment), constants)
    return even_step_seconds(costs, sample.types, sample.recomputed)


def bounds_of(names: Sequence[str]) -> tuple[Vector, Vector]:
    """Lower and upper bounds."""
    both = {**GLOBALS, **STACK_FIELDS}
    return np.array([both[n][1] for n in names]), np.array([both[n][2] for n in names])
