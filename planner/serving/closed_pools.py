"""The search for two pools under a constant number of requests in flight.

Pairs of kinds are put in the order of what they should serve: the prefill pool at its bound, or the decode
pool with its share of the requests in each worker's batch, whichever is less. The first of that order are
simulated. Nothing is proven of the others but their bound (Little, and that of the scarcer pool).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from planner.serving.board import Board
from planner.serving.capacity import FEWEST_FILLED
from planner.serving.fleet import FleetRun, run_closed_pools_unless_late
from planner.serving.fleet_choice import machines_for
from planner.serving.plan import ServingOptimality, ServingRequest
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY, Option, least_latency, rate_bound_per_s

MOST_SIMULATED = 24
"""Pairs of one size of fleet that are simulated."""
FEWER_SIMULATED = 3
"""The same while the size itself is looked for, of more GPUs than `COARSE`."""
MOST_REQUESTS = 48_000
"""Requests that are simulated of one size of fleet: pairs with many in flight are fewer, three at least."""
COARSE = 16
"""Part of a fleet to which its size is looked for: smaller steps change a bill by less than the band."""
LIKELY = 0.8
"""Share of the best rate below which an expected rate is not simulated: expectations miss by less."""
BUSY = 0.9
"""Share of the time from which a prefill pool is what two pools are bound by."""
MORE_PROMPTS = (1.0, 1.5, 2.0)
"""Times the prefill workers that balance the pools: a limit on the first token may take more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPair:
    """Two pools: their kinds by place on the board, their workers, and what they should serve a second."""

    prefill: int
    prefill_workers: int
    decode: int
    decode_workers: int
    expected_per_s: float

    @property
    def counts(self) -> dict[int, int]:
        """Workers by kind."""
        return {self.prefill: self.prefill_workers, self.decode: self.decode_workers}


def search_closed_pools(request: ServingRequest, board: Board) -> tuple[FleetRun, ServingOptimality] | None:
    """The fastest pair of pools on the given GPUs that keeps the limits, or the smallest that does."""
    sized = request.num_gpus is not None
    best = _fastest(request, board, request.num_gpus or 0) if sized else _smallest(request, board)
    return certified_closed(request, board, best)


def certified_closed(
    request: ServingRequest, board: Board, best: FleetRun | None, *, fastest_per_s: float = 0.0
) -> tuple[FleetRun, ServingOptimality] | None:
    """The best fleet of a closed loop with its certificate; None where there is none.

    `fastest_per_s` is what one serves that was passed over for its longer requests, where that is more.
    """
    if best is None:
        return None
    sized = request.num_gpus is not None
    value = best.request_rate_per_s if sized else float(best.num_gpus)
    bound = pools_bound(request, board, max(value, fastest_per_s) if sized else value)
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


def pools_bound(request: ServingRequest, board: Board, value: float) -> float:
    """The value, or what the best pair might reach: most requests a second, or fewest GPUs.

    N GPUs serve at most N·a·b/(g·b + h·a) of pools of a and b requests a second on g and h GPUs, and c in
    flight that stay T at least at most c/T.
    """
    prompts, outputs = _kinds(board)
    if not prompts or not outputs:
        return value
    if request.num_gpus is None:
        return min(
            value, float(sum(min(board.options[i].num_gpus for i in pool) for pool in (prompts, outputs)))
        )
    concurrency, most = request.job.concurrency or 1, value
    for i in prompts:
        for j in outputs:
            first, other = board.options[i], board.options[j]
            if first.num_gpus + other.num_gpus <= request.num_gpus:
                a, b = rate_bound_per_s(first), rate_bound_per_s(other)
                shared = request.num_gpus * a * b / (first.num_gpus * b + other.num_gpus * a)
                most = max(most, min(shared, concurrency / _least_stay_s(first, other)))
    return most


