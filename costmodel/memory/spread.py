"""How far measured peaks lie from predicted ones: an unseen source is as one of those that were measured."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

PRECISE = 1e-9
"""Of a logarithm: no digit that is shown depends on it."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A scale mixture of normal distributions about 0, every source as likely as the others.

    One deviation is a normal distribution. Several have heavier tails and a sharper middle than the normal
    distribution of their mean square: most users lie close, and one of many far off.

    Attributes:
        deviations: Standard deviation of log(measured / predicted) of every source, none of them 0.
    """

    deviations: tuple[float, ...]

    def share_below(self, distance: float) -> float:
        """Share of errors below a distance, of the logarithm.

        >>> Spread((0.05, 0.5)).share_below(0.0)
        0.5
        """
        scaled = (distance / (deviation * math.sqrt(2)) for deviation in self.deviations)
        return sum(0.5 * math.erfc(-z) for z in scaled) / len(self.deviations)

    def quantile(self, share: float) -> float:
        """The distance below which this share of errors lies.

        >>> round(Spread((1.0,)).quantile(0.9), 4), round(Spread((0.5, 1.5)).quantile(0.9), 4)
        (1.2816, 1.2892)
        """
        return mixture_quantile((0.0,), (self,), share)

    def widened(self, deviation: float) -> Spread:
        """The same sources where one more thing is unknown: squares add up.

        >>> Spread((0.3, 1.2)).widened(0.4).deviations[0]
        0.5
        """
        return Spread(tuple(math.hypot(source, deviation) for source in self.deviations))


@functools.lru_cache(maxsize=1024)
def _mixture_quantile(middles: tuple[float, ...], spreads: tuple[Spread, ...], share: float) -> float:
    """The distance below which this share lies, by halving between the least and greatest of its parts."""
    unit = NormalDist().inv_cdf(share)
    each = [
        middle + unit * deviation
        for middle, spread in zip(middles, spreads, strict=True)
        for deviation in spread.deviations
    ]
    low, high = min(each), max(each)
    while high - low > PRECISE:
        tried = (low + high) / 2
        parts = zip(middles, spreads, strict=True)
        below = sum(spread.share_below(tried - middle) for middle, spread in parts) / len(spreads)
        low, high = (tried, high) if below < share else (low, tried)
    return (low + high) / 2


def mixture_quantile(middles: Sequence[float], spreads: Sequence[Spread], share: float) -> float:
    """The value below which a share of a mixture lies, each part as likely as the others.

        mean over i of Fᵢ(x - mᵢ) = share

    >>> round(mixture_quantile([0.0, 0.0, 1.0], [Spread((0.1,))] * 3, 0.5), 2)
    0.07

    Args:
        middles: Of every part.
        spreads: About them.
        share: Between 0 and 1.
    """
    return _mixture_quantile(tuple(middles), tuple(spreads), share)
