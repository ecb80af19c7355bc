"""How many pipeline sends a step waits for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.layout import Quantity


def waited_sends(
    ranks: Quantity, num_microbatches: Quantity, virtual_stages: Quantity = 1, shown: Quantity = 1.0
) -> NDArray[np.float64]:
    """Sends on the critical path of a step, forward and backward.

    1F1B with equal ranks: 2·[(P − 1)(M/P + 1) − 1], exact against the simulation of
    `costmodel.pipeline.simulator` where P divides M. Interleaved: M·V·shown + 2·(P − 1), one for every chunk
    of every microbatch, of which the stack hides 1 − shown, and the warm-up; a count, not a closed form of
    the simulation.

    Args:
        ranks: P.
        num_microbatches: M.
        virtual_stages: V.
        shown: Share of interleaved sends that stays exposed.

    >>> float(waited_sends(4, 8)), float(waited_sends(1, 8)), float(waited_sends(4, 8, 2, 0.5))
    (16.0, 0.0, 14.0)
    """
    P, M, V = np.asarray(ranks), np.asarray(num_microbatches), np.asarray(virtual_stages)
    plain = np.maximum(0.0, (P - 1) * (M / P + 1) - 1)
    many = M * V * np.asarray(shown) / 2 + P - 1
    return np.asarray(np.where(P > 1, 2 * np.where(V > 1, many, plain), 0.0))