def _kinds(board: Board) -> tuple[list[int], list[int]]:
    """Places of the kinds that compute prompts, and of those that compute outputs."""
    places = range(len(board.options))
    prompts = [i for i in places if board.options[i].phase == PROMPT_ONLY]
    return prompts, [i for i in places if board.options[i].phase == OUTPUT_ONLY]


def _least_stay_s(prefill: Option, decode: Option) -> float:
    """Least seconds that a request spends in both pools."""
    return _first_token_s(prefill) + (prefill.job.output_tokens - 1) * _token_s(decode, 1)


def _first_token_s(prefill: Option) -> float:
    """Least mean seconds to a first token."""
    budgets = tuple(rules.token_budget for rules in prefill.schedulers)
    return least_latency(prefill.times, prefill.job, prefill.deployment.stack, budgets, share=0.0).ttft_s


def _token_s(decode: Option, batch: int) -> float:
    """Seconds per output token of a batch half-way through its outputs."""
    context = decode.job.input_tokens + decode.job.output_tokens / 2
    return decode.times.decode_s(batch, batch * context) / decode.times.tokens_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillShort:
    """Two pools whose prompts wait: the share of time that prefill workers compute, and how many would do."""

    busy: float
    prefill_workers: int
    decode_workers: int

    @property
    def words(self) -> str:
        """The ratio of pools at which prompts no longer wait."""
        decode = f"{self.decode_workers} decode worker{'s' * (self.decode_workers > 1)}"
        return f"{self.prefill_workers} prefill to {decode} would keep up"


def short_of_prefill(run: FleetRun) -> PrefillShort | None:
    """What the prefill pool lacks where its workers compute nearly all the time; None where it does not.

    Workers of it serve x requests a second each when busy; decode workers with all requests in flight y. All
    that are sent openly need as many of either as their rate takes.
    """
    busy = run.simulation.prefill_utilisation
    if run.prefill is None or busy < BUSY:
        return None
    each = len(run.simulation.finish_s) / run.simulation.prefill_work_s / run.prefill_workers
    in_flight = run.decode.job.concurrency or run.decode.rules.max_batch * run.decode_workers
    batch = _batch(run.decode, run.decode_workers, in_flight)
    outputs_s = max(run.decode.job.output_tokens - 1, 1) * _token_s(run.decode, batch)
    sent = run.decode.job.request_rate_per_s
    wanted = sent or batch * run.decode_workers / outputs_s
    decode_workers = max(ceil(sent * outputs_s / batch), run.decode_workers) if sent else run.decode_workers
    return PrefillShort(
        busy=busy,
        prefill_workers=max(ceil(wanted / each), run.prefill_workers + 1),
        decode_workers=decode_workers,
    )


def expected_per_s(pools: tuple[tuple[Option, int], tuple[Option, int]], concurrency: int) -> float:
    """Requests a second that two pools should serve: what the scarcer one does with all of them."""
    (prefill, prefill_workers), (decode, decode_workers) = pools
    batch = _batch(decode, decode_workers, concurrency)
    stay_s = _first_token_s(prefill) + (decode.job.output_tokens - 1) * _token_s(decode, batch)
    return min(prefill_workers * rate_bound_per_s(prefill), batch * decode_workers / stay_s)


