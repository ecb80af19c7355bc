"""The state of a search: the replicas that could take part, and what each is known to serve.

Capacities start as analytic upper bounds; what is simulated replaces them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from costmodel.kernels.tables import Calibration
from costmodel.serving.deployment import Deployment
from costmodel.serving.mixers import splits_recurrence
from costmodel.serving.step_table import StepTimes
from planner.serving.capacity import MOST_REPLICAS, Loops, best_bracket, replicas_for, with_able_chunk
from planner.serving.fleet import FleetRun
from planner.serving.fleet_choice import MOST_FLEET_GPUS, Selection, select_fleet
from planner.serving.plan import Mode, ServingRequest
from planner.serving.replica import (
    OUTPUT_ONLY,
    PROMPT_ONLY,
    WHOLE,
    Option,
    Rejected,
    build_option,
    rate_bound_per_s,
    within_end_to_end,
)
from planner.serving.space import deployment_of, layouts_of
from topology.fabric.hierarchy import Hierarchy

_GROUPS_OF_RANKS = "has more ranks than groups of a recurrence, which the engine does not copy so"
_STAGES_IN_POOLS = "has stages, whose cache the engine cannot move between pools"
_TOKENS_IN_POOLS = "has tokens apart, whose cache the engine cannot move between pools"
_TOKENS_OF_PROMPTS = "has tokens apart, which are for decoding"

RESOLUTION = 0.02  # capacities are told apart to this share
FIRST_SHARE = 1.5  # of the replicas that its bound asks for an option is first tried with; grows as it fails
MOST_SHARE = 3.0
MOST_OVER, FEWEST_LOOKED = 16, 256
"""GPUs up to which a fleet is looked for: so many times those that no fleet can do with less of, or so many.

