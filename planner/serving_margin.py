"""How likely a latency limit is kept, given how far measured latencies lie from predicted ones.

The calibrated band holds four of five ratios r of measured over predicted. Their logarithm is taken as normal
on each side of the prediction, with the band's ends at the 10th and the 90th percentile:

    P(kept) = Φ(z90 · ln(limit/predicted) / ln(upper))      where the limit is above the prediction
    P(kept) = Φ(z90 · ln(limit/predicted) / −ln(lower))     where it is below
"""

from __future__ import annotations

from math import erf, log, sqrt

from costmodel.serving.bands import Band

NORMAL_P90 = 1.2815515655446004  # 90th percentile of the standard normal distribution


def chance_kept(limit_s: float, predicted_s: float, band: Band) -> float:
    """Probability that a measured latency stays within its limit.

    >>> band = Band(lower=0.8, upper=1.25, rows=1, source="")
    >>> [round(chance_kept(limit, 1.0, band), 2) for limit in (0.8, 1.0, 1.25, 2.0)]
    [0.1, 0.5, 0.9, 1.0]
    """
    if predicted_s <= 0:
        return 1.0
    ratio = limit_s / predicted_s
    width = log(band.upper) if ratio >= 1 else -log(band.lower)
    return 0.5 * (1 + erf(NORMAL_P90 * log(ratio) / width / sqrt(2)))
