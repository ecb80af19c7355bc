"""The search for a fleet under a constant number of requests in flight.

Every replica that may be better than the best so far is simulated; the others are dismissed by their bound.
"""

from __future__ import annotations

from planner.serving.alternatives import RUNNERS_UP, RunnerUp
from planner.serving.board import Board
from planner.serving.fleet import FleetRun, run_closed
from planner.serving.plan import ServingOptimality, ServingRequest
from planner.serving.replica import WHOLE, Option, fastest_tpot_s, fastest_ttft_s, with_chunks


def search_closed(request: ServingRequest, board: Board) -> tuple[FleetRun, ServingOptimality] | None:
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


def closed_runners_up(request: ServingRequest, board: Board, run: FleetRun) -> tuple[RunnerUp, ...]:
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
