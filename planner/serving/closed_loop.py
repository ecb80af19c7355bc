"""The search for a fleet under a constant number of requests in flight.

Every replica that may be better than the best so far is simulated; the others are dismissed by their bound:
N requests in flight that stay at least T seconds are at most N/T a second (Little).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from planner.serving.alternatives import RUNNERS_UP, FleetRunnerUp
from planner.serving.board import RESOLUTION, Board
from planner.serving.closed_pools import certified_closed, search_closed_pools
from planner.serving.evidence import unmeasured_in
from planner.serving.fleet import FleetRun, run_closed_unless_late
from planner.serving.fleet_choice import MOST_FLEET_GPUS, room_for
from planner.serving.plan import ServingOptimality, ServingRequest
from planner.serving.replica import WHOLE, Option, least_latency, with_chunks
from planner.serving.started import held_by

_NO_BETTER = "bound no better than the best"


def search_closed(request: ServingRequest, board: Board) -> tuple[FleetRun, ServingOptimality] | None:
    """Constant concurrency: the smallest fleet that keeps the limits, or the fastest of a given size.

    Of replicas of whole requests where these may serve, else of two pools.
    """
    if "aggregated" not in request.modes:
        return search_closed_pools(request, board)
    stay_s = {i: _least_stay_s(option) for i, option in enumerate(board.options) if option.phase == WHOLE}
    find = _smallest if request.num_gpus is None else _fastest
    best = find(request, board, stay_s)
    if best is None or request.num_gpus is None:
        return certified_closed(request, board, best)
    roomier = _of_longer_requests(request, board, best)
    return certified_closed(request, board, roomier, fastest_per_s=best.request_rate_per_s)


def _of_longer_requests(request: ServingRequest, board: Board, best: FleetRun) -> FleetRun:
    """The best run, or one as fast as can be told that takes longer requests, up to the model's context.

    It has no axis beside those of the best that no measured run has.
    """

    def longest(run: FleetRun) -> int:
        return held_by(request, run.decode).longest_tokens

    if longest(best) >= request.model.max_sequence_length:
        return best
    least_per_s, unmeasured = best.request_rate_per_s * (1 - RESOLUTION), set(unmeasured_in(best))
    as_fast = [
        run
        for run in board.runs.values()
        if run.request_rate_per_s >= least_per_s and set(unmeasured_in(run)) <= unmeasured
    ]
    return max([best, *as_fast], key=lambda run: (longest(run), run.request_rate_per_s))


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


def _fastest(request: ServingRequest, board: Board, stay_s: Mapping[int, float]) -> FleetRun | None:
    """The fleet of a given size with most requests a second: the option that may be fastest first."""
    concurrency, most = request.job.concurrency or 1, request.num_gpus or 0
    best: FleetRun | None = None
    for i in sorted(stay_s, key=lambda i: (stay_s[i], i)):
        if best is not None and concurrency / stay_s[i] <= best.request_rate_per_s:
            board.pruned[_NO_BETTER] += 1
            continue
        fitting = room_for(board.options[i].num_gpus, most, board.host_gpus)
        run = _kept_run(board, i, min(fitting, concurrency), concurrency)
        if run is not None:
            _remember(board, i, run)
            if best is None or run.request_rate_per_s > best.request_rate_per_s:
                best = run
    return best


def _smallest(request: ServingRequest, board: Board, stay_s: Mapping[int, float]) -> FleetRun | None:
    """The fleet of fewest GPUs that keeps the limits; of equals the one whose requests may stay least.

    One option of the smallest replicas comes first: its fleet bounds what larger replicas are tried for. The
    others follow by the least time that a request stays. The fewest replicas of an option are bisected for:
    fewer requests in flight are served no worse.
    """
    concurrency = request.job.concurrency or 1
    shares = _shares(concurrency, MOST_FLEET_GPUS)
    order = {i: place for place, i in enumerate(sorted(stay_s, key=lambda i: (stay_s[i], i)))}
    best: FleetRun | None = None
    best_place = -1
    smallest = min(order, key=lambda i: (board.options[i].num_gpus, order[i]), default=None)
    for i in sorted(order, key=lambda i: (i != smallest, order[i])):
        gpus = board.options[i].num_gpus
        most = MOST_FLEET_GPUS if best is None else best.num_gpus - (order[i] > best_place)
        counts = shares[: bisect_right(shares, most // gpus)]
        if not counts:
            board.pruned[_NO_BETTER] += 1
            continue
        run = _fewest_kept(board, i, counts, concurrency)
        if run is not None:
            best, best_place = run, order[i]
    if best is not None:
        _remember(board, next(iter(best.selection.counts)), best)
    return best


def _fewest_kept(board: Board, i: int, counts: Sequence[int], concurrency: int) -> FleetRun | None:
    """The run of the fewest of these numbers of replicas that keeps the limits; None when the most do not."""
    run = _kept_run(board, i, counts[-1], concurrency)
    failed, served = -1, len(counts) - 1
    while run is not None and served - failed > 1:
        middle = (failed + served) // 2
        tried = _kept_run(board, i, counts[middle], concurrency)
        run, failed, served = (run, middle, served) if tried is None else (tried, failed, middle)
    return run


def _kept_run(board: Board, i: int, count: int, concurrency: int) -> FleetRun | None:
    """The fastest run of so many replicas over the chunk sizes that keep the limits."""
    board.simulated += 1
    options = with_chunks(board.options[i])
    runs = [
        run_closed_unless_late(option, count, concurrency, which=i, loops=board.loops[i])
        for option in options
    ]
    kept = (run for run in runs if run is not None)
    return max(kept, key=lambda run: run.request_rate_per_s, default=None)


def _shares(concurrency: int, most: int) -> list[int]:
    """Numbers of replicas that may be best: of those whose fullest one holds as many requests, the fewest.

    >>> _shares(10, 99), _shares(1_000_000, 4)
    ([1, 2, 3, 4, 5, 10], [1, 2, 3, 4])
    """
    counts = range(1, min(concurrency, most) + 1)
    return sorted({-(-concurrency // (-(-concurrency // count))) for count in counts})


def _least_stay_s(option: Option) -> float:
    """Least mean time that requests spend in a replica."""
    budgets = tuple(rules.token_budget for rules in option.schedulers)
    least = least_latency(option.times, option.job, option.deployment.stack, budgets, share=0.0)
    return least.end_to_end_s


def closed_runners_up(request: ServingRequest, board: Board, run: FleetRun) -> tuple[FleetRunnerUp, ...]:
    """The next best of the simulated fleets of a closed loop."""
    if run.prefill is not None:
        others = [other for other in board.pairs.values() if other is not None and other is not run]
    else:
        others = [other for i, other in board.runs.items() if i not in run.selection.counts]
    others.sort(key=_order if request.num_gpus is None else lambda run: -run.request_rate_per_s)
    return tuple(
        FleetRunnerUp(
            selection=other.selection,
            options=dict(
                zip(
                    other.selection.counts,
                    [pool for pool in (other.prefill, other.decode) if pool is not None],
                    strict=True,
                )
            ),
            measured=True,
        )
        for other in others[:RUNNERS_UP]
    )
