"""Constants of the training cost model, each with its unit, meaning and what it was fitted on.

They say what kernels measured alone cannot: how a step differs from its parts. All are global; nothing here
depends on a row, a source or a model. Properties of one engine are fields of `costmodel.stack.SoftwareStack`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from costmodel.kernels.clocks import CONSTANTS_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One number of ``constants.toml``."""

    value: float
    unit: str
    meaning: str
    fitted_on: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Values of ``constants.toml`` by name; their meaning stands there."""

    picojoule_per_flop: float
    clock_exponent: float
    split_accumulation: float
    weight_gradient_gemm: float
    fp4_wide_share: float
    attention_backward: float
    misaligned_head: float
    misaligned_logits: float
    scores_in_step: float
    score_backward: float
    elementwise_in_step: float
    elementwise_backward: float
    accumulation_bytes_fused: float
    accumulation_bytes: float
    socket_skew_s: float
    network_in_step: float
    contention: float
    exchange_processors: float
    gradient_window: float
    p2p_exposed: float
    p2p_latency_s: float
    p2p_overlapped: float
    optimizer_bytes: float
    step_fixed_s: float
    jitter: float
    host_backward: float
    blocking_host: float
    expert_host_s: float
    expert_launch_s: float
    routing_wait_s: float
    cached_segments: float


@functools.cache
def described_constants() -> Mapping[str, Constant]:
    """Every constant with its unit, meaning and origin, in the order of the file."""
    from topology.base.decode import read_toml, structure

    entries, where = read_toml(CONSTANTS_FILE), CONSTANTS_FILE.name
    return {name: structure(entry, Constant, f"{where}: {name}") for name, entry in entries.items()}


@functools.cache
def default_constants() -> Constants:
    """Shipped values.

    >>> 1 / 3 <= default_constants().clock_exponent <= 1
    True
    """
    return Constants(**{name: constant.value for name, constant in described_constants().items()})
