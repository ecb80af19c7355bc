"""Fleets of two GPU kinds against every pair of pools, counted up one worker at a time."""

from dataclasses import replace
from functools import cache

import pytest

from costmodel.job import ServingJob
from costmodel.models.catalog import model
from costmodel.serving.simulation.simulator import simulate
from planner.analysis.serving.mixed_fleets import cheapest_mixed, mixed_summary
from planner.serving.board import Board, enumerate_options
from planner.serving.capacity import load_at, meets
from planner.serving.fleet import transfer_between
from planner.serving.plan import ServingRequest
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY, Option, with_chunks
from tests.oracle.planner.serving.plain_fleets import calibration
from topology.builders import default_cluster

JOB = ServingJob(input_tokens=2000, output_tokens=200, request_rate_per_s=14.0, ttft_s=0.6, tpot_s=0.03)
PRICES = {"h100-sxm": 5.0, "l40s": 1.5, "a100-sxm-80gb": 2.5}
EVERY = 1e9  # dollars that no fleet costs


@cache
def board_of(gpu: str, job: ServingJob = JOB) -> tuple[ServingRequest, Board]:
    """A kind of GPU, had one by one, with replicas of one or two of them."""
    request = ServingRequest(
        model=model("8b"), job=job, gpu=gpu, modes=("disaggregated",), usd_per_gpu_hour=PRICES[gpu], pins={"pp": 1}
    )  # fmt: skip
    return request, enumerate_options(calibration(), request, default_cluster(gpu, 2).hierarchy)


def fresh(kinds: tuple[str, ...], job: ServingJob = JOB) -> list[tuple[ServingRequest, Board]]:
    """Boards on which nothing was simulated yet."""
    return [
        (
            request,
            replace(board, options=list(board.options), served={}, exact=set(), asked=set(), possible=set(),
                    capacities_per_s=list(board.ceilings_per_s), ceilings_per_s=list(board.ceilings_per_s)),
        )
        for request, board in (board_of(gpu, job) for gpu in kinds)
    ]  # fmt: skip


def fewest(option: Option) -> int:
    """Workers of a kind that serve the rate in equal shares, whatever their chunks, counting up."""
    return next(
        count
        for count in range(1, 200)
        if any(
            meets(one, load, simulate(one.times, one.rules, load))
            for one in with_chunks(option)
            for load in [load_at(one, (one.job.request_rate_per_s or 0.0) / count)]
        )
    )


@cache
def counted(kinds: tuple[str, ...], job: ServingJob = JOB) -> float:
    """Dollars of the cheapest pair of pools of unlike kinds."""
    pools = [
        (gpu, option.phase, fewest(option) * option.num_gpus * PRICES[gpu])
        for gpu in kinds
        for option in board_of(gpu, job)[1].options
    ]
    return min(
        first + second
        for a, phase, first in pools
        for b, other, second in pools
        if a != b and (phase, other) == (PROMPT_ONLY, OUTPUT_ONLY)
    )


def test_the_cheapest_mixed_fleet_is_the_one_that_counting_finds() -> None:
    """And its money is that of its pools."""
    kinds = ("h100-sxm", "l40s")
    found = cheapest_mixed(fresh(kinds), EVERY)
    assert found is not None
    assert found.proven
    line = mixed_summary(found)
    assert line.usd_per_hour == pytest.approx(counted(kinds))
    assert line.gpu == f"{found.prompts.gpu} + {found.outputs.gpu}"
    assert found.run.prefill is not None
    pools = (found.prompts, found.run.prefill, found.run.prefill_workers), (
        found.outputs, found.run.decode, found.run.decode_workers,
    )  # fmt: skip
    assert sum(n * one.num_gpus * PRICES[request.gpu] for request, one, n in pools) == line.usd_per_hour
    assert line.ttft_s is not None
    assert line.ttft_s <= 0.6


def test_pools_that_break_a_limit_together_prove_nothing() -> None:
    """The cheapest pair of H100 and L40S keeps the limits pool by pool alone; what is found costs no less."""
    kinds, job = ("h100-sxm", "l40s"), replace(JOB, request_rate_per_s=6.0, tpot_s=0.04)
    found = cheapest_mixed(fresh(kinds, job), EVERY)
    assert found is not None
    assert found.run.kept
    assert not found.proven
    assert (mixed_summary(found).usd_per_hour or 0.0) >= counted(kinds, job)


def test_nothing_is_simulated_that_could_not_be_cheaper() -> None:
    """Below the sum of the cheapest bounds there is no fleet, and no simulation says so."""
    boards = fresh(("h100-sxm", "l40s"))
    assert cheapest_mixed(boards, 1.0) is None
    assert sum(board.simulated for _, board in boards) == 0
    assert cheapest_mixed(fresh(("h100-sxm", "l40s")), counted(("h100-sxm", "l40s"))) is None


def test_a_cache_travels_at_the_slower_of_two_networks() -> None:
    """Whichever side it leaves from."""
    first, second = (
        next(option for option in board_of(gpu)[1].options if option.phase == phase)
        for gpu, phase in (("h100-sxm", PROMPT_ONLY), ("l40s", OUTPUT_ONLY))
    )
    mixed = transfer_between(first, second).s_per_token
    alone = [
        transfer_between(
            replace(first, deployment=replace(first.deployment, hierarchy=one.deployment.hierarchy)),
            replace(second, deployment=replace(second.deployment, hierarchy=one.deployment.hierarchy)),
        ).s_per_token
        for one in (first, second)
    ]
    assert mixed == max(alone)