One that keeps its limits on more of them alone would stand all but idle.
"""


@dataclass(slots=True, kw_only=True)
class Board:
    """The state of a search: what each option can serve as far as is known, and how it came to be known.

    `ceilings_per_s` are what no replica was found to serve more of: bounds, or rates at which it failed.
    `exact` options need no more simulation; of those `measured` the capacity itself was simulated, all other
    capacities are upper bounds. `served` are the fewest replicas that were seen to serve the rate they share,
    by option, `possible` options do so in some number, and `first_share` is that of the bound's number which
    is tried first. `runs` are the best kept runs of a closed loop, by option, and `loops` all that were
    simulated of one replica; `pairs` are those of two pools, by kind and workers of both. `lowered` has the
    phases of which capacities were cut because a whole fleet broke a limit. Workers are placed on hosts of
    `host_gpus` where the GPUs are given (1: on any), and fleets
    are looked for up to `most_gpus`.
    """

    options: list[Option]
    capacities_per_s: list[float]
    ceilings_per_s: list[float]
    exact: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    measured: set[int] = field(default_factory=set)
    served: dict[int, int] = field(default_factory=dict)
    possible: set[int] = field(default_factory=set)
    first_share: float = FIRST_SHARE
    runs: dict[int, FleetRun] = field(default_factory=dict)
    loops: defaultdict[int, Loops] = field(default_factory=lambda: defaultdict(dict))
    pairs: dict[tuple[int, int, int, int], FleetRun | None] = field(default_factory=dict)
    lowered: set[str] = field(default_factory=set)
    simulated: int = 0
    pruned: Counter[str] = field(default_factory=Counter)
    enumerated: int = 0
    rejected: list[Rejected] = field(default_factory=list)
    host_gpus: int = 1
    most_gpus: int = MOST_FLEET_GPUS


def phases_of(modes: Sequence[Mode]) -> list[str]:
    """Phases of the replicas that fleets of these modes are made of."""
    return [
        *([WHOLE] if "aggregated" in modes else []),
        *([PROMPT_ONLY, OUTPUT_ONLY] if "disaggregated" in modes else []),
    ]


def has_fleet(board: Board, modes: Sequence[Mode]) -> bool:
    """Whether its options make up a fleet of one of these modes: whole replicas, or both pools."""
    phases = {option.phase for option in board.options} & set(phases_of(modes))
    return WHOLE in phases or {PROMPT_ONLY, OUTPUT_ONLY} <= phases


def enumerate_options(cal: Calibration, request: ServingRequest, hierarchy: Hierarchy) -> Board:
    """Every replica that could take part, with the bound on its capacity; the others counted by reason."""
    host_gpus = hierarchy.gpus_per_host if request.num_gpus is not None else 1
    board = Board(options=[], capacities_per_s=[], ceilings_per_s=[], host_gpus=host_gpus)
    built: list[Option] = []
    phases = phases_of(request.modes)
    layouts = layouts_of(request, hierarchy)
    for weights in request.weights:
        for layout in layouts:
            deployment = deployment_of(request, hierarchy, weights, layout)
            tables: dict[int, StepTimes] = {}
            for phase in phases:
                board.enumerated += 1
                if (reason := _not_split(deployment) or _not_moved(deployment, phase)) is not None:
                    board.pruned[reason] += 1
                    board.rejected.append(Rejected(reason=reason))
                    continue
                option = build_option(cal, deployment, request.job, phase=phase, tables=tables)
                if isinstance(option, Rejected):
                    board.pruned[option.reason] += 1
                    board.rejected.append(option)
                    continue
                built.append(option)
    for offer in within_end_to_end(built):
        if isinstance(offer, Rejected):
            board.pruned[offer.reason] += 1
            board.rejected.append(offer)
            continue
        board.options.append(offer)
        board.capacities_per_s.append(rate_bound_per_s(offer))
    board.ceilings_per_s = list(board.capacities_per_s)
    board.most_gpus = request.num_gpus or _looked_for(request, board)
    return board


def _looked_for(request: ServingRequest, board: Board) -> int:
    """GPUs up to which a fleet for a rate is looked for, by what its modes need at least."""
    rate, least = request.job.request_rate_per_s, 0
    for mode in request.modes if rate is not None else ():
        phases = phases_of((mode,))
        capacities = [
            capacity if option.phase in phases else 0.0
            for option, capacity in zip(board.options, board.capacities_per_s, strict=True)
        ]
        selection = select_fleet(board.options, capacities, most_gpus=MOST_FLEET_GPUS, rate_per_s=rate)
        least = max(least, selection.num_gpus if selection is not None else 0)
    return (
        min(max(MOST_OVER * least, FEWEST_LOOKED), MOST_FLEET_GPUS) if rate is not None else MOST_FLEET_GPUS
    )


def _not_split(deployment: Deployment) -> str | None:
    """Why ranks do not split a model's recurrence in these weights; None where they do."""
    return None if splits_recurrence(deployment) else _GROUPS_OF_RANKS


def _not_moved(deployment: Deployment, phase: str) -> str | None:
    """Why the cache of a pool's replicas does not come from, or go to, the other pool; None where it does."""
    layout = deployment.layout
    if phase == WHOLE:
        return None
    if layout.pp > 1 and phase not in deployment.stack.pools_with_stages:
        return _STAGES_IN_POOLS
    if layout.dcp > 1 and phase == PROMPT_ONLY:
        return _TOKENS_OF_PROMPTS
    whole = deployment.model.attention.joins_split_caches and layout.dcp == layout.tp
    return _TOKENS_IN_POOLS if layout.dcp > 1 and not whole else None


def learn(board: Board, i: int, *, needed_per_s: float) -> None:
    """Simulate option i where no rate is to be shared: does it serve what is needed of it, and how much?

    Where it serves no more than the best, or was asked before, its capacity is not looked for.
    """
    option = board.options[i]
    board.simulated += 1
    able = None
    if needed_per_s > 0 and i not in board.asked:
        board.asked.add(i)
        possible = needed_per_s <= board.capacities_per_s[i] * (1 + 1e-9)
        able = with_able_chunk(option, needed_per_s) if possible else None
        if able is None:
            fail(board, i, needed_per_s=needed_per_s, rate_per_s=None)
            board.pruned["simulated slower than the best"] += 1
            return
    board.options[i], board.capacities_per_s[i], board.ceilings_per_s[i] = best_bracket(
        option,
        most_per_s=board.ceilings_per_s[i],
        precision=RESOLUTION,
        able=able,
        served_per_s=needed_per_s,
    )
    board.exact.add(i)
    board.measured.add(i)


