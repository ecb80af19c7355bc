"""Spreads of peaks against draws: quantiles, shares and mixtures of them."""

import math

import numpy as np
import pytest

from costmodel.memory.spread import Spread, mixture_quantile


@pytest.mark.parametrize("seed", range(4))
def test_quantiles_and_shares_are_those_of_draws(seed: int) -> None:
    """Half a million draws of random mixtures of normal distributions are the oracle."""
    draw = np.random.default_rng(seed)
    middles = draw.uniform(0, 1, 5)
    spreads = [Spread(tuple(draw.uniform(0.05, 0.4, number))) for number in draw.integers(1, 6, 5)]
    which = draw.integers(0, 5, 500_000)
    sources = [
        np.array(spread.deviations)[draw.integers(0, len(spread.deviations), 500_000)] for spread in spreads
    ]
    drawn = middles[which] + np.choose(which, sources) * draw.standard_normal(len(which))
    for share in (0.1, 0.5, 0.9):
        at = mixture_quantile(middles.tolist(), spreads, share)
        assert at == pytest.approx(float(np.quantile(drawn, share)), abs=0.01)
        parts = [spread.share_below(at - middle) for spread, middle in zip(spreads, middles, strict=True)]
        assert np.mean(parts) == pytest.approx(share, abs=1e-6)


def test_one_far_source_among_many_makes_tails_heavier_and_the_middle_sharper() -> None:
    """Than one normal distribution of the same mean square."""
    mixed = Spread((0.08,) * 9 + (0.8,))
    alike = Spread((math.sqrt(np.mean(np.square(mixed.deviations))),))
    assert mixed.quantile(0.9) < alike.quantile(0.9)
    assert mixed.quantile(0.99) > alike.quantile(0.99)
