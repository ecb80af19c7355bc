"""The search for a fleet.

Enumerate replicas, bound them, let the program choose, simulate what it chose, until it stands.

Capacities start as analytic upper bounds. The program picks the best fleet under them; its kinds of replica
are simulated and their capacities replaced by what the simulation found; the program is solved again. When
the chosen kinds have all been simulated, no other fleet can be better by more than the certificate's gap: it
is the program's optimum under ceilings, at which replicas were seen to fail or which no schedule can pass.
Among fleets at one bill the measured one that keeps its limits with the highest chance is proposed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from costmodel.job import ServingJob
from costmodel.kernels.tables import Calibration
from costmodel.serving.deployment import Weights, cache_dtype_of
from costmodel.serving.engine import ServingStack, serving_stack, serving_stacks
from costmodel.serving.formats import format_of, starts_on
from costmodel.serving.simulation.load import Load
from planner.serving.alternatives import runners_up, surest
from planner.serving.answer import plan_of_fleet
from planner.serving.board import (
    RESOLUTION,
    Board,
    enumerate_options,
    has_fleet,
    learn,
    learn_share,
    lower,
    phases_of,
)
from planner.serving.capacity import best_chunk
from planner.serving.closed_loop import closed_runners_up, search_closed
from planner.serving.evidence import best_measured
from planner.serving.fleet import FleetRun, drawn_anew, run_fleet
from planner.serving.fleet_choice import (
    Selection,
    most_useful,
    select_fleet,
    served_per_s,
)
from planner.serving.headroom import at_rate, broken_at, fleet_label, headroom_of
from planner.serving.infeasible import fitting_weights, infeasible_fleet, serves_weights
from planner.serving.plan import ServingInfeasible, ServingOptimality, ServingPlan, ServingRequest
from planner.serving.replica import Rejected, build_option, rate_bound_per_s
from planner.serving.space import deployment_of
from topology.base.errors import InputError
from topology.base.units import format_seconds, three_digits
from topology.fabric.hierarchy import Hierarchy
from topology.hardware.datasheets import generation_of
from topology.hardware.gpu import Gpu

CertifiedFleet = tuple[FleetRun, ServingOptimality]


def search_serving(
    cal: Calibration, request: ServingRequest, hierarchy: Hierarchy, *, trace: Load | None = None
) -> ServingPlan | ServingInfeasible:
    """Find the fleet for a request on these GPUs, with a certificate, or say why there is none."""
    started = time.perf_counter()
    check_request(request, hierarchy.gpu)
    board = enumerate_options(cal, request, hierarchy)
    best = best_run(request, board, trace)
    if best is None:
        missed = with_empty_server(cal, miss(cal, request, hierarchy, board, trace), request, hierarchy)
        return replace(missed, fix=", or ".join([missed.fix, *ways_out(cal, request, hierarchy, trace)]))
    return finished_plan(cal, request, hierarchy, board, best, trace, started)


def ways_out(
    cal: Calibration,
    request: ServingRequest,
    hierarchy: Hierarchy,
    trace: Load | None = None,
    failed: Collection[Weights] = (),
) -> tuple[str, ...]:
    """Flags with which a question that no fleet answers is answered: each was tried.

    Narrower weights that fit, but those that are known to have failed, and replicas of whole requests where
    only two pools were asked for.
    """

    def serves(change: ServingRequest) -> bool:
        return best_run(change, enumerate_options(cal, change, hierarchy), trace) is not None

    modes = () if "aggregated" in request.modes else ("aggregated",)
    narrower = [precision for precision in fitting_weights(request, hierarchy) if precision not in failed]
    weights = [precision for precision in narrower if serves(replace(request, weights=(precision,)))]
    return (
        *(f"--mode {mode}" for mode in modes if serves(replace(request, modes=("aggregated",)))),
        *([f"--weights {' or '.join(weights)}"] if weights else []),
    )


def best_run(request: ServingRequest, board: Board, trace: Load | None = None) -> CertifiedFleet | None:
    """The best fleet of a request's modes and its certificate; None when there is none."""
    if not has_fleet(board, request.modes):
        return None
    if is_closed(request):
        return search_closed(request, board)
    run = _smallest_or_fastest(request, board, trace)
    return None if run is None else (run, _certified(request, board, run, trace))


