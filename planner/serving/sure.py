"""What is asked of a proposal: to keep every limit with a given chance, and to be split as measured runs are.

A limit holds with that chance where it is so far above the latency in the error band, so the options of a
search are asked to keep limits that are as much tighter.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from costmodel.serving.bands import AGGREGATED, DISAGGREGATED, LatencyEvidence, evidence_of, unmeasured_axes
from planner.serving.board import Board
from planner.serving.limit_checks import NORMAL_P90
from planner.serving.plan import ROUNDING, SURE, ServingPlan, ServingRequest
from planner.serving.replica import WHOLE, Option, Rejected, rate_bound_per_s, tightened

PREDICTED = 0.5  # chance of a limit that a prediction just keeps
CHANCES = (SURE, 0.8, 0.7, 0.6, PREDICTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What a fleet must have to be proposed: measured layouts that keep the limits with a chance.

    Args:
        chance: With which every limit is to be kept, from one half.
        with_runs: Whether measured runs of the GPU and engine must be behind them, too.
    """

    chance: float
    with_runs: bool

    def is_met(self, plan: ServingPlan) -> bool:
        """Whether a plan has it."""
        axes = [name for _, pool in plan.pools for name in unmeasured_axes(pool.layout)]
        known = not axes and (plan.evidence.rows > 0 or not self.with_runs)
        return known and plan.chance >= self.chance - ROUNDING

    @property
    def scope(self) -> str:
        """Which fleets take part, in words."""
        chance = f"{100 * self.chance:.0f} %"
        return f"measured layouts whose workers alone keep every limit with a chance of {chance}"

    def part(self, board: Board) -> Board:
        """The board's options that may meet it, under limits that are as much tighter.

        The chance is Φ(z90 · ln(limit/predicted)/ln(upper)) (`planner.serving.limit_checks.chance_kept`),
        hence a limit is divided by upper^(z/z90). No option serves more then, so ceilings stay.
        """
        options, rejected = list[Option](), list[Rejected]()
        capacities = list[float]()
        power = NormalDist().inv_cdf(self.chance) / NORMAL_P90
        for option, ceiling in zip(board.options, board.ceilings_per_s, strict=True):
            evidence = _evidence(option)
            if unmeasured_axes(option.deployment.layout) or (self.with_runs and not evidence.rows):
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


def requirements_of(request: ServingRequest, *, with_runs: bool) -> tuple[Requirement, ...]:
    """What is asked of a proposal, one after the other until a fleet meets it: the highest chance first.

    Where the load is what is sought, any layout has a higher chance at a lower one, so nothing lies between
    surely and as predicted.
    """
    sought = request.job.request_rate_per_s is None and request.job.concurrency is None
    chances = (SURE, PREDICTED) if sought else CHANCES
    return tuple(Requirement(chance=chance, with_runs=with_runs) for chance in chances)


def has_runs(board: Board) -> bool:
    """Whether a measured run is behind any option."""
    return any(_evidence(option).rows for option in board.options)


def _evidence(option: Option) -> LatencyEvidence:
    """What was measured of an option."""
    return evidence_of(option.deployment, AGGREGATED if option.phase == WHOLE else DISAGGREGATED)
