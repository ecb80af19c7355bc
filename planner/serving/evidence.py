"""What was measured of a fleet, and the best fleet of what was.

A fleet with pipeline stages or decode context parallelism rests on no measured run. The best one without them
is found on the same board, so what was simulated already is not simulated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from costmodel.serving.bands import AGGREGATED, DISAGGREGATED, LatencyEvidence, evidence_of, unmeasured_axes
from planner.serving.board import Board
from planner.serving.fleet import FleetRun
from planner.serving.replica import WHOLE, Option


def fleet_evidence(run: FleetRun) -> LatencyEvidence:
    """What stands behind a fleet: behind the pool of which the least was measured."""
    mode = DISAGGREGATED if run.prefill else AGGREGATED
    pools = [pool for pool in (run.decode, run.prefill) if pool is not None]
    evidence = [evidence_of(pool.deployment, mode) for pool in pools]
    return max(evidence, key=lambda behind: (len(behind.not_measured), -behind.rows))


def runs_behind(options: Iterable[Option]) -> int:
    """Measured runs behind workers: those of the pool of which the fewest were measured."""
    pools = tuple(options)
    mode = AGGREGATED if all(pool.phase == WHOLE for pool in pools) else DISAGGREGATED
    return min(evidence_of(pool.deployment, mode).rows for pool in pools)


def is_measured(run: FleetRun) -> bool:
    """Whether measured runs are behind every pool of a fleet."""
    return fleet_evidence(run).rows > 0


def unmeasured_in(run: FleetRun) -> tuple[str, ...]:
    """Axes of the fleet's pools that no measured run has, in words."""
    pools = (run.decode, run.prefill)
    axes = (name for pool in pools if pool for name in unmeasured_axes(pool.deployment.layout))
    return tuple(dict.fromkeys(axes))


def best_measured(run: FleetRun, board: Board, find: Callable[[Board], FleetRun | None]) -> FleetRun | None:
    """The best fleet of measured axes beside one of others; None where there is none, or no need."""
    return find(measured_part(board)) if unmeasured_in(run) else None


def measured_part(board: Board) -> Board:
    """The board's options of measured axes, with what is known of them."""
    kept = [i for i, option in enumerate(board.options) if not unmeasured_axes(option.deployment.layout)]
    place = {i: at for at, i in enumerate(kept)}
    return replace(
        board,
        options=[board.options[i] for i in kept],
        capacities_per_s=[board.capacities_per_s[i] for i in kept],
        ceilings_per_s=[board.ceilings_per_s[i] for i in kept],
        exact={place[i] for i in board.exact if i in place},
        asked={place[i] for i in board.asked if i in place},
        measured={place[i] for i in board.measured if i in place},
        served={place[i]: count for i, count in board.served.items() if i in place},
        possible={place[i] for i in board.possible if i in place},
        runs={place[i]: run for i, run in board.runs.items() if i in place},
        pairs={},
        pruned=board.pruned.copy(),
        rejected=[],
    )