def is_closed(request: ServingRequest) -> bool:
    """Whether the load is a constant number of requests in flight."""
    return request.job.concurrency is not None and request.job.request_rate_per_s is None


def finished_plan(
    cal: Calibration,
    request: ServingRequest,
    hierarchy: Hierarchy,
    board: Board,
    fleet: CertifiedFleet,
    trace: Load | None,
    started_s: float,
) -> ServingPlan:
    """The plan of the best fleet, or of its surest equal; who came next, and its headroom."""
    run, optimality = fleet
    closed = is_closed(request)
    if closed:
        losers = closed_runners_up(request, board, run)
    else:
        equals: tuple[FleetRun, ...] = ()
        if request.job.request_rate_per_s is not None:
            run, equals = surest(request, board, run, trace)
        optimality = _certified(request, board, run, trace)
        losers = runners_up(request, board, run, equals)

    def best_of(part: Board) -> FleetRun | None:
        best = best_run(request, part, trace)
        return None if best is None else best[0]

    measured = best_measured(run, board, best_of)
    intervals = drawn_anew(run) if not closed and trace is None else {}
    sized = request.num_gpus is not None and not closed and trace is None
    return plan_of_fleet(
        cal,
        request,
        hierarchy,
        run,
        optimality=optimality,
        runners_up=losers,
        measured=measured,
        headroom=headroom_of(run) if sized else None,
        drawn_anew=intervals,
        search_time_s=time.perf_counter() - started_s,
    )


def _certified(request: ServingRequest, board: Board, run: FleetRun, trace: Load | None) -> ServingOptimality:
    """The certificate of an open load's fleet."""
    return fleet_certificate(request, board, run.selection, traced=trace is not None)


def miss(
    cal: Calibration, request: ServingRequest, hierarchy: Hierarchy, board: Board, trace: Load | None
) -> ServingInfeasible:
    """Why there is no fleet: no option, or none that keeps the limits."""
    if not has_fleet(board, request.modes):
        return infeasible_fleet(request, hierarchy, board.rejected)
    return _no_fleet(request, board, None if trace else _fastest(cal, request, hierarchy))


def with_empty_server(
    cal: Calibration, missed: ServingInfeasible, request: ServingRequest, hierarchy: Hierarchy
) -> ServingInfeasible:
    """The miss with what a request alone is simulated to meet, where limits are in the way."""
    job = request.job
    limits = (job.ttft_s, job.tpot_s, job.end_to_end_s)
    if missed.held is not None or missed.capacity_is_served or all(limit is None for limit in limits):
        return missed
    if "aggregated" not in request.modes:
        return missed
    alone = replace(job, ttft_s=None, tpot_s=None, end_to_end_s=None, request_rate_per_s=None, concurrency=1)
    gpus = request.num_gpus or hierarchy.gpus_per_host
    free = replace(request, job=alone, num_gpus=gpus, modes=("aggregated",), spare=0)
    best = best_run(free, enumerate_options(cal, free, hierarchy))
    if best is None:
        return missed
    run, share = best[0], job.percentile
    first, whole = (
        (float(np.median(times)), float(np.percentile(times, share)))
        for times in (run.simulation.ttft_s, run.simulation.end_to_end_s)
    )
    words = f"first token {format_seconds(first[0])}, at p{share:g} {format_seconds(first[1])}"
    if job.output_tokens > 1:
        each_s = run.simulation.tpot_s[~np.isnan(run.simulation.tpot_s)]
        words += f"; each further one {format_seconds(float(np.median(each_s)))}"
    if job.end_to_end_s is not None:
        words += f"; the whole {format_seconds(whole[0])}, at p{share:g} {format_seconds(whole[1])}"
    cause = f"{missed.cause}; alone on {fleet_label(run)} a request is simulated to have {words}"
    late = [
        f"--{name} to {format_seconds(alone_s)}"
        for name, limit_s, alone_s in (("ttft", job.ttft_s, first[1]), ("e2e", job.end_to_end_s, whole[1]))
        if limit_s is not None and alone_s > limit_s
    ]
    if not late:
        return replace(missed, cause=cause)
    fix = f"relax {' and '.join(late)}, or use faster GPUs or narrower weights"
    fix += f": a lower rate does not help {fleet_label(run)}, which is late alone"
    return replace(missed, cause=cause, fix=fix)


