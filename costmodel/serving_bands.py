"""How far measured latencies lie from predicted ones: the calibrated band of a serving estimate.

Measured over predicted of the aggregated rows of serving_runs.csv (docs/serving.md), at the 10th and the
90th percentile.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Factors on a predicted latency between which four of five measurements lie."""

    lower: float
    upper: float


TPOT_BAND = Band(lower=0.82, upper=1.22)
TTFT_BAND = Band(lower=0.6, upper=1.6)
