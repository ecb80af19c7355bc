"""How unevenly tokens go to experts, as somebody measured it: what the busiest rank has over the mean.

A router that sends every expert as many tokens keeps all ranks alike, which is what is taken where nothing
was measured (the band's term *experts* holds what that misses). Measured counts say otherwise: every layer
waits for the rank whose experts got most, so of each layer the busiest rank counts, and of those the mean.

Legend: ``E`` experts, ``x`` expert-parallel ranks, each with E/x experts that follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topology.base.arrays import Quantity

ExpertLoad = tuple[tuple[int, float], ...]
"""Pairs of a number of ranks and the busiest rank's tokens over the mean."""


def busiest_over_mean(counts: NDArray[np.float64]) -> ExpertLoad:
    """What the busiest of x ranks has over the mean, for every x that divides the experts.

    Args:
        counts: tokens of every expert, shape (layers, E); none negative, some in every layer.

    >>> busiest_over_mean(np.array([[3.0, 1.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0]]))
    ((1, 1.0), (2, 1.0), (4, 1.25))
    """
    experts = counts.shape[1]
    shares = counts / counts.sum(axis=1, keepdims=True)
    ranks = [x for x in range(1, experts + 1) if experts % x == 0]
    most = [x * shares.reshape(len(shares), x, -1).sum(axis=2).max(axis=1) for x in ranks]
    return tuple((x, float(of_layers.mean())) for x, of_layers in zip(ranks, most, strict=True))


def busiest(load: Sequence[tuple[int, float]], ep: Quantity) -> NDArray[np.float64] | float:
    """Tokens of the busiest of `ep` ranks over the mean; 1 where nothing was measured."""
    if not load:
        return 1.0
    factors = np.ones(1 + max(x for x, _ in load))
    for x, factor in load:
        factors[x] = factor
    return np.asarray(factors[np.minimum(np.asarray(ep, dtype=np.intp), len(factors) - 1)])