def _batch(decode: Option, workers: int, concurrency: int) -> int:
    """Requests of a decode worker when all that are in flight decode."""
    return max(min(-(-concurrency // workers), decode.rules.max_batch), 1)


def _pairs(request: ServingRequest, board: Board, gpus: int) -> list[PoolPair]:
    """The pairs of so many GPUs, of each pair of kinds those near its balance, the fastest first."""
    concurrency, (prompts, outputs) = request.job.concurrency or 1, _kinds(board)
    pairs = [
        PoolPair(
            prefill=i,
            prefill_workers=count,
            decode=j,
            decode_workers=others,
            expected_per_s=expected_per_s(
                ((board.options[i], count), (board.options[j], others)), concurrency
            ),
        )
        for i in prompts
        for j in outputs
        for count, others in _splits(board, i, j, gpus, concurrency)
    ]
    return sorted(pairs, key=lambda pair: (-pair.expected_per_s, pair.prefill, pair.decode))


def _splits(board: Board, i: int, j: int, gpus: int, concurrency: int) -> Iterator[tuple[int, int]]:
    """Numbers of workers of both kinds near those of which neither pool waits for the other."""
    prefill, decode = board.options[i], board.options[j]
    most = (gpus - decode.num_gpus) // prefill.num_gpus
    rate, low, high = rate_bound_per_s(prefill), 1, most
    outputs_s = decode.job.output_tokens - 1

    def waits(count: int) -> bool:
        """Whether so many prefill workers are the scarcer pool."""
        workers = min((gpus - count * prefill.num_gpus) // decode.num_gpus, concurrency)
        batch = _batch(decode, workers, concurrency)
        return count * rate * outputs_s * _token_s(decode, batch) < batch * workers

    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if waits(middle) else (low, middle)
    tried = {round(times * count) for count in (low - 1, low, low + 1) for times in MORE_PROMPTS}
    for count in sorted(tried):
        others = min((gpus - count * prefill.num_gpus) // decode.num_gpus, concurrency)
        while others > 0 and not _has_room(
            board, [(prefill.num_gpus, count), (decode.num_gpus, others)], gpus
        ):
            others -= 1
        if 1 <= count <= min(most, concurrency) and others > 0:
            yield count, others


def _has_room(board: Board, workers: Sequence[tuple[int, int]], gpus: int) -> bool:
    """Whether the hosts that so many GPUs are hold the workers."""
    return board.host_gpus == 1 or machines_for(workers, board.host_gpus) <= -(-gpus // board.host_gpus)


def _fastest(request: ServingRequest, board: Board, gpus: int, most: int = MOST_SIMULATED) -> FleetRun | None:
    """The simulated pair of so many GPUs with most requests a second within the limits."""
    best: FleetRun | None = None
    each = max(FEWEST_FILLED * (request.job.concurrency or 1), 1)
    most = min(most, max(MOST_REQUESTS // each, FEWER_SIMULATED))
    for pair in _pairs(request, board, gpus)[:most]:
        if best is not None and pair.expected_per_s < LIKELY * best.request_rate_per_s:
            break
        run = _run(request, board, pair)
        if run is not None and (best is None or run.request_rate_per_s > best.request_rate_per_s):
            best = run
    return best


def _run(request: ServingRequest, board: Board, pair: PoolPair) -> FleetRun | None:
    """The simulation of a pair, remembered; None where a limit breaks."""
    key = (pair.prefill, pair.prefill_workers, pair.decode, pair.decode_workers)
    if key not in board.pairs:
        board.simulated += 1
        board.pairs[key] = run_closed_pools_unless_late(
            pair.counts,
            (board.options[pair.prefill], pair.prefill_workers),
            (board.options[pair.decode], pair.decode_workers),
            request.job.concurrency or 1,
        )
    return board.pairs[key]


def _most_pairs(gpus: int) -> int:
    """Pairs that tell whether a size keeps the limits: of few GPUs one more is a large part of the bill."""
    return FEWER_SIMULATED if gpus > COARSE else MOST_SIMULATED


def _smallest(request: ServingRequest, board: Board) -> FleetRun | None:
    """The fewest GPUs whose likeliest pairs keep the limits: twice as many until they do, then bisection."""
    prompts, outputs = _kinds(board)
    least = sum(min(board.options[i].num_gpus for i in pool) for pool in (prompts, outputs))
    failed, tried, best = least - 1, least, None
    while best is None and tried <= board.most_gpus:
        best = _fastest(request, board, tried, _most_pairs(tried))
        failed, tried = (failed if best is not None else tried), 2 * tried
    while best is not None and best.num_gpus - failed > max(1, best.num_gpus // COARSE):
        middle = (failed + best.num_gpus) // 2
        smaller = _fastest(request, board, middle, _most_pairs(middle))
        best, failed = (best, middle) if smaller is None else (smaller, failed)
    return best
