"""How much of the fill and drain of a pipeline shows: closed forms for equal ranks, by schedule.

Each is what `costmodel.pipeline.simulator.simulate_step` adds to M microbatches on equal ranks, as a share of
(P − 1) microbatches: the β of `costmodel.pipeline.stage_costs.step_time`. All are exact; ZBV's where the
input gradient takes at least as long as the forward, as in every transformer (else it is an upper estimate
up to a few per cent of the step when M is near P). Beside them, the sends that a step waits for.

Legend: ``P`` ranks, ``M`` microbatches; ``F``, ``B``, ``W`` forward, input gradient and weight gradient of a
rank as shares of a microbatch, so F + B + W = 1. Every form takes P, M, F and W, and broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topology.base.arrays import Quantity, Vector

ClosedForm = Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike], Vector]


def zb_h1_bubble(
    _ranks: ArrayLike, _microbatches: ArrayLike, forward: ArrayLike, weight: ArrayLike
) -> Vector:
    """β = max(F, B, F + B − W): weight gradients fill the drain as far as they last.

    >>> round(float(zb_h1_bubble(8, 8, 1 / 3, 1 / 3)), 3)
    0.333

    Source: Qi et al. 2023 (arXiv 2401.10241) table 1 for F = B = W; the maximum from the simulation.
    """
    F, W = np.asarray(forward), np.asarray(weight)
    B = 1 - F - W
    return np.asarray(np.maximum(np.maximum(F, B), F + B - W))


def zbv_bubble(ranks: ArrayLike, microbatches: ArrayLike, forward: ArrayLike, weight: ArrayLike) -> Vector:
    """β of ZBV in the order of equal passes.

    With k = min(M − P, P − 1) and j = P − 1 − k:

        (P − 1)·β = max{(P − 1)·B/2,  (P − 1)·B − k·W,  j·B,  ((P − 1 + j)·B − j·W)/2,
                        ((P − k)·B + (k − 1)·W)/2 if k > 0}

    From M = 2P − 1 on it no longer depends on M, and half an input gradient per rank remains; at M = P a
    whole one does.

    >>> [round(float(zbv_bubble(8, M, 1 / 3, 1 / 3)), 3) for M in (8, 15, 64)]
    [0.333, 0.167, 0.167]

    Source: longest paths through `costmodel.pipeline.v_schedules.zbv_order`.
    """
    P, M = np.asarray(ranks, dtype=np.float64), np.asarray(microbatches, dtype=np.float64)
    F, W = np.asarray(forward), np.asarray(weight)
    B = np.maximum(F, 1 - F - W)
    k = np.clip(M - P, 0, P - 1)
    j = P - 1 - k
    paths = (
        (P - 1) * B - k * W,
        j * B,
        ((P - 1 + j) * B - j * W) / 2,
        np.where(k > 0, ((P - k) * B + (k - 1) * W) / 2, 0.0),
    )
    longest = (P - 1) * B / 2
    for path in paths:
        longest = np.maximum(longest, path)
    return np.asarray(longest / np.maximum(P - 1, 1))


def dualpipev_bubble(
    ranks: ArrayLike, _microbatches: ArrayLike, forward: ArrayLike, weight: ArrayLike
) -> Vector:
    """β of DualPipeV, M ≥ 2P, where two passes beside each other take as long as one after the other.

        (P − 1)·β = max{(P − 1)·F/2,  (P − 1)·(F + B − W)/2,  ((P − 1)·(2B − W) − F)/2,  ((P − 1)·B − F)/2,
                        (P − 1)·(F − W),  (P − 1)·(F − (B + W)/2)}

    >>> round(float(dualpipev_bubble(8, 16, 1 / 3, 1 / 3)), 3)
    0.167

    Source: longest paths through `costmodel.pipeline.v_schedules.dualpipev_order`.
    """
    gaps = np.maximum(np.asarray(ranks, dtype=np.float64) - 1, 1)
    F, W = np.asarray(forward), np.asarray(weight)
    B = 1 - F - W
    longest = gaps * F / 2
    for path in (
        gaps * (F + B - W) / 2,
        (gaps * (2 * B - W) - F) / 2,
        (gaps * B - F) / 2,
        gaps * (F - W),
        gaps * (F - (B + W) / 2),
    ):
        longest = np.maximum(longest, path)
    return np.asarray(longest / gaps)


def zb_2p_bubble(
    _ranks: ArrayLike, _microbatches: ArrayLike, forward: ArrayLike, weight: ArrayLike
) -> Vector:
    """β = max(0, B − F, F + B − 2W) of ZB-2p, M ≥ 2P − 1, whose ranks go into the next step as they finish.

    Where ranks wait for each other instead, P − 1 forwards show as in every schedule with one chunk a rank.

    >>> zb_2p_bubble(8, 16, [1 / 3, 0.3, 0.3], [1 / 3, 0.4, 0.25]).round(3).tolist()
    [0.0, 0.0, 0.25]

    Source: Qi et al. 2023 (arXiv 2401.10241) table 1, F + B − 2W; the maximum from the simulation.
    """
    F, W = np.asarray(forward), np.asarray(weight)
    B = 1 - F - W
    return np.asarray(np.maximum(np.maximum(B - F, F + B - 2 * W), 0.0))


def v_half_bubble(ranks: ArrayLike, microbatches: ArrayLike, forward: ArrayLike, weight: ArrayLike) -> Vector:
    """β of V-Half, M ≥ P, where B ≥ F (an upper estimate where B < F ≤ B + W/2, too low beyond).

    With e = 1 for even P, else 0, h = ⌊P/2⌋:

        2·(P − 1)·β = max{(P − 1)·(F + 2B),  (P − 1 + 2e)·F + (2P − 2 − e)·B,
                          (P − 1 + 2e)·F + 3·(P − 1)·B − h·W,  (P − 1)·F + (3P − 3 + e)·B − h·W,
                          (2P + 3e)·F + (2P − 4 − e)·B + W + M·(2B − 2F − W),
                          (2P + e)·F + (2P − 4)·B + W + M·(2B − 2F − W)}

    The last two stall every microbatch where B > F + W/2, as where all activations are recomputed.

    >>> [round(float(v_half_bubble(8, M, 1 / 3, 1 / 3)), 3) for M in (8, 64)]
    [0.619, 0.619]

    Source: longest paths through `costmodel.pipeline.v_schedules.v_half_order`.
    """
    P, M = np.asarray(ranks, dtype=np.float64), np.asarray(microbatches, dtype=np.float64)
    F, W = np.asarray(forward), np.asarray(weight)
    B = np.maximum(F, 1 - F - W)
    e, h = 1 - P % 2, P // 2
    stall = W + M * (2 * B - 2 * F - W)
    longest = (P - 1) * (F + 2 * B)
    for path in (
        (P - 1 + 2 * e) * F + (2 * P - 2 - e) * B,
        (P - 1 + 2 * e) * F + 3 * (P - 1) * B - h * W,
        (P - 1) * F + (3 * P - 3 + e) * B - h * W,
        (2 * P + 3 * e) * F + (2 * P - 4 - e) * B + stall,
        (2 * P + e) * F + (2 * P - 4) * B + stall,
    ):
        longest = np.maximum(longest, path)
    return np.asarray(longest / 2 / np.maximum(P - 1, 1))


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
