"""Fleets that keep every limit with a given chance, of layouts that were measured.

A limit holds with that chance where it is so far above the latency in the error band, so the options of a
search are asked to keep limits that are as much tighter.
"""

from __future__ import annotations

from statistics import NormalDist

from costmodel.serving.bands import AGGREGATED, DISAGGREGATED, Evidence, evidence_of, unmeasured_axes
from planner.serving.board import Board
from planner.serving.plan import ServingPlan
from planner.serving.replica import WHOLE, Option, Rejected, rate_bound_per_s, tightened

SURE = 0.9  # chance to keep every limit that is asked of a proposal
PREDICTED = 0.5  # chance of a limit that a prediction just keeps
ROUNDING = 1e-6


def is_sure(plan: ServingPlan, *, with_runs: bool) -> bool:
    """Whether a plan keeps every limit surely and is split as measured runs are; where asked, has some."""
    axes = [name for _, pool in plan.pools for name in unmeasured_axes(pool.layout)]
    return plan.chance >= SURE - ROUNDING and not axes and (plan.evidence.rows > 0 or not with_runs)


def has_runs(board: Board) -> bool:
    """Whether a measured run is behind any option."""
    return any(_evidence(option).rows for option in board.options)


def sure_part(board: Board, chance: float, *, with_runs: bool) -> Board:
    """The board's options of measured layouts under limits that they keep with a chance of one half at least.

    The chance is Φ(z90 · ln(limit/predicted)/ln(upper)) (`planner.serving.answer.chance_kept`), hence a limit
    is divided by upper^(z/z90).

    Args:
        board: What is known under the limits themselves: no option serves more under tighter ones.
        chance: With which every limit is to be kept, from one half.
        with_runs: Whether only options that measured runs are behind may take part.
    """
    options, rejected = list[Option](), list[Rejected]()
    capacities = list[float]()
    power = NormalDist().inv_cdf(chance) / NormalDist().inv_cdf(0.9)
    for option, ceiling in zip(board.options, board.ceilings_per_s, strict=True):
        evidence = _evidence(option)
        if unmeasured_axes(option.deployment.layout) or (with_runs and not evidence.rows):
            rejected.append(Rejected(reason="was not measured"))
            continue
        ttft, tpot = (band.upper**-power for band in (evidence.ttft, evidence.tpot))
        tight = tightened(option, ttft=ttft, tpot=tpot)
        if isinstance(tight, Rejected):
            rejected.append(tight)
            continue
        options.append(tight)
        capacities.append(min(rate_bound_per_s(tight), ceiling))
    return Board(
        options=options,
        capacities_per_s=capacities,
        ceilings_per_s=list(capacities),
        enumerated=board.enumerated,
        rejected=rejected,
        host_gpus=board.host_gpus,
        most_gpus=board.most_gpus,
    )


def _evidence(option: Option) -> Evidence:
    """What was measured of an option."""
    return evidence_of(option.deployment, AGGREGATED if option.phase == WHOLE else DISAGGREGATED)
