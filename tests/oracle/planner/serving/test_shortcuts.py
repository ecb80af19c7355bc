"""What the search spares itself, against doing it all: simulations that end early, numbers never tried."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from costmodel.job import ServingJob
from costmodel.models.catalog import model
from costmodel.serving.simulation.load import Lengths, closed_load
from costmodel.serving.simulation.simulator import simulate
from planner.serving.board import enumerate_options
from planner.serving.capacity import load_at, meets, serves
from planner.serving.fleet import run_closed, run_closed_unless_late
from planner.serving.fleet_choice import Selection, machines_for, most_useful
from planner.serving.plan import ServingRequest
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY, WHOLE, rate_bound_per_s
from tests.counts import cases_of_run
from tests.oracle.planner.serving.plain_fleets import calibration
from topology.builders import default_cluster

LIMITS: tuple[dict[str, Any], ...] = (
    {"ttft_s": 0.3},
    {"tpot_s": 0.02, "percentile": 90.0},
    {"end_to_end_s": 3.0, "percentile": 50.0},
    {"ttft_s": 0.5, "tpot_s": 0.03, "input_tokens_p99": 4000, "output_tokens_p99": 600},
    {},
)


ENGINES = ("vllm", "sglang", "trtllm")
OF_OTHER_PAIRS = [
    (limits, engine)
    for place, limits in enumerate(LIMITS)
    for of, engine in enumerate(ENGINES)
    if (place + of) % 3
]
"""Each engine and each of the limits is tried in the suite, beside some others."""


@pytest.mark.parametrize(("limits", "engine"), cases_of_run(product(LIMITS, ENGINES), OF_OTHER_PAIRS))
def test_a_simulation_that_ends_early_says_what_the_whole_one_says(
    limits: dict[str, Any], engine: str
) -> None:
    """Whole replicas and pools, from a tenth of their bound to twice of it."""
    job = ServingJob(input_tokens=1000, output_tokens=100, **limits)
    request = ServingRequest(
        model=model("8b"), job=job, gpu="h100-sxm", num_gpus=2, engine=engine, modes=("aggregated", "disaggregated")
    )  # fmt: skip
    options = enumerate_options(calibration(), request, default_cluster("h100-sxm", 2).hierarchy).options
    said = set()
    for option in options:
        for share in (0.1, 0.4, 0.6, 0.8, 1.0, 2.0):
            rate = share * rate_bound_per_s(option)
            load = load_at(option, rate)
            whole = meets(option, load, simulate(option.times, option.rules, load))
            assert serves(option, rate) == whole, (option.label, share)
            said.add(whole)
    assert said == {True, False}


LOOPS = (
    ("gpt-oss-20b", "h100-sxm", "sglang", ServingJob(input_tokens=300, output_tokens=2, tpot_s=0.00656)),
    ("gpt-oss-20b", "h100-sxm", "trtllm", ServingJob(input_tokens=64, output_tokens=8, tpot_s=0.01057)),
    ("llama-2-13b", "rtx-4090", "sglang", ServingJob(input_tokens=1000, output_tokens=2, tpot_s=0.00733)),
    ("8b", "rtx-4090", "trtllm", ServingJob(input_tokens=1000, output_tokens=500)),
)
IN_FLIGHT = {70: (0, 3), 1000: (1, 2)}
"""Requests in flight, and loops of which the suite tries so many."""


@pytest.mark.parametrize(
    ("name", "gpu", "engine", "job", "in_flight"),
    cases_of_run(
        [(*loop, in_flight) for in_flight in IN_FLIGHT for loop in LOOPS],
        [
            (*loop, in_flight)
            for in_flight, tried in IN_FLIGHT.items()
            for place, loop in enumerate(LOOPS)
            if place not in tried
        ],
    ),
)
def test_a_loop_beyond_the_largest_batch_is_served_as_fast_as_one_that_is_simulated_whole(
    name: str, gpu: str, engine: str, job: ServingJob, in_flight: int
) -> None:
    """A queue has the next request at hand: the rate is that of a long loop, without its first round and last.

    As many in flight as the batch holds, of which each leaves its place empty until the client sends another,
    were taken for any number: a third too few a second with batches of three.
    """
    request = ServingRequest(model=model(name), job=job, gpu=gpu, num_gpus=2, engine=engine, weights=("fp8",))
    options = enumerate_options(calibration(), request, default_cluster(gpu, 2).hierarchy).options
    queued = 0
    for option in options:
        if option.rules.max_batch >= in_flight:
            continue
        load = closed_load(
            concurrency=in_flight,
            count=40 * in_flight,
            inputs=Lengths(mean=job.input_tokens),
            outputs=Lengths(mean=job.output_tokens),
        )
        ends = np.sort(simulate(option.times, option.rules, load).finish_s)
        first, last = in_flight, 39 * in_flight
        whole = (last - first) / (ends[last] - ends[first])
        assert run_closed(option, 1, in_flight, which=0).request_rate_per_s == pytest.approx(whole, rel=0.02)
        queued += 1
    assert queued


@pytest.mark.parametrize(
    ("limit", "percentile"),
    cases_of_run(
        product(("ttft_s", "tpot_s", "end_to_end_s"), (50.0, 90.0)),
        [("ttft_s", 90.0), ("tpot_s", 50.0), ("end_to_end_s", 90.0)],
    ),
)
def test_a_loop_that_ends_early_is_one_that_breaks_a_limit(limit: str, percentile: float) -> None:
    """With limits about what each replica takes: nothing is returned exactly where the whole loop is not kept."""
    job = ServingJob(input_tokens=1000, output_tokens=200, output_tokens_p99=600, percentile=percentile)
    request = ServingRequest(model=model("8b"), job=job, gpu="h100-sxm", num_gpus=2, weights=("bf16",))
    options = enumerate_options(calibration(), request, default_cluster("h100-sxm", 2).hierarchy).options
    kept = []
    for option in options:
        for in_flight in (1, 40, 700):
            simulation = run_closed(option, 1, in_flight, which=0).simulation
            values = {
                "ttft_s": simulation.ttft_s,
                "tpot_s": simulation.tpot_s,
                "end_to_end_s": simulation.end_to_end_s,
            }
            for share in (0.3, 0.9, 0.9999, 1.0, 1.0001, 1.2):
                middle = float(np.nanpercentile(values[limit], percentile))
                asked = replace(option, job=replace(option.job, **{limit: share * middle}))
                whole = run_closed(asked, 1, in_flight, which=0)
                early = run_closed_unless_late(asked, 1, in_flight, which=0)
                assert (early is not None) == whole.kept
                assert early is None or early.request_rate_per_s == whole.request_rate_per_s
                kept.append(whole.kept)
    assert 0 < sum(kept) < len(kept)


@pytest.mark.parametrize("seed", range(30))
def test_no_more_replicas_are_of_use_than_a_cheaper_fleet_has(seed: int) -> None:
    """The last number of a kind, counting up, with which some fleet is paid less for than the known one."""
    rng = np.random.default_rng(seed)
    room, spare = int(rng.choice([1, 4, 8])), int(rng.integers(0, 2))
    phases = [WHOLE, PROMPT_ONLY, OUTPUT_ONLY, OUTPUT_ONLY]
    options: list[Any] = [
        SimpleNamespace(num_gpus=int(rng.choice([1, 2, 4, 8, 16])), phase=phase) for phase in phases
    ]
    rates = rng.uniform(0.5, 4.0, len(options)).tolist()
    gpus = int(rng.integers(8, 80))
    known = Selection(counts={}, rate_per_s=10.0, num_gpus=gpus, machines=-(-gpus // room))
    for i, option in enumerate(options):
        found = most_useful(options, rates, i, known, rate_per_s=10.0, machine_gpus=room, spare=spare)
        others = [
            (other.num_gpus, int(np.ceil(10.0 / rate)) + spare)
            for other, rate in zip(options, rates, strict=True)
            if {option.phase, other.phase} == {PROMPT_ONLY, OUTPUT_ONLY}
        ]
        beside = [[]] if option.phase == WHOLE else [[one] for one in others]
        useful = [
            n
            for n in range(1, 100)
            for rest in beside
            if _paid([(option.num_gpus, n + spare), *rest], room) < (known.machines, known.num_gpus)
        ]
        assert found == max(useful, default=0)


def _paid(workers: list[tuple[int, int]], room: int) -> tuple[int, int]:
    """Machines and GPUs of the workers; GPUs twice where they are had one by one."""
    gpus = sum(each * number for each, number in workers)
    return (machines_for(workers, room) if room > 1 else gpus), gpus
