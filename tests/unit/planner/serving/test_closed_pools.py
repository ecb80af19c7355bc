"""Two pools with a constant number of requests in flight: simulated together, and searched by what they should serve."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.serving.board import Board, enumerate_options
from planner.serving.closed_pools import BUSY, search_closed_pools, short_of_prefill
from planner.serving.fleet import FleetRun, run_closed_pools, run_pools
from planner.serving.plan import ServingRequest
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY, rate_bound_per_s
from topology.builders import default_cluster

CAL = load_calibration()


def board_of(
    gpus: int | None, *, input_tokens: int = 1000, output_tokens: int = 200, **words: object
) -> tuple[ServingRequest, Board]:
    """The options of an 8B model in two pools."""
    job = ServingJob(input_tokens=input_tokens, output_tokens=output_tokens, **{"concurrency": 32, **words})  # type: ignore[arg-type]  # by name
    request = ServingRequest(
        model=model("8b"), job=job, gpu="h100-sxm", num_gpus=gpus, modes=("disaggregated",)
    )
    return request, enumerate_options(CAL, request, default_cluster("h100-sxm", gpus or 8).hierarchy)


def every_pair(request: ServingRequest, board: Board, gpus: int) -> list[FleetRun]:
    """All pairs of pools on at most so many GPUs, in every number of workers."""
    runs = []
    kinds = [
        [i for i, one in enumerate(board.options) if one.phase == phase]
        for phase in (PROMPT_ONLY, OUTPUT_ONLY)
    ]
    for i, j in itertools.product(*kinds):
        first, other = board.options[i], board.options[j]
        for p, d in itertools.product(range(1, gpus), repeat=2):
            if p * first.num_gpus + d * other.num_gpus <= gpus:
                runs.append(
                    run_closed_pools({i: p, j: d}, (first, p), (other, d), request.job.concurrency or 1)
                )
    return runs


@pytest.mark.parametrize(("lengths", "in_flight"), [((1000, 200), 32), ((4000, 50), 16), ((200, 800), 64)])
def test_the_search_finds_what_trying_every_pair_finds(lengths: tuple[int, int], in_flight: int) -> None:
    """Of four GPUs every pair can be tried."""
    request, board = board_of(4, input_tokens=lengths[0], output_tokens=lengths[1], concurrency=in_flight)
    best, certificate = search_closed_pools(request, board) or (None, None)
    assert best is not None
    assert certificate is not None
    tried = max(run.request_rate_per_s for run in every_pair(request, board, 4))
    assert best.request_rate_per_s == pytest.approx(tried, rel=0.01)
    assert certificate.bound >= tried * (1 - 1e-9)


def test_requests_in_flight_are_their_rate_times_their_stay() -> None:
    """Little, of all requests that were sent."""
    request, board = board_of(2)
    best, _ = search_closed_pools(request, board) or (None, None)
    assert best is not None
    stay_s = float(best.simulation.end_to_end_s.mean())
    assert best.request_rate_per_s * stay_s == pytest.approx(32)


def test_equal_parts_of_pools_serve_as_the_whole_does() -> None:
    """Two prefill and two decode workers with 64 in flight are twice a pair with 32."""
    request, board = board_of(4, concurrency=64)
    best, _ = search_closed_pools(replace(request, num_gpus=2), board) or (None, None)
    assert best is not None
    assert best.prefill is not None
    twice = run_closed_pools({0: 2, 1: 2}, (best.prefill, 2), (best.decode, 2), 64)
    alone = run_closed_pools({0: 1, 1: 1}, (best.prefill, 1), (best.decode, 1), 32)
    assert twice.request_rate_per_s == pytest.approx(2 * alone.request_rate_per_s)


def test_a_prefill_pool_that_never_rests_says_how_many_workers_would_do() -> None:
    """Long prompts and few outputs: with the workers that it names prompts no longer wait."""
    request, board = board_of(2, input_tokens=8000, output_tokens=20)
    best, _ = search_closed_pools(request, board) or (None, None)
    assert best is not None
    assert best.prefill is not None
    short = short_of_prefill(best)
    assert short is not None
    assert short.busy >= BUSY
    more = run_closed_pools(
        {0: short.prefill_workers, 1: 1}, (best.prefill, short.prefill_workers), (best.decode, 1), 32
    )
    assert more.request_rate_per_s > 2 * best.request_rate_per_s
    assert short_of_prefill(more) is None


@pytest.mark.parametrize("beyond", [4, 12])
def test_pools_that_are_sent_too_much_say_how_many_workers_would_keep_up(beyond: float) -> None:
    """An open rate beyond what one worker of each computes: the pools that it names have no growing queue."""
    _, board = board_of(2, input_tokens=2000)
    prefill, decode = (
        next(one for one in board.options if one.phase == phase and one.num_gpus == 1)
        for phase in (PROMPT_ONLY, OUTPUT_ONLY)
    )
    rate = beyond * rate_bound_per_s(prefill)
    job = replace(decode.job, concurrency=None, request_rate_per_s=rate)
    decode = replace(decode, job=job)
    run = run_pools({0: 1, 1: 1}, (prefill, 1), (decode, 1), rate)
    short = short_of_prefill(run)
    assert short is not None
    assert run.broken == ("queue",)
    prompts, outputs = short.prefill_workers, short.decode_workers
    named = run_pools({0: prompts, 1: outputs}, (prefill, prompts), (decode, outputs), rate)
    assert not named.broken, short
    fewer = run_pools({0: prompts - 2, 1: outputs}, (prefill, prompts - 2), (decode, outputs), rate)
    assert fewer.broken == ("queue",)


@pytest.mark.parametrize("ttft_s", [1.2, 1.5, 2.0])
def test_the_smallest_pools_keep_the_limits_and_one_gpu_less_does_not(ttft_s: float) -> None:
    """A limit on the first token that one prefill worker of the smallest kind breaks."""
    request, board = board_of(None, concurrency=64, input_tokens=4000, ttft_s=ttft_s, percentile=50.0)
    best, _ = search_closed_pools(request, board) or (None, None)
    assert best is not None
    assert best.kept
    fewer = every_pair(request, board, best.num_gpus - 1)
    assert not any(run.kept for run in fewer)