def check_request(request: ServingRequest, gpu: Gpu) -> None:
    """Refuse lengths beyond the context, loads that are none, and precisions the GPU lacks."""
    job, model = request.job, request.model
    input_tokens, output_tokens = (
        job.input_tokens_p99 or job.input_tokens,
        job.output_tokens_p99 or job.output_tokens,
    )
    longest = input_tokens + output_tokens
    if longest > model.max_sequence_length:
        which = " at their 99th percentile" if longest > job.input_tokens + job.output_tokens else ""
        raise InputError(
            what="requests are longer than the model's context",
            cause=f"{input_tokens} input + {output_tokens} output = {longest} tokens{which}, {model.name} "
            f"holds {model.max_sequence_length}",
            fix=f"give --input and --output at most {model.max_sequence_length} together",
        )
    engine = serving_stack(request.engine)
    others = [name for name, stack in serving_stacks().items() if _runs(stack, gpu, request)]
    instead = f"--engine {' or '.join(others)}, " if others else ""
    if generation_of(gpu).maker not in engine.makers:
        raise InputError(
            what=f"{engine.name} does not run on {gpu.name}",
            cause=f"its GPUs are of {', '.join(engine.makers)}, this one is of {generation_of(gpu).maker}",
            fix=f"use {instead or 'another engine, '}or another GPU",
        )
    if not starts_on(engine, gpu):
        raise InputError(
            what=f"{engine.name} does not run on {gpu.name}",
            cause=f"it needs compute capability {engine.least_capability}, and {gpu.name} has "
            f"{generation_of(gpu).compute_capability}",
            fix=f"use {instead or 'another engine, '}or another GPU",
        )
    only = cache_dtype_of(engine, model, maker=generation_of(gpu).maker)
    if only is not None and job.kv_dtype != only:
        raise InputError(
            what=f"{engine.name} keeps the cache of {model.name} in {only} on {gpu.name}",
            cause=f"--kv {job.kv_dtype}: its layers of compressed keys take no other format there",
            fix=f"leave --kv out, or give --kv {only}",
        )
    for weights in request.weights:
        if not serves_weights(engine, gpu, weights, model):
            name = format_of(weights, model, gpu)
            raise InputError(
                what=f"{gpu.name} cannot serve {weights} weights",
                cause=f"{gpu.name} multiplies in {', '.join(sorted(gpu.peak_flop_per_s))}, not in {name}, "
                f"and {engine.name} does not widen {name} weights there",
                fix=f"use {instead}weights of another format, or another GPU",
            )


def _runs(engine: ServingStack, gpu: Gpu, request: ServingRequest) -> bool:
    """Whether an engine runs on the GPU and serves all weights of a request there."""
    return starts_on(engine, gpu) and all(
        serves_weights(engine, gpu, weights, request.model) for weights in request.weights
    )


