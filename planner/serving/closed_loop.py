"""The search for a fleet under a constant number of requests in flight.

Every replica that may be better than the best so far is simulated; the others are dismissed by their bound:
N requests in flight that stay at least T seconds are at most N/T a second (Little).
"""

from __future__ import annotations

from planner.serving.alternatives import RUNNERS_UP, FleetRunnerUp
from planner.serving.board import Board
from planner.serving.fleet import FleetRun, run_closed
from planner.serving.integer_program import MOST_FLEET_GPUS
from planner.serving.plan import ServingOptimality, ServingRequest
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY, WHOLE, Option, least_latency, with_chunks


def search_closed(request: ServingRequest, board: Board) -> tuple[FleetRun, ServingOptimality] | None:
    """Constant concurrency: the smallest fleet that keeps the limits, or the fastest of a given size."""
    concurrency = request.job.concurrency or 1
    best: FleetRun | None = None
    for count, i in _closed_order(request, board):
        bound = concurrency / _least_stay_s(board.options[i])
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
    sized = request.num_gpus is not None
    value = best.request_rate_per_s if sized else float(best.num_gpus)
    bound = _bound_with_pools(request, board, value)
    gap = bound / value - 1 if sized else 1 - bound / value
    return best, ServingOptimality(
        status="best-found" if gap > 0 else "proven",
        bound=bound,
        value=value,
        enumerated=board.enumerated,
        pruned=dict(board.pruned),
        simulated=board.simulated,
        gap=gap,
    )


def _bound_with_pools(request: ServingRequest, board: Board, value: float) -> float:
    """The value, or what the best pair of pools might reach: pairs are not simulated in a closed loop."""
    pairs = [[one for one in board.options if one.phase == phase] for phase in (PROMPT_ONLY, OUTPUT_ONLY)]
    if not all(pairs):
        return value
    if request.num_gpus is None:
        return min(value, float(sum(min(one.num_gpus for one in pool) for pool in pairs)))
    most = request.num_gpus - sum(min(one.num_gpus for one in pool) for pool in pairs)
    least_s = min(_least_stay_s(one) for pool in pairs for one in pool)
    return max(value, (request.job.concurrency or 1) / least_s) if most >= 0 else value


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
    stay_s = {i: _least_stay_s(board.options[i]) for i in whole}
    concurrency = request.job.concurrency or 1
    if request.num_gpus is not None:
        pairs = [(min(request.num_gpus // board.options[i].num_gpus, concurrency), i) for i in whole]
        return sorted(pairs, key=lambda pair: (stay_s[pair[1]], pair[1]))
    pairs = [
        (count, i)
        for i in whole
        for count in _shares(concurrency)
        if count * board.options[i].num_gpus <= MOST_FLEET_GPUS
    ]
    return sorted(
        pairs, key=lambda pair: (pair[0] * board.options[pair[1]].num_gpus, stay_s[pair[1]], pair[1])
    )


def _shares(concurrency: int) -> list[int]:
    """Numbers of replicas that may be best: of those whose fullest one holds as many requests, the fewest.

    >>> _shares(10)
    [1, 2, 3, 4, 5, 10]
    """
    return sorted({-(-concurrency // (-(-concurrency // count))) for count in range(1, concurrency + 1)})


def _least_stay_s(option: Option) -> float:
    """Least mean time that requests spend in a replica."""
    budgets = tuple(rules.token_budget for rules in option.schedulers)
    least = least_latency(option.times, option.job, option.deployment.stack, budgets, share=0.0)
    return least.end_to_end_s


def closed_runners_up(request: ServingRequest, board: Board, run: FleetRun) -> tuple[FleetRunnerUp, ...]:
    """The next best of the simulated fleets of a closed loop."""
    others = [other for i, other in board.runs.items() if i not in run.selection.counts]
    others.sort(key=_order if request.num_gpus is None else lambda one: -one.request_rate_per_s)
    return tuple(
        FleetRunnerUp(
            selection=other.selection,
            options=dict.fromkeys(other.selection.counts, other.decode),
            measured=True,
        )
        for other in others[:RUNNERS_UP]
    )
