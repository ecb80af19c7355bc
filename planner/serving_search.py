"""The search for a fleet.

Enumerate replicas, bound them, let CP-SAT choose, simulate what it chose, until it stands.

Capacities start as analytic upper bounds. The program picks the best fleet under them; its kinds of replica
are simulated and their capacities replaced by what the simulation found; the program is solved again. When
the chosen kinds have all been simulated, no other fleet can be better: theirs are still counted at their
bounds.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from costmodel.calibration import Calibration
from costmodel.request_load import Load
from planner.serving_fleet import FleetRun, run_closed, run_fleet
from planner.serving_infeasible import infeasible_answer
from planner.serving_master import Selection, select_fleet
from planner.serving_options import (
    OUTPUT_ONLY,
    PROMPT_ONLY,
    WHOLE,
    Option,
    Rejected,
    able,
    best_chunk,
    build_option,
    fastest_tpot_s,
    fastest_ttft_s,
    rate_bound_per_s,
    with_chunks,
)
from planner.serving_plan import ServingInfeasible, ServingOptimality, ServingPlan, ServingRequest
from planner.serving_report import RunnerUp, plan_of_fleet
from planner.serving_space import deployment_of, serving_layouts
from topology.errors import InputError
from topology.gpu import Gpu
from topology.hierarchy import Hierarchy

MOST_GPUS = 4096  # a fleet asked for without a size is looked for up to here
RUNNERS_UP = 2
RESOLUTION = 0.02  # capacities are told apart to this share


@dataclass(slots=True, kw_only=True)
class Board:
    """The state of a search: what each option can serve as far as is known, and how it came to be known.

    `exact` options need no more simulation; of those `measured` the capacity itself was simulated, all other
    capacities are upper bounds. `runs` are the best kept runs of a closed loop, by option. `lowered` says
    that capacities were cut because a whole fleet broke a limit.
    """

    options: list[Option]
    capacities_per_s: list[float]
    exact: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    measured: set[int] = field(default_factory=set)
    runs: dict[int, FleetRun] = field(default_factory=dict)
    lowered: bool = False
    simulated: int = 0
    pruned: Counter[str] = field(default_factory=Counter)
    enumerated: int = 0
    rejected: list[Rejected] = field(default_factory=list)


def search_serving(
    cal: Calibration, request: ServingRequest, hierarchy: Hierarchy, *, trace: Load | None = None
) -> ServingPlan | ServingInfeasible:
    """Find the fleet for a request on these GPUs, with a certificate, or say why there is none."""
    started = time.perf_counter()
    check_request(request, hierarchy.gpu)
    board = enumerate_options(cal, request, hierarchy)
    if not board.options:
        return infeasible_answer(request, hierarchy, board.rejected)
    if request.job.concurrency is not None and request.job.request_rate_per_s is None:
        found = _search_closed(request, board)
    else:
        found = _search_open(request, board, trace)
    if found is None:
        return _no_fleet(request, board)
    run, optimality = found
    runners_up = _runners_up(request, board, run)
    return plan_of_fleet(
        cal,
        request,
        hierarchy,
        run,
        optimality=optimality,
        runners_up=runners_up,
        search_time_s=time.perf_counter() - started,
    )


def check_request(request: ServingRequest, gpu: Gpu) -> None:
    """Refuse lengths beyond the context, loads that are none, and precisions the GPU lacks."""
    job, model = request.job, request.model
    longest = job.input_tokens + job.output_tokens
    if longest > model.max_sequence_length:
        raise InputError(
            what="requests are longer than the model's context",
            cause=f"{job.input_tokens} input + {job.output_tokens} output = {longest} tokens, {model.name} "
            f"holds {model.max_sequence_length}",
            fix=f"give --input and --output at most {model.max_sequence_length} together",
        )
    for weights in request.weights:
        if weights == "fp8" and "fp8" not in gpu.peak_flop_per_s:
            raise InputError(
                what=f"{gpu.name} cannot serve {weights} weights",
                cause=f"{gpu.name} multiplies in {', '.join(sorted(gpu.peak_flop_per_s))}, and not in fp8",
                fix="use --weights bf16, int8 or int4 on this GPU, or another GPU",
            )


def enumerate_options(cal: Calibration, request: ServingRequest, hierarchy: Hierarchy) -> Board:
    """Every replica that could take part, with the bound on its capacity; the others counted by reason."""
    board = Board(options=[], capacities_per_s=[])
    phases = [WHOLE] if "aggregated" in request.modes else []
    phases += [PROMPT_ONLY, OUTPUT_ONLY] if "disaggregated" in request.modes else []
    most = min(request.num_gpus or hierarchy.num_gpus, hierarchy.num_gpus)
    layouts = serving_layouts(
        request.model, most_gpus=most, domain_gpus=hierarchy.gpus_per_node, pins=request.pins
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
    return board


def _search_open(
    request: ServingRequest, board: Board, trace: Load | None
) -> tuple[FleetRun, ServingOptimality] | None:
    """Fewest GPUs for a rate, or most requests a second of a given fleet."""
    rate, most = request.job.request_rate_per_s, request.num_gpus or MOST_GPUS
    best_per_s = 0.0
    while True:
        selection = select_fleet(
            board.options, board.capacities_per_s, most_gpus=most, rate_per_s=rate, simulated=board.exact
        )
        if selection is None:
            return None
        unknown = [i for i in selection.counts if i not in board.exact]
        if not unknown:
            run = run_fleet(board.options, selection, rate, trace)
            if run.kept:
                return run, _certificate(request, board, selection)
            _lower(board, selection, run.request_rate_per_s)
            continue
        for i in unknown:
            needed = (rate if rate is not None else best_per_s) / selection.counts[i]
            _learn(board, i, needed_per_s=needed, enough=rate is not None)
        if rate is None:
            best_per_s = max(best_per_s, _served(board, selection))


def _learn(board: Board, i: int, *, needed_per_s: float, enough: bool) -> None:
    """Simulate option i: does it serve what is needed of it?

    If that is not the whole question (`enough`), or it was asked before, its capacity is found.
    """
    option, bound = board.options[i], board.capacities_per_s[i]
    board.simulated += 1
    if needed_per_s > 0 and i not in board.asked:
        board.asked.add(i)
        fitting = able(option, needed_per_s) if needed_per_s <= bound else None
        if fitting is not None and enough:
            board.options[i] = fitting
            board.exact.add(i)
            return
        if fitting is None and not enough:
            board.capacities_per_s[i] = min(bound, needed_per_s) * (1 - RESOLUTION)
            board.pruned["simulated slower than the best"] += 1
            return
    board.options[i], board.capacities_per_s[i] = best_chunk(option, most_per_s=bound, precision=RESOLUTION)
    board.exact.add(i)
    board.measured.add(i)


def _served(board: Board, selection: Selection) -> float:
    """Requests per second the selection serves under what is known now."""
    by_phase: dict[str, float] = {}
    for i, count in selection.counts.items():
        phase = board.options[i].phase
        by_phase[phase] = by_phase.get(phase, 0.0) + count * board.capacities_per_s[i]
    return min(by_phase.values())


def _lower(board: Board, selection: Selection, rate_per_s: float) -> None:
    """The fleet as a whole broke a limit that its replicas alone kept: count on a little less of each."""
    board.lowered = True
    for i, count in selection.counts.items():
        believed = min(board.capacities_per_s[i], rate_per_s / count)
        board.capacities_per_s[i] = believed * 0.97


def _search_closed(request: ServingRequest, board: Board) -> tuple[FleetRun, ServingOptimality] | None:
    """Constant concurrency: the smallest fleet that keeps the limits, or the fastest of a given size."""
    concurrency = request.job.concurrency or 1
    best: FleetRun | None = None
    for count, i in _closed_order(request, board):
        bound = concurrency / _fastest_s(board.options[i])
        if best is not None and (request.num_gpus is None or bound <= best.request_rate_per_s):
            board.pruned["bound no better than the best"] += 1
            continue
        board.simulated += 1
        for option in with_chunks(board.options[i]):
            run = run_closed(option, count, concurrency, which=i)
            if run.kept:
                _remember(board, i, run)
            if run.kept and (best is None or run.request_rate_per_s > best.request_rate_per_s):
                best = run
    if best is None:
        return None
    value = float(best.num_gpus) if request.num_gpus is None else best.request_rate_per_s
    return best, ServingOptimality(
        status="proven",
        bound=value,
        value=value,
        enumerated=board.enumerated,
        pruned=dict(board.pruned),
        simulated=board.simulated,
    )


def _remember(board: Board, i: int, run: FleetRun) -> None:
    """Keep the best run of an option in a closed loop: fewest GPUs, then most requests a second."""
    known = board.runs.get(i)
    if known is None or _order(run) < _order(known):
        board.runs[i] = run
        board.options[i] = run.decode
        board.capacities_per_s[i] = run.request_rate_per_s / run.decode_workers
        board.measured.add(i)


def _order(run: FleetRun) -> tuple[int, float]:
    """What is preferred among runs of one option."""
    return run.num_gpus, -run.request_rate_per_s


def _closed_order(request: ServingRequest, board: Board) -> list[tuple[int, int]]:
    """(replicas, option) pairs to try: fewest GPUs first, or, in a given fleet, fastest bound first."""
    whole = [i for i, option in enumerate(board.options) if option.phase == WHOLE]
    concurrency = request.job.concurrency or 1
    if request.num_gpus is not None:
        pairs = [(min(request.num_gpus // board.options[i].num_gpus, concurrency), i) for i in whole]
        return sorted(pairs, key=lambda pair: (_fastest_s(board.options[pair[1]]), pair[1]))
    pairs = [(count, i) for i in whole for count in range(1, min(concurrency, 64) + 1)]
    return sorted(
        pairs,
        key=lambda pair: (
            pair[0] * board.options[pair[1]].num_gpus,
            _fastest_s(board.options[pair[1]]),
            pair[1],
        ),
    )


def _fastest_s(option: Option) -> float:
    """Least time a request spends in a replica."""
    job = option.job
    decode = fastest_tpot_s(option.times, job.input_tokens) * (job.output_tokens - 1)
    return fastest_ttft_s(option.times, round(job.input_tokens * (1 - job.cached_share))) + decode


def _certificate(request: ServingRequest, board: Board, selection: Selection) -> ServingOptimality:
    """What was proven: the program's optimum.

    With every option it did not choose still counted at its bound. Capacities that were cut because a whole
    fleet broke a limit are no bounds any more, so nothing is proven then.
    """
    value = selection.rate_per_s if request.job.request_rate_per_s is None else float(selection.num_gpus)
    return ServingOptimality(
        status="best-found" if board.lowered else "proven",
        bound=value,
        value=value,
        enumerated=board.enumerated,
        pruned=dict(board.pruned),
        simulated=board.simulated,
    )


def _runners_up(request: ServingRequest, board: Board, run: FleetRun) -> tuple[RunnerUp, ...]:
    """The next best fleets under what is known, the winner's kinds excluded."""
    if board.runs:
        return _closed_runners_up(request, board, run)
    excluded = [frozenset(run.selection.counts)]
    found: list[RunnerUp] = []
    for _ in range(RUNNERS_UP):
        selection = select_fleet(
            board.options,
            board.capacities_per_s,
            most_gpus=request.num_gpus or MOST_GPUS,
            rate_per_s=request.job.request_rate_per_s,
            excluded=excluded,
        )
        if selection is None:
            break
        excluded.append(frozenset(selection.counts))
        options = {i: board.options[i] for i in selection.counts}
        measured = selection.counts.keys() <= board.measured
        found.append(RunnerUp(selection=selection, options=options, measured=measured))
    return tuple(found)