def learn_share(board: Board, i: int, rate_per_s: float, *, most: int | None) -> None:
    """Simulate option i with one number of replicas that share a rate, and keep what that says.

    More than `most` are of no use beside what is known already (None: nothing is). Whether so many serve is
    asked first, because few options are better than the best. Without it the most there may be are tried
    as long as no other option serves, then some more than the bound asks for, then twice as many. A number
    that serves is bisected.
    """
    board.simulated += 1
    least, served = int(replicas_for(rate_per_s, board.capacities_per_s[i])), board.served.get(i)
    if served is not None:
        tried = (least + min(served - 1, most or served)) // 2
    elif most is not None:
        tried = most
    elif i not in board.possible and not _serves_in(board, board.options[i].phase):
        tried = MOST_REPLICAS
    elif i not in board.asked:
        tried = int(board.first_share * least)
    else:
        tried = 2 * least
    tried = max(tried, least)
    fitting = with_able_chunk(board.options[i], rate_per_s / tried)
    if fitting is not None and tried == MOST_REPLICAS:
        board.possible.add(i)
    elif fitting is not None:
        board.options[i], board.served[i] = fitting, tried
    else:
        fail(board, i, needed_per_s=rate_per_s / tried, rate_per_s=rate_per_s)
        least = tried + 1
        if most is None and tried < MOST_REPLICAS and i not in board.asked:
            board.first_share = min(FIRST_SHARE * board.first_share, MOST_SHARE)
            board.asked.add(i)
        board.pruned["simulated no better than the best"] += tried == most
        if tried >= MOST_REPLICAS:
            board.capacities_per_s[i] = 0.0
    if board.served.get(i) == least:
        board.exact.add(i)


def _serves_in(board: Board, phase: str) -> bool:
    """Whether an option of this phase was seen to serve its share, so that others may be expected to."""
    return any(board.options[i].phase == phase for i in board.served)


def settle(board: Board, i: int, rate_per_s: float) -> None:
    """Simulate option i until the fewest replicas that serve the rate are known."""
    while i not in board.exact and board.capacities_per_s[i] > 0:
        learn_share(board, i, rate_per_s, most=None)
    if i in board.exact:
        board.measured.add(i)
        board.capacities_per_s[i] = rate_per_s / board.served[i]


def fail(board: Board, i: int, *, needed_per_s: float, rate_per_s: float | None) -> None:
    """Option i does not serve what was needed of it: the share of a rate, or as much as the best.

    One that cannot take its share of a rate needs a replica more. Else it is counted on for a little less
    than it failed at, so that it is not chosen again; its ceiling is where it failed.
    """
    if rate_per_s is None:
        ceiling, capacity = needed_per_s, min(board.capacities_per_s[i], needed_per_s) * (1 - RESOLUTION)
    else:
        ceiling = capacity = rate_per_s / (replicas_for(rate_per_s, needed_per_s) + 1)
    board.ceilings_per_s[i] = min(board.ceilings_per_s[i], ceiling)
    board.capacities_per_s[i] = min(board.capacities_per_s[i], capacity)


def lower(board: Board, selection: Selection, rate_per_s: float) -> None:
    """The fleet as a whole broke a limit that its replicas alone kept: count on a little less of each."""
    board.lowered |= {board.options[i].phase for i in selection.counts}
    for i, count in selection.counts.items():
        believed = min(board.capacities_per_s[i], rate_per_s / count)
        board.capacities_per_s[i] = believed * 0.97
        if i in board.served:
            board.served[i] = max(board.served[i], int(replicas_for(rate_per_s, board.capacities_per_s[i])))
