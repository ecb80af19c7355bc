"""Whether a layout fits: the chance that it runs out of memory, and the word that this chance carries.

The peak is predicted, not known: its logarithm has the spread of measured peaks (`costmodel.training.bands`).
Every surface that says *fits*, *tight* or *does not fit* asks here, and shows
the chance beside the word. The search keeps to layouts that fit by leaving the share `headroom_for` free.
"""

from __future__ import annotations

import math
from typing import Final, Literal

from costmodel.memory.spread import Spread
from topology.base.units import format_chance

Fit = Literal["fits", "tight", "does not fit"]
"""What is said of a chance of OOM."""

FITS_BELOW: Final = 0.05
"""A layout fits if its chance of OOM is below this: one start in twenty may fail."""
DOES_NOT_FIT_ABOVE: Final = 0.90
"""A layout does not fit if its chance of OOM is above this; between the two it is tight."""
_STEPS: Final = 1000
"""Shares of memory that are left free by default are whole in tenths of a percent, as they are printed."""


def out_of_memory_chance(peak_bytes: float, capacity_bytes: float, spread: Spread) -> float:
    """Chance that a run needs more than the GPU has: the share of errors below log(peak / capacity).

    A measured peak is as likely that much above its prediction as below.

    Args:
        peak_bytes: Predicted peak of the fullest rank.
        capacity_bytes: Memory of its GPU.
        spread: Of log(measured / predicted) peaks.

    >>> out_of_memory_chance(80e9, 80e9, Spread((0.05, 0.5)))
    0.5
    """
    return spread.share_below(math.log(peak_bytes / capacity_bytes))


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


def headroom_for(spread: Spread) -> float:
    """Least share of memory to leave free such that a predicted peak fits: 5 % of errors are greater.

    It is rounded up to a tenth of a percent, so that the share that is printed is the share that is kept.

    Args:
        spread: Of log(measured / predicted) peaks.

    >>> headroom_for(Spread((0.047,))), headroom_for(Spread((0.02, 0.02, 0.08)))
    (0.075, 0.08)
    """
    share = -math.expm1(spread.quantile(FITS_BELOW))
    return (math.floor(share * _STEPS) + 1) / _STEPS