def _closed_runners_up(request: ServingRequest, board: Board, run: FleetRun) -> tuple[RunnerUp, ...]:
    """The next best of the simulated fleets of a closed loop."""
    others = [other for i, other in board.runs.items() if i not in run.selection.counts]
    others.sort(key=_order if request.num_gpus is None else lambda one: -one.request_rate_per_s)
    return tuple(
        RunnerUp(
            selection=other.selection,
            options=dict.fromkeys(other.selection.counts, other.decode),
            measured=True,
        )
        for other in others[:RUNNERS_UP]
    )


def _no_fleet(request: ServingRequest, board: Board) -> ServingInfeasible:
    """Options exist, but not enough of them fit the fleet: overload, or limits that break under load."""
    best = select_fleet(
        board.options, board.capacities_per_s, most_gpus=request.num_gpus or MOST_GPUS, rate_per_s=None
    )
    capacity = best.rate_per_s if best is not None else 0.0
    bounded = "" if best is not None and best.counts.keys() <= board.measured else "at most "
    job, size = request.job, request.num_gpus or MOST_GPUS
    asked = (
        f"{job.request_rate_per_s:.3g} requests/s"
        if job.request_rate_per_s
        else f"{job.concurrency} concurrent requests"
    )
    return ServingInfeasible(
        what=f"{size} × {request.gpu} cannot serve {asked} within the limits",
        cause=f"their capacity within the limits is {bounded}{capacity:.3g} requests/s",
        fix="use more GPUs, relax --ttft or --tpot, or ask for a lower rate",
        capacity_requests_per_s=capacity,
    )


def replica_capacity_per_s(cal: Calibration, plan: ServingPlan, hierarchy: Hierarchy) -> float:
    """Requests per second one replica of an aggregated plan serves within its limits."""
    option = build_option(
        cal, deployment_of(plan.request, hierarchy, plan.weights, plan.decode.layout), plan.request.job
    )
    if isinstance(option, Rejected) or plan.prefill is not None:
        raise InputError(
            what="autoscaling needs replicas that serve whole requests",
            cause=f"the plan is {plan.mode}",
            fix="use --mode aggregated",
        )
    return best_chunk(option, most_per_s=rate_bound_per_s(option))[1]
