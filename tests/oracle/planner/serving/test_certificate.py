"""What "proven" says of a serving fleet, against plain enumeration and against the simulator itself."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from costmodel.job import ServingJob
from costmodel.models.catalog import model
from costmodel.serving.simulation.load import Lengths, closed_load, open_load
from costmodel.serving.simulation.simulator import simulate
from planner.serving.board import RESOLUTION, enumerate_options
from planner.serving.capacity import phase_load
from planner.serving.fleet_choice import select_fleet
from planner.serving.plan import ServingPlan, ServingRequest, serving_from_json, serving_to_json
from planner.serving.replica import (
    OUTPUT_ONLY,
    PROMPT_ONLY,
    WHOLE,
    Option,
    least_latency,
    rate_bound_per_s,
    with_chunks,
)
from planner.serving.search import search_serving
from tests.counts import IS_NIGHTLY, cases_of_run
from tests.oracle.planner.serving.plain_fleets import (
    answer_of,
    calibration,
    closed_rate,
    fewest_gpus,
    kinds,
    questions,
    refuted,
)
from topology.builders import default_cluster

BOTH = ("aggregated", "disaggregated")
WIDEST = RESOLUTION / (1 - RESOLUTION) + 1e-6
SPACES = (  # model, GPU, engine, weights, input, output, GPUs, changes of the job
    ("8b", "h100-sxm", "vllm", "bf16", 1000, 200, 4, {}),
    ("8b", "rtx-4090", "vllm", "int4", 300, 500, 2, {}),
    ("8b", "rtx-4090", "vllm", "bf16", 2900, 500, 2, {}),
    ("llama-2-13b", "rtx-4090", "sglang", "int8", 64, 8, 4, {}),
    ("deepseek-v2-lite", "h100-sxm", "sglang", "bf16", 2048, 60, 4, {}),
    ("qwen3-30b-a3b", "h200-sxm", "trtllm", "fp8", 1000, 60, 4, {}),
    ("gpt-oss-20b", "h100-sxm", "vllm", "int4", 20, 2, 2, {}),
    ("qwen3-4b", "a100-sxm-80gb", "vllm", "bf16", 10, 2, 4, {"draft_tokens": 3, "acceptance": 0.6}),
    ("gemma-3-12b", "a100-sxm-80gb", "sglang", "int4", 4000, 30, 4, {"cached_share": 0.5}),
)


@cache
def _options(space: int) -> tuple[Option, ...]:
    """Every option of a space, whole and in pools, without limits."""
    name, gpu, engine, weights, inputs, outputs, size, changes = SPACES[space]
    request = ServingRequest(
        model=model(name),
        job=ServingJob(input_tokens=inputs, output_tokens=outputs, **changes),  # type: ignore[arg-type]  # test table
        gpu=gpu,
        num_gpus=size,
        engine=engine,
        weights=(weights,),  # type: ignore[arg-type]  # same
        modes=BOTH,  # type: ignore[arg-type]  # same
    )
    board = enumerate_options(calibration(), request, default_cluster(gpu, size).hierarchy)
    return tuple(board.options)


def test_the_spaces_hold_more_than_sixty_options() -> None:
    """Dense, experts, latent attention, windows; quantised; tight memory; whole and in pools."""
    found = [option for space in range(len(SPACES)) for option in _options(space)]
    assert len(found) >= 60
    assert {option.phase for option in found} == {WHOLE, PROMPT_ONLY, OUTPUT_ONLY}


@pytest.mark.parametrize("space", range(len(SPACES)))
def test_no_replica_finishes_more_requests_a_second_than_its_bound(space: int) -> None:
    """Every request takes its share of the replica's time, so not even a burst is served faster."""
    for option in _options(space):
        job, bound = option.job, rate_bound_per_s(option)
        for one in with_chunks(option):
            for in_flight in (max(one.rules.max_batch // 2, 1), 2 * one.rules.max_batch):
                load = closed_load(
                    concurrency=in_flight,
                    count=400,
                    inputs=Lengths(mean=job.input_tokens),
                    outputs=Lengths(mean=job.output_tokens),
                    cached_share=job.cached_share,
                )
                seen = (
                    load
                    if one.phase == WHOLE
                    else replace(phase_load(load, one.phase), concurrency=in_flight)
                )
                rate = len(load) / simulate(one.times, one.rules, seen).makespan_s
                assert rate <= bound * (1 + 1e-9), (one.label, one.rules.token_budget, in_flight)


BOUNDED = [(space, percentile) for space in range(len(SPACES)) for percentile in (50.0, 99.0)]


@pytest.mark.parametrize(
    ("space", "percentile"),
    cases_of_run(BOUNDED, [case for case in BOUNDED if (case[0] % 2) == (case[1] > 50)]),
)
def test_no_load_has_lower_latencies_than_the_bounds(space: int, percentile: float) -> None:
    """Alone or in company, spread or alike: so a limit below a bound rejects nothing that could keep it."""
    for option in _options(space):
        if option.phase != WHOLE:
            continue
        for spread in (1, 3):
            job = replace(
                option.job,
                percentile=percentile,
                input_tokens_p99=spread * option.job.input_tokens,
                output_tokens_p99=spread * option.job.output_tokens,
            )
            budgets = tuple(rules.token_budget for rules in option.schedulers)
            least = least_latency(option.times, job, option.deployment.stack, budgets)
            for one, load in ((one, share) for one in with_chunks(option) for share in (0.01, 0.5)):
                rate = load * rate_bound_per_s(option)
                drawn = open_load(
                    rate_per_s=rate,
                    count=400,
                    inputs=Lengths(mean=job.input_tokens, p99=job.input_tokens_p99),
                    outputs=Lengths(mean=job.output_tokens, p99=job.output_tokens_p99),
                    cached_share=job.cached_share,
                )
                longest = int((drawn.input_tokens + drawn.output_tokens).max()) + 16
                if longest > one.rules.kv_capacity_tokens:
                    continue
                found = simulate(one.times, one.rules, drawn)
                for values, bound in (
                    (found.ttft_s, least.ttft_s),
                    (found.tpot_s, least.tpot_s),
                    (found.end_to_end_s, least.end_to_end_s),
                ):
                    assert np.nanpercentile(values[80:], percentile) >= bound * (1 - 1e-9), one.label


DEAR = {11: (2, 5, 7), 12: ()}
"""By seed, questions whose enumeration takes longer than that of all others together."""


@pytest.mark.parametrize("seed", DEAR)
def test_no_certificate_is_refuted_by_enumeration(seed: int) -> None:
    """Every replica under every scheduler at the share by which it would beat the bound."""
    for number, question in enumerate(questions(8, seed)):
        if number in DEAR[seed] and not IS_NIGHTLY:
            continue
        answer = answer_of(question)
        if answer is None:
            continue
        assert refuted(question, answer) is None, question.name
        if isinstance(answer, ServingPlan) and answer.optimality.status == "proven":
            assert 0 <= answer.optimality.gap <= WIDEST
            assert serving_from_json(serving_to_json(answer)).optimality == answer.optimality


def test_a_queue_that_grows_at_the_start_refutes_no_certificate() -> None:
    """70 in flight, 36 of which run: the first of each client wait less than any after them."""
    (question,) = (
        one
        for one in questions(110, 23)
        if one.name.startswith("8b rtx-4090 1 sglang fp8") and one.request.job.concurrency == 70
    )
    answer = answer_of(question)
    assert isinstance(answer, ServingPlan)
    assert refuted(question, answer) is None
    assert closed_rate(kinds(question)[1], question.request.job, 1) == pytest.approx(answer.optimality.value)


def test_a_share_that_was_rounded_down_by_two_per_cent_costs_no_replica() -> None:
    """Three replicas of TP2·PP3 take 19/s, not 19.2/s: two per cent less of each would have made four."""
    job = ServingJob(input_tokens=2000, output_tokens=300, request_rate_per_s=19.0, ttft_s=1.0, tpot_s=0.04)
    pins = {"tp": 2, "pp": 3}
    request = ServingRequest(model=model("70b"), job=job, gpu="h100-sxm", weights=("fp8",), pins=pins)
    plan = search_serving(calibration(), request, default_cluster("h100-sxm", 64).hierarchy)
    assert isinstance(plan, ServingPlan)
    assert (plan.num_gpus, plan.optimality.gap) == (18, 0.0)
    assert plan.optimality.status != "best-found"


def test_a_prompt_in_chunks_fills_a_pipeline_once() -> None:
    """Only its last chunk passes the stages one by one; a limit between both counts is kept, not rejected."""
    job = ServingJob(input_tokens=8000, output_tokens=20)
    request = ServingRequest(model=model("8b"), job=job, gpu="h100-sxm", num_gpus=8, pins={"pp": 8, "tp": 1})
    hierarchy = default_cluster("h100-sxm", 8).hierarchy
    option = enumerate_options(calibration(), request, hierarchy).options[0]
    whole_s = option.times.prefill_s(8000) * 8
    limited = replace(request, job=replace(job, ttft_s=0.8 * whole_s))
    plan = search_serving(calibration(), limited, hierarchy)
    assert isinstance(plan, ServingPlan)
    assert plan.estimate.ttft.p99_s <= 0.8 * whole_s


@pytest.mark.parametrize(
    "pins", cases_of_run([{"tp": 1}, {"tp": 2}, {"pp": 2}, {"tp": 4}], [{"tp": 1}, {"tp": 4}])
)
def test_a_pin_never_gives_a_better_fleet(pins: dict[str, int]) -> None:
    """For a rate, of a fleet, and in a closed loop; up to the gap that the free search states."""
    for extra, size in (
        ({"request_rate_per_s": 40.0, "ttft_s": 0.5}, None),
        ({"ttft_s": 0.5, "tpot_s": 0.02}, 4),
        ({"concurrency": 24}, 4),
    ):
        job = ServingJob(input_tokens=1000, output_tokens=100, **extra)  # type: ignore[arg-type]  # test table
        request = ServingRequest(model=model("8b"), job=job, gpu="h100-sxm", num_gpus=size)
        hierarchy = default_cluster("h100-sxm", 4).hierarchy
        free, pinned = (
            search_serving(calibration(), one, hierarchy) for one in (request, replace(request, pins=pins))
        )
        assert isinstance(free, ServingPlan)
        if isinstance(pinned, ServingPlan):
            values = pinned.optimality.value, free.optimality.bound
            assert values[0] >= values[1] if size is None else values[0] <= values[1] * (1 + 1e-9)


def test_the_program_finds_what_counting_finds() -> None:
    """The best of every kind and of every pair of pools; also with capacities a ten-millionth apart."""
    options = list(_options(0))
    rng = np.random.default_rng(3)
    for scale in (1e-4, 1.0, 3e3):
        rates = (scale * rng.uniform(0.5, 1.5, len(options))).tolist()
        found = select_fleet(options, rates, most_gpus=9, rate_per_s=None)
        smallest = select_fleet(options, rates, most_gpus=64, rate_per_s=6 * scale)
        assert found is not None
        assert smallest is not None
        best, fewest = _counted(options, rates, 9, 6 * scale)
        assert found.rate_per_s == pytest.approx(best, rel=1e-7)
        assert smallest.num_gpus == fewest


def _counted(options: list[Option], rates: list[float], size: int, rate: float) -> tuple[float, int]:
    """Most requests a second of `size` GPUs, and fewest GPUs for a rate, by counting all."""
    whole = [(o.num_gpus, r) for o, r in zip(options, rates, strict=True) if o.phase == WHOLE]
    first = [(o.num_gpus, r) for o, r in zip(options, rates, strict=True) if o.phase == PROMPT_ONLY]
    second = [(o.num_gpus, r) for o, r in zip(options, rates, strict=True) if o.phase == OUTPUT_ONLY]
    most = [size // gpus * per_s for gpus, per_s in whole]
    most += [
        min(x * a, (size - x * g) // h * b)
        for g, a in first
        for h, b in second
        for x in range(1, size // g + 1)
    ]

    def fewest(kinds_: list[tuple[int, float]]) -> int:
        return min(int(-(-rate // per_s)) * gpus for gpus, per_s in kinds_)

    return max(most), min(fewest(whole), fewest(first) + fewest(second))


def test_the_enumeration_agrees_with_itself() -> None:
    """More GPUs serve what fewer do: the oracle's own sanity, at a rate that one GPU does not serve."""
    question = next(q for q in questions(20, 5) if q.request.job.request_rate_per_s)
    offered, job = kinds(question), question.request.job
    rate_per_s = 64 * (job.request_rate_per_s or 1.0)
    least, of_half = (fewest_gpus(offered, job, rate_per_s / share, 4) for share in (1, 2))
    assert least is not None
    assert of_half is not None
    assert of_half <= least
    assert (least, of_half) == (3, 2)
