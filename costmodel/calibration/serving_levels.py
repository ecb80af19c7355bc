"""Host and kernel levels of a user's server, from the means that a benchmark client reports of it.

    log(measured_i/predicted_i(h, k)) ~ N(0, σ²),   log h ~ N(0, λ_h²),   log k ~ N(0, λ_k²)

The levels are where the posterior is highest, found by Gauss–Newton: times to first token and per output
token of every benchmark, drawn towards the shipped profile as far as they leave a level in doubt. Host and
kernels are told apart by what they scale with: the batch, the prompts.

Legend: ``h`` host level, ``k`` kernel level, ``λ`` spread of levels between servers, ``σ`` of layouts of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.accuracy.anchor import FURTHEST
from costmodel.accuracy.serving_predictions import Latency, predict
from costmodel.accuracy.serving_runs import ServingRun
from costmodel.kernels.tables import Calibration
from costmodel.serving.engine import ServingStack, serving_stack
from costmodel.serving.levels import ServingLevel, at_levels
from topology.base.arrays import Floats
from topology.base.errors import InputError
from topology.base.units import format_seconds
from topology.fabric.hierarchy import Hierarchy

BETWEEN_SERVERS = np.array([0.7, 0.15])  # λ of host and of kernels: between the engines of the sample
BETWEEN_LAYOUTS = np.array([0.05, 0.20])  # σ of times per output token and to first token of one server
STEP = 0.05  # of a log level, for finite differences
ITERATIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLevels:
    """The levels, and every benchmark predicted with the shipped profile and with them."""

    level: ServingLevel
    before: tuple[Latency, ...]
    after: tuple[Latency, ...]


def fit_serving_levels(cal: Calibration, runs: Sequence[ServingRun], hierarchy: Hierarchy) -> FittedLevels:
    """Fit the two levels to benchmarks of one engine on one GPU kind."""
    shipped = serving_stack(runs[0].engine)
    before = _predicted(cal, runs, hierarchy, shipped)
    _refuse_other_servers(runs, before)
    theta = np.zeros(2)
    for _ in range(ITERATIONS):
        residual = _residuals(cal, runs, hierarchy, shipped, theta)
        slopes = np.stack(
            [
                (_residuals(cal, runs, hierarchy, shipped, theta + step) - residual) / STEP
                for step in STEP * np.eye(2)
            ],
            axis=-1,
        )
        pull = slopes.T @ slopes + np.diag(BETWEEN_SERVERS**-2.0)
        theta = theta - np.linalg.solve(pull, slopes.T @ residual + theta * BETWEEN_SERVERS**-2.0)
        theta = np.clip(theta, -FURTHEST, FURTHEST)
    host, kernel = np.exp(theta).tolist()
    level = ServingLevel(engine=shipped.name, gpu=runs[0].gpu, host=host, kernel=kernel, runs=len(runs))
    after = _predicted(cal, runs, hierarchy, at_levels(shipped, host=host, kernel=kernel))
    return FittedLevels(level=level, before=before, after=after)


def _residuals(
    cal: Calibration, runs: Sequence[ServingRun], hierarchy: Hierarchy, shipped: ServingStack, theta: Floats
) -> Floats:
    """Log predicted over measured of both latencies of every run, over their spread."""
    host, kernel = np.exp(theta).tolist()
    latencies = _predicted(cal, runs, hierarchy, at_levels(shipped, host=host, kernel=kernel))
    pairs = [
        (latency.tpot_s / run.tpot_s, latency.ttft_s / run.ttft_s)
        for run, latency in zip(runs, latencies, strict=True)
    ]
    return np.asarray((np.log(np.array(pairs)) / BETWEEN_LAYOUTS).ravel(), dtype=np.float64)


def _predicted(
    cal: Calibration, runs: Sequence[ServingRun], hierarchy: Hierarchy, stack: ServingStack
) -> tuple[Latency, ...]:
    return tuple(predict(cal, run, hierarchy, stack) for run in runs)


def _refuse_other_servers(runs: Sequence[ServingRun], predicted: Sequence[Latency]) -> None:
    """Refuse a benchmark so far off that no level explains it."""
    for run, latency in zip(runs, predicted, strict=True):
        ratio = math.log(run.tpot_s / latency.tpot_s)
        if abs(ratio) > FURTHEST:
            raise InputError(
                what=f"{run.name} is of another server than described",
                cause=f"{format_seconds(run.tpot_s)} per output token were measured, "
                f"{format_seconds(latency.tpot_s)} are predicted: more than {math.exp(FURTHEST):.0f} times "
                "apart",
                fix="check --model, --gpu, --weights and --set layout.tp against that server",
            )
