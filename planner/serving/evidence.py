"""What was measured of a fleet, and the best fleet of what was.

A fleet with pipeline stages rests on no measured run. The best one without them is found on the same board,
so what was simulated already is not simulated again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from costmodel.serving.bands import AGGREGATED, DISAGGREGATED, Evidence, evidence_of
from planner.serving.board import Board
from planner.serving.fleet import FleetRun


def fleet_evidence(run: FleetRun) -> Evidence:
    """What stands behind a fleet: behind the pool of which the least was measured."""
    mode = DISAGGREGATED if run.prefill else AGGREGATED
    pools = [pool for pool in (run.decode, run.prefill) if pool is not None]
    found = [evidence_of(pool.deployment, mode) for pool in pools]
    return max(found, key=lambda one: (len(one.not_measured), -one.rows))


def has_stages(run: FleetRun) -> bool:
    """Whether a pool of the fleet is a pipeline."""
    return any(pool is not None and pool.deployment.layout.pp > 1 for pool in (run.decode, run.prefill))


def best_without_stages(
    run: FleetRun, board: Board, find: Callable[[Board], FleetRun | None]
) -> FleetRun | None:
    """The best fleet without pipeline stages beside one with them; None where there is none, or no need."""
    return find(without_stages(board)) if has_stages(run) else None


def without_stages(board: Board) -> Board:
    """The board's options without pipeline stages, with what is known of them."""
    kept = [i for i, option in enumerate(board.options) if option.deployment.layout.pp == 1]
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
        runs={place[i]: found for i, found in board.runs.items() if i in place},
        pruned=board.pruned.copy(),
        rejected=[],
    )
