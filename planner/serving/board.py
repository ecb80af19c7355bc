"""The state of a search: the replicas that could take part, and what each is known to serve.

Capacities start as analytic upper bounds; what is simulated replaces them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from costmodel.kernels.tables import Calibration
from planner.serving.capacity import able, best_bracket, replicas
from planner.serving.fleet import FleetRun
from planner.serving.integer_program import Selection
from planner.serving.plan import ServingRequest
from planner.serving.replica import (
    OUTPUT_ONLY,
    PROMPT_ONLY,
    WHOLE,
    Option,
    Rejected,
    build_option,
    rate_bound_per_s,
)
from planner.serving.space import deployment_of, serving_layouts
from topology.fabric.hierarchy import Hierarchy

RESOLUTION = 0.02  # capacities are told apart to this share


@dataclass(slots=True, kw_only=True)
class Board:
    """The state of a search: what each option can serve as far as is known, and how it came to be known.

    `ceilings_per_s` are what no replica was found to serve more of: bounds, or rates at which it failed.
    `exact` options need no more simulation; of those `measured` the capacity itself was simulated, all other
    capacities are upper bounds. `runs` are the best kept runs of a closed loop, by option. `lowered` says
    that capacities were cut because a whole fleet broke a limit. `fewest_gpus` are those of the smallest
    fleet of whole replicas that is known to serve the rate asked for.
    """

    options: list[Option]
    capacities_per_s: list[float]
    ceilings_per_s: list[float]
    exact: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    measured: set[int] = field(default_factory=set)
    runs: dict[int, FleetRun] = field(default_factory=dict)
    lowered: bool = False
    fewest_gpus: float = float("inf")
    simulated: int = 0
    pruned: Counter[str] = field(default_factory=Counter)
    enumerated: int = 0
    rejected: list[Rejected] = field(default_factory=list)


def enumerate_options(cal: Calibration, request: ServingRequest, hierarchy: Hierarchy) -> Board:
    """Every replica that could take part, with the bound on its capacity; the others counted by reason."""
    board = Board(options=[], capacities_per_s=[], ceilings_per_s=[])
    phases = [WHOLE] if "aggregated" in request.modes else []
    phases += [PROMPT_ONLY, OUTPUT_ONLY] if "disaggregated" in request.modes else []
    most = min(request.num_gpus or hierarchy.num_gpus, hierarchy.num_gpus)
    layouts = serving_layouts(
        request.model,
        most_gpus=most,
        domain_gpus=hierarchy.gpus_per_node,
        host_gpus=hierarchy.gpus_per_host,
        pins=request.pins,
    )
    for weights in request.weights:
        for layout in layouts:
            deployment = deployment_of(request, hierarchy, weights, layout)
            for phase in phases:
                board.enumerated += 1
                option = build_option(cal, deployment, request.job, phase=phase)
                if isinstance(option, Rejected):
                    board.pruned[option.reason] += 1
                    board.rejected.append(option)
                    continue
                board.options.append(option)
                board.capacities_per_s.append(rate_bound_per_s(option))
    board.ceilings_per_s = list(board.capacities_per_s)
    return board


def learn(board: Board, i: int, *, needed_per_s: float, rate_per_s: float | None = None) -> None:
    """Simulate option i: does it serve what is needed of it?

    Without a rate to be shared by its replicas that is not the whole question, and its capacity is found; so
    it is where the answer is no, or it was asked before.
    """
    option = board.options[i]
    board.simulated += 1
    if needed_per_s > 0 and i not in board.asked:
        board.asked.add(i)
        possible = needed_per_s <= board.capacities_per_s[i] * (1 + 1e-9)
        fitting = able(option, needed_per_s) if possible else None
        if fitting is not None and rate_per_s is not None:
            board.options[i] = fitting
            board.exact.add(i)
            return
        if fitting is None:
            fail(board, i, needed_per_s=needed_per_s, rate_per_s=rate_per_s)
        if fitting is None and _no_better(board, option, board.capacities_per_s[i], rate_per_s):
            if rate_per_s is not None:
                board.asked.discard(i)
            board.pruned["simulated slower than the best"] += 1
            return
    board.options[i], board.capacities_per_s[i], board.ceilings_per_s[i] = best_bracket(
        option, most_per_s=board.ceilings_per_s[i], precision=RESOLUTION, rate_per_s=rate_per_s
    )
    board.exact.add(i)
    board.measured.add(i)
    if rate_per_s is not None and option.phase == WHOLE:
        gpus = replicas(rate_per_s, board.capacities_per_s[i]) * option.num_gpus
        board.fewest_gpus = min(board.fewest_gpus, gpus)


def fail(board: Board, i: int, *, needed_per_s: float, rate_per_s: float | None) -> None:
    """Option i does not serve what was needed of it: the share of a rate, or as much as the best.

    One that cannot take its share of a rate needs a replica more. Else it is counted on for a little less
    than it failed at, so that it is not chosen again; its ceiling is where it failed.
    """
    if rate_per_s is None:
        ceiling, capacity = needed_per_s, min(board.capacities_per_s[i], needed_per_s) * (1 - RESOLUTION)
    else:
        ceiling = capacity = rate_per_s / (replicas(rate_per_s, needed_per_s) + 1)
    board.ceilings_per_s[i] = min(board.ceilings_per_s[i], ceiling)
    board.capacities_per_s[i] = min(board.capacities_per_s[i], capacity)


def _no_better(board: Board, option: Option, bound_per_s: float, rate_per_s: float | None) -> bool:
    """Whether an option of at most this capacity is no better than what is known to serve.

    Without a rate to share it is asked for more than the best serves.
    """
    if rate_per_s is None:
        return True
    whole = option.phase == WHOLE
    return whole and replicas(rate_per_s, bound_per_s) * option.num_gpus >= board.fewest_gpus


def lower(board: Board, selection: Selection, rate_per_s: float) -> None:
    """The fleet as a whole broke a limit that its replicas alone kept: count on a little less of each."""
    board.lowered = True
    for i, count in selection.counts.items():
        believed = min(board.capacities_per_s[i], rate_per_s / count)
        board.capacities_per_s[i] = believed * 0.97
