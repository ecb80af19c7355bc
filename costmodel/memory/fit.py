"""Whether a layout fits: the chance that it runs out of memory, and the word that this chance carries.

The peak is predicted, not known: its logarithm has a standard deviation σ of residuals of measured peaks
(`costmodel.training.bands`). Every surface that says *fits*, *tight* or *does not fit* asks here, and shows
the chance beside the word. The search keeps to layouts that fit by leaving the share `headroom_for` free.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final, Literal

from topology.base.units import format_chance

Fit = Literal["fits", "tight", "does not fit"]
"""What is said of a chance of OOM."""

FITS_BELOW: Final = 0.05
"""A layout fits if its chance of OOM is below this: one start in twenty may fail."""
DOES_NOT_FIT_ABOVE: Final = 0.90
"""A layout does not fit if its chance of OOM is above this; between the two it is tight."""
_STEPS: Final = 1000
"""Shares of memory that are left free by default are whole in tenths of a percent, as they are printed."""


def out_of_memory_chance(peak_bytes: float, capacity_bytes: float, deviation: float) -> float:
    """Chance that a run needs more than the GPU has: Φ(log(peak / capacity) / σ).

    Args:
        peak_bytes: Predicted peak of the fullest rank.
        capacity_bytes: Memory of its GPU.
        deviation: σ, the standard deviation of log(measured / predicted) peaks.

    >>> out_of_memory_chance(80e9, 80e9, 0.05)
    0.5
    """
    distance = math.log(peak_bytes / capacity_bytes) / deviation
    return 0.5 * math.erfc(-distance / math.sqrt(2))


def fit_of(chance: float) -> Fit:
    """The word for a chance of OOM.

    >>> fit_of(0.04), fit_of(0.42), fit_of(0.95)
    ('fits', 'tight', 'does not fit')
    """
    if chance < FITS_BELOW:
        return "fits"
    return "does not fit" if chance > DOES_NOT_FIT_ABOVE else "tight"


def fit_text(chance: float) -> str:
    """The word and the chance that carries it.

    >>> fit_text(0.04), fit_text(0.42)
    ('fits, 4.0 % chance of OOM', 'tight, 42 % chance of OOM')
    """
    return f"{fit_of(chance)}, {format_chance(chance)} chance of OOM"


def headroom_for(deviation: float) -> float:
    """Least share of memory to leave free such that a predicted peak fits: 1 − exp(−z·σ) with Φ(−z) = 5 %.

    It is rounded up to a tenth of a percent, so that the share that is printed is the share that is kept.

    Args:
        deviation: σ, the standard deviation of log(measured / predicted) peaks.

    >>> headroom_for(0.047), out_of_memory_chance(1 - headroom_for(0.047), 1.0, 0.047) < 0.05
    (0.075, True)
    """
    share = -math.expm1(NormalDist().inv_cdf(FITS_BELOW) * deviation)
    return (math.floor(share * _STEPS) + 1) / _STEPS