def _smallest_or_fastest(request: ServingRequest, board: Board, trace: Load | None) -> FleetRun | None:
    """Fewest GPUs for a rate, or most requests a second of a given fleet."""
    rate = request.job.request_rate_per_s
    best_per_s = 0.0
    alone_per_s: dict[tuple[tuple[int, int], ...], float] = {}  # of fleets that break a limit even so
    while True:
        selection = best_selection(request, board, board.capacities_per_s)
        if selection is None or selection.rate_per_s <= 0:
            return None
        known = known_selection(request, board, rate) if rate is not None else None
        stands = known is not None and _paid(known) <= _paid(selection)
        selection = known if known is not None and stands else selection
        unknown = [] if stands else [i for i in selection.counts if i not in board.exact]
        fleet = tuple(selection.counts.items())
        if not unknown and fleet in alone_per_s:
            if selection.rate_per_s < alone_per_s[fleet]:
                return None
            lower(board, selection, selection.rate_per_s if rate is None else rate)
            continue
        if not unknown:
            run = run_fleet(board.options, selection, rate, trace)
            if run.kept:
                return run
            if trace is None and rate is None and request.job.percentile < 100:
                least_per_s = rate_alone_per_s(run, request.job.percentile)
                if run_fleet(board.options, selection, least_per_s).limits:
                    alone_per_s[fleet] = least_per_s
            lower(board, selection, run.request_rate_per_s)
            continue
        if rate is not None:
            i = min(unknown, key=lambda i: i in board.served)
            learn_share(board, i, rate, most=_most_useful(request, board, i, known, rate))
            continue
        for i in unknown:
            learn(board, i, needed_per_s=best_per_s / selection.counts[i])
        best_per_s = max(best_per_s, served_per_s(board.options, board.capacities_per_s, selection.counts))


def rate_alone_per_s(run: FleetRun, percentile: float) -> float:
    """Requests a second of which fewer meet another than a percentile lets go by.

    A limit that breaks at this rate is broken by requests that are alone, and so breaks at any rate.
    """
    return (1 - percentile / 100) / 2 / float(run.simulation.end_to_end_s.mean())


def best_selection(
    request: ServingRequest, board: Board, capacities_per_s: Sequence[float]
) -> Selection | None:
    """The best fleet of the board's options at these capacities, in the modes of the request."""
    phases = phases_of(request.modes)
    return select_fleet(
        board.options,
        [
            rate if option.phase in phases else 0.0
            for option, rate in zip(board.options, capacities_per_s, strict=True)
        ],
        most_gpus=board.most_gpus,
        rate_per_s=request.job.request_rate_per_s,
        simulated=board.exact,
        machine_gpus=request.machine_gpus,
        host_gpus=board.host_gpus,
        spare=request.spare,
    )


def known_selection(request: ServingRequest, board: Board, rate_per_s: float) -> Selection | None:
    """The best fleet of replicas that were all seen to serve their share of the rate."""
    if not board.served:
        return None
    capacities_per_s = [0.0] * len(board.options)
    for i, count in board.served.items():
        capacities_per_s[i] = rate_per_s / count
    return best_selection(request, board, capacities_per_s)


def _paid(selection: Selection) -> tuple[int, int]:
    """What is minimised for a rate."""
    return selection.machines, selection.num_gpus


def _most_useful(
    request: ServingRequest, board: Board, i: int, known: Selection | None, rate_per_s: float
) -> int | None:
    """Replicas of option i above which a fleet is no better than the one that is known; None without one."""
    if known is None:
        return None
    return most_useful(
        board.options,
        board.capacities_per_s,
        i,
        known,
        rate_per_s=rate_per_s,
        machine_gpus=request.machine_gpus,
        spare=request.spare,
    )


def fleet_certificate(
    request: ServingRequest, board: Board, selection: Selection, *, traced: bool = False
) -> ServingOptimality:
    """What was proven: the program's optimum when every option counts at its ceiling.

    Where a fleet's size is given, capacities that were cut because a whole fleet broke a limit prove nothing
    of the fleets beside it; for a rate ceilings are bounds, or shares at which replicas failed by themselves.
    Under a trace only the bounds are ceilings: replicas were seen to fail under another load.
    """
    rate = request.job.request_rate_per_s
    ceilings = [rate_bound_per_s(option) for option in board.options] if traced else board.ceilings_per_s
    best = best_selection(request, board, ceilings)
    if rate is None:
        value = selection.rate_per_s
        bound = max(best.rate_per_s if best is not None else 0.0, value)
        gap = bound / value - 1
    else:
        value, least = _paid_for(request, selection), _paid_for(request, best or selection)
        bound = min(least, value)
        gap = 1 - bound / value
    told_apart = RESOLUTION / (1 - RESOLUTION) + 1e-6 if rate is None else 0.0
    bounds_stand = rate is not None or not board.lowered & set(phases_of(request.modes))
    proven = gap <= told_apart and bounds_stand
    return ServingOptimality(
        status="proven" if proven else "best-found",
        bound=bound,
        value=value,
        enumerated=board.enumerated,
        pruned=dict(board.pruned),
        simulated=board.simulated,
        gap=gap,
    )


