"""Fleets beside the winner of an open load: its equals, compared by their chance, and who comes next.

Of fleets at one bill the measured ones come first, then those that keep the limits with the higher chance,
then those of fewer GPUs and of smaller replicas. The runners-up that are shown are simulated where that takes
few simulations, and said not to be elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodel.serving.simulation.load import Load
from planner.serving.board import Board, fail, learn, settle
from planner.serving.capacity import with_able_chunk
from planner.serving.evidence import is_measured
from planner.serving.fleet import FleetRun, run_fleet
from planner.serving.fleet_choice import Selection, select_fleet
from planner.serving.limit_checks import least_chance, limit_checks
from planner.serving.plan import ServingRequest
from planner.serving.replica import Option

RUNNERS_UP = 2
MOST_EQUALS = 3  # fleets at the bill of the best that are simulated beside it
MOST_LEARNED = 3  # replicas simulated for the sake of runners-up


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRunnerUp:
    """A fleet that lost.

    `measured` when the capacities of its replicas were simulated, else they are upper bounds; `run` when the
    whole fleet was simulated under the load.
    """

    selection: Selection
    options: Mapping[int, Option]
    measured: bool
    run: FleetRun | None = None


def surest(
    request: ServingRequest, board: Board, first: FleetRun, trace: Load | None
) -> tuple[FleetRun, tuple[FleetRun, ...]]:
    """The best of `first` and of other fleets at its bill that keep the limits, and the others, best first.

    Measured ones come before others, then the higher chance to keep the limits, to a hundredth; then fewer
    GPUs and smaller replicas. Without limits `first` stands: no chance tells them apart.
    """
    if not limit_checks(request, first):
        return first, ()
    runs = [first, *_equals(request, board, first, trace)]
    winner, *others = sorted(runs, key=lambda run: _rank(request, run))
    return winner, tuple(others)


def _rank(request: ServingRequest, run: FleetRun) -> tuple[float, ...]:
    """Order of fleets at one bill, the best first."""
    chance = least_chance(limit_checks(request, run))
    return (not is_measured(run), -round(chance, 2), run.num_gpus, run.decode.num_gpus)


def _most_gpus(request: ServingRequest, board: Board, first: FleetRun) -> int:
    """GPUs of the bill of a fleet: those of the machines that it rents, where machines are paid for."""
    if request.objective == "gpus" or request.num_gpus is not None:
        return first.num_gpus
    return min(max(first.selection.machines * request.machine_gpus, first.num_gpus), board.most_gpus)


def _equals(request: ServingRequest, board: Board, first: FleetRun, trace: Load | None) -> list[FleetRun]:
    """Simulated fleets of other replicas at the bill of the first that keep the limits."""
    rate, excluded = request.job.request_rate_per_s, [frozenset(first.selection.counts)]
    runs: list[FleetRun] = []
    for _ in range(MOST_EQUALS):
        selection = select_fleet(
            board.options,
            board.capacities_per_s,
            most_gpus=_most_gpus(request, board, first),
            rate_per_s=rate,
            excluded=excluded,
            simulated=board.exact,
            machine_gpus=request.machine_gpus,
            host_gpus=board.host_gpus,
            spare=request.spare,
        )
        if selection is None or selection.machines > first.selection.machines:
            break
        excluded.append(frozenset(selection.counts))
        board.simulated += 1
        run = _run_of(board, selection, rate or selection.rate_per_s, trace)
        if run is not None and run.kept:
            runs.append(run)
    return runs


def _run_of(board: Board, selection: Selection, rate_per_s: float, trace: Load | None) -> FleetRun | None:
    """The selection under the load, or None when one of its replicas cannot take its share.

    What is learned stays on the board: an option that takes its share, or that its capacity is less.
    """
    for i, count in selection.counts.items():
        if i in board.exact or count >= board.served.get(i, count + 1):
            continue
        share_per_s = rate_per_s / count
        fitting = with_able_chunk(board.options[i], share_per_s)
        if fitting is None:
            fail(board, i, needed_per_s=share_per_s, rate_per_s=rate_per_s)
            return None
        board.options[i], board.served[i] = fitting, count
    return run_fleet(board.options, selection, rate_per_s, trace)


def runners_up(
    request: ServingRequest, board: Board, run: FleetRun, equals: Sequence[FleetRun]
) -> tuple[FleetRunnerUp, ...]:
    """The equals of the winner, then the next best fleets under what is known."""
    runs = [_simulated(board, equal) for equal in equals[:RUNNERS_UP]]
    excluded = [frozenset(fleet.selection.counts) for fleet in (run, *equals)]
    learned = 0
    while len(runs) < RUNNERS_UP:
        selection = select_fleet(
            board.options,
            board.capacities_per_s,
            most_gpus=board.most_gpus,
            rate_per_s=request.job.request_rate_per_s,
            excluded=excluded,
            machine_gpus=request.machine_gpus,
            host_gpus=board.host_gpus,
            spare=request.spare,
        )
        if selection is None:
            break
        unknown = [i for i in selection.counts if i not in board.measured]
        if unknown and learned < MOST_LEARNED and _as_good(request, run, selection):
            learned += 1
            rate_per_s = request.job.request_rate_per_s
            if rate_per_s is None:
                learn(board, unknown[0], needed_per_s=0.0)
            else:
                settle(board, unknown[0], rate_per_s)
            continue
        excluded.append(frozenset(selection.counts))
        options = {i: board.options[i] for i in selection.counts}
        runs.append(FleetRunnerUp(selection=selection, options=options, measured=not unknown))
    return tuple(runs)


def _as_good(request: ServingRequest, run: FleetRun, selection: Selection) -> bool:
    """Whether a fleet is as good as the winner by its bounds, so that only a simulation tells them apart."""
    if request.job.request_rate_per_s is not None:
        return selection.num_gpus <= run.num_gpus
    return selection.rate_per_s >= run.request_rate_per_s


def _simulated(board: Board, run: FleetRun) -> FleetRunnerUp:
    """A simulated fleet as a runner-up."""
    by_phase = {option.phase: option for option in (run.prefill, run.decode) if option is not None}
    options = {i: by_phase[board.options[i].phase] for i in run.selection.counts}
    return FleetRunnerUp(selection=run.selection, options=options, measured=True, run=run)
