"""Limits beside the latencies of a simulated fleet, and the chance that each is kept.

The chance follows from the error band of the latency: that of the pool of which the least was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from statistics import NormalDist

import numpy as np

from costmodel.serving.bands import LatencyBand
from planner.serving.capacity import after_warm_up
from planner.serving.evidence import fleet_evidence
from planner.serving.fleet import FleetRun
from planner.serving.plan import LimitCheck, ServingRequest

NORMAL_P90 = NormalDist().inv_cdf(0.9)  # 90th percentile of the standard normal distribution


def limit_checks(request: ServingRequest, run: FleetRun) -> Mapping[str, LimitCheck]:
    """Each limit asked for beside the latency at the job's percentile, with the chance that it is kept.

    Args:
        request: The question; its limits count, not those under which the fleet was searched.
        run: The simulated fleet.
    """
    job, simulation, bands = request.job, run.simulation, fleet_evidence(run)
    steady = after_warm_up(simulation) if job.concurrency is None else slice(None)
    asked = (
        ("ttft", simulation.ttft_s[steady], job.ttft_s, bands.ttft),
        ("tpot", simulation.tpot_s[steady], job.tpot_s, bands.tpot),
        ("end_to_end", simulation.end_to_end_s[steady], job.end_to_end_s, bands.tpot),
    )
    checks = {}
    for name, times_s, limit_s, band in asked:
        values_s = times_s[~np.isnan(times_s)]
        if limit_s is not None and len(values_s):
            predicted_s = float(np.percentile(values_s, job.percentile))
            checks[name] = LimitCheck(
                limit_s=limit_s,
                predicted_s=predicted_s,
                upper_s=predicted_s * band.upper,
                chance=chance_kept(limit_s, predicted_s, band),
            )
    return checks


def least_chance(checks: Mapping[str, LimitCheck]) -> float:
    """Chance that the limit which is least surely kept is kept; 1 without limits."""
    return min((check.chance for check in checks.values()), default=1.0)


def chance_kept(limit_s: float, predicted_s: float, band: LatencyBand) -> float:
    """Probability that a measured latency stays within its limit.

    The calibrated band holds four of five ratios r of measured over predicted. Their logarithm is taken as
    normal on each side of the prediction, with the band's ends at the 10th and the 90th percentile:

        P(kept) = Φ(z90 · ln(limit/predicted) / ln(upper))      where the limit is above the prediction
        P(kept) = Φ(z90 · ln(limit/predicted) / −ln(lower))     where it is below

    >>> band = LatencyBand(lower=0.8, upper=1.25)
    >>> [round(chance_kept(limit, 1.0, band), 2) for limit in (0.8, 1.0, 1.25, 2.0)]
    [0.1, 0.5, 0.9, 1.0]
    """
    if predicted_s <= 0:
        return 1.0
    ratio = limit_s / predicted_s
    width = log(band.upper) if ratio >= 1 else -log(band.lower)
    return NormalDist().cdf(NORMAL_P90 * log(ratio) / width)