def _paid_for(request: ServingRequest, selection: Selection) -> float:
    """What is minimised for a rate: whole machines where they are rented, else GPUs."""
    return float(selection.num_gpus if request.offer is None else selection.machines)


def _fastest(cal: Calibration, request: ServingRequest, hierarchy: Hierarchy) -> FleetRun | None:
    """What a fleet of a given size serves at most: the same question without its rate."""
    if request.num_gpus is None or request.job.request_rate_per_s is None:
        return None
    free = replace(request, job=replace(request.job, request_rate_per_s=None))
    return _smallest_or_fastest(free, enumerate_options(cal, free, hierarchy), None)


def _no_fleet(request: ServingRequest, board: Board, fastest: FleetRun | None) -> ServingInfeasible:
    """Options exist, but not enough of them fit the fleet: overload, or limits that break under load."""
    job = request.job
    if fastest is not None and job.request_rate_per_s is not None:
        capacity = min(fastest.request_rate_per_s, job.request_rate_per_s)
        cause = f"they serve {three_digits(capacity)}/s ({fleet_label(fastest)})"
        what_breaks = broken_at(at_rate(fastest, job.request_rate_per_s))
        cause += f"; at {three_digits(job.request_rate_per_s)}/s {what_breaks}" if what_breaks else ""
    else:
        capacity, measured = _ceiling_per_s(request, board)
        most = f"{'' if measured else 'at most '}{three_digits(capacity)} requests/s"
        bound = "" if measured else ", a bound: nothing was seen to serve it"
        kept = " within the limits" if _limited(job) else ""
        spared = f" with {request.spare} lost" if request.spare else ""
        cause = f"their capacity{kept}{spared} is {most}{bound}"
        if capacity and not job.request_rate_per_s and not job.concurrency:  # else it would be the answer
            cause = f"each worker alone carries its part of {most}; together they keep the limits at no load"
    size = f"{request.num_gpus}" if request.num_gpus else f"up to {board.most_gpus}"
    asked = (
        f"{three_digits(job.request_rate_per_s)} requests/s"
        if job.request_rate_per_s
        else f"{job.concurrency} concurrent requests"
        if job.concurrency
        else "any load"
    )
    return ServingInfeasible(
        what=f"{size} × {request.gpu} cannot serve {asked}{' within the limits' if _limited(job) else ''}",
        cause=cause,
        fix=_ways_out(job, spare=request.spare),
        capacity_requests_per_s=capacity,
        capacity_is_served=fastest is not None,
    )


def _ways_out(job: ServingJob, *, spare: int) -> str:
    """What may be asked instead: other limits only where some were given."""
    relaxed = " or ".join(_limited(job))
    less = "fewer in flight" if job.concurrency else "a lower rate"
    ways = ["use more GPUs", *([f"relax {relaxed}"] if relaxed else []), f"ask for {less}"]
    ways[1:1] = ["spare fewer (--spare)"] if spare else []
    return f"{', '.join(ways[:-1])}{',' if len(ways) > 2 else ''} or {ways[-1]}"


def _limited(job: ServingJob) -> list[str]:
    """Flags of the limits that were given."""
    limits = {"--ttft": job.ttft_s, "--tpot": job.tpot_s, "--e2e": job.end_to_end_s}
    return [flag for flag, limit in limits.items() if limit is not None]


def _ceiling_per_s(request: ServingRequest, board: Board) -> tuple[float, bool]:
    """What no fleet of the board is found to serve more of, and whether it was simulated."""
    best = select_fleet(
        board.options,
        board.ceilings_per_s,
        most_gpus=board.most_gpus,
        rate_per_s=None,
        host_gpus=board.host_gpus,
        spare=request.spare,
    )
    return (0.0, False) if best is None else (best.rate_per_s, best.counts.keys() <= board.measured)


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
