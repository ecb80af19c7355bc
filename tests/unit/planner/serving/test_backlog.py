"""Whether a replica keeps up is judged by the work it is offered: no long prompt and no seed decides."""

from dataclasses import replace
from functools import cache, partial

import pytest

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.deployment import ServingLayout
from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.simulator import admissions, simulate, simulate_while
from planner.serving.backlog import growth
from planner.serving.capacity import capacity_per_s, load_at, meets
from planner.serving.plan import ServingPlan, ServingRequest
from planner.serving.replica import Option, build_option, rate_bound_per_s
from planner.serving.search import search_serving
from planner.serving.space import deployment_of
from tests.counts import tries
from topology.builders import default_cluster

CAL = load_calibration()
TAIL = 4  # 99th percentiles in means, of published loads
KINDS = (
    ("8b", "h100-sxm", "vllm", ServingLayout(), 1000),
    ("8b", "h100-sxm", "trtllm", ServingLayout(tp=2), 12_000),
    ("70b", "h100-sxm", "vllm", ServingLayout(tp=8), 30_000),
    ("70b", "h200-sxm", "sglang", ServingLayout(tp=2, pp=2), 6000),
    ("deepseek-v3", "b200-sxm", "vllm", ServingLayout(tp=8), 30_000),
    ("deepseek-v3", "b200-sxm", "sglang", ServingLayout(attention_dp=8, ep=8), 30_000),
)
ALONE = tuple(kind for kind in KINDS if kind[3].attention_dp == 1)
"""Ranks that step together wait for the longest prompt of any: what that costs is held against a plain simulation
in `tests/oracle/planner/serving/test_ranks_in_step.py`."""


@cache
def replica(
    name: str,
    gpu: str,
    engine: str,
    layout: ServingLayout,
    tokens: int,
    tail: float = TAIL,
) -> Option:
    """A replica and requests of so many prompt tokens, a twentieth as many outputs, without any limit."""
    outputs = max(tokens // 20, 50)
    job = ServingJob(
        input_tokens=tokens,
        output_tokens=outputs,
        input_tokens_p99=round(tail * tokens),
        output_tokens_p99=round(tail * outputs),
    )
    request = ServingRequest(model=model(name), job=job, gpu=gpu, engine=engine, weights=("fp8",))
    deployment = deployment_of(request, default_cluster(gpu, 8).hierarchy, "fp8", layout)
    option = build_option(CAL, deployment, job)
    assert isinstance(option, Option), option
    return option


@cache
def capacity(kind: tuple, tail: float = TAIL) -> float:  # type: ignore[type-arg]  # arguments of a replica
    """What the replica is found to serve without limits."""
    option = replica(*kind, tail=tail)
    return capacity_per_s(option, most_per_s=rate_bound_per_s(option))


def grows(option: Option, load: Load) -> bool:
    """Whether the queue of a load grows."""
    return growth(load, partial(admissions, option.times, option.rules)) > 0.01


@pytest.mark.parametrize("kind", ALONE, ids=lambda kind: f"{kind[0]}-{kind[4]}")
def test_a_queue_grows_above_a_capacity_and_not_below_whatever_the_seed(kind: tuple) -> None:  # type: ignore[type-arg]  # arguments
    """By what is offered beyond it; to nine tenths of it nothing grows."""
    option = replica(*kind)
    for seed in range(tries(1, 5)):
        for share, kept in ((0.5, True), (0.9, True), (1.1, False), (1.3, False)):
            load = load_at(option, share * capacity(kind), seed=seed)
            assert grows(option, load) is not kept, (seed, share)
            run = simulate(option.times, option.rules, load)
            assert meets(option, load, run) is kept, (seed, share)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]}-{kind[4]}-{kind[2]}")
def test_a_replica_with_time_left_and_an_empty_queue_keeps_up(kind: tuple) -> None:  # type: ignore[type-arg]  # arguments
    """Busy for less than 80 % of the time and with less than half a request waiting, at any seed."""
    option = replica(*kind)
    for seed in range(tries(1, 5)):
        for share in (0.1, 0.3, 0.5, 0.7, 0.9):
            load = load_at(option, share * capacity(kind), seed=seed)
            run = simulate(option.times, option.rules, load)
            if run.utilisation < 0.8 and run.mean_queue < 0.5:
                assert meets(option, load, run), (seed, share)


@pytest.mark.parametrize("kind", ALONE, ids=lambda kind: f"{kind[0]}-{kind[4]}")
def test_a_longer_tail_costs_less_than_a_third_of_the_capacity_without_limits(kind: tuple) -> None:  # type: ignore[type-arg]  # arguments
    """Prompts of 4 means at the 99th percentile hold as many tokens as prompts that are all alike."""
    assert capacity(kind) > 0.7 * capacity(kind, 1)


def test_a_trace_is_judged_by_its_own_requests() -> None:
    """As many requests a second as a drawn load has, but each of them longer, are too many."""
    option = replica(*KINDS[0])
    trace = replace(load_at(option, 0.8 * capacity(KINDS[0])), filling=0)
    longer = replace(trace, input_tokens=2 * trace.input_tokens, output_tokens=2 * trace.output_tokens)
    assert (grows(option, trace), grows(option, longer)) == (False, True)
    assert grows(option, replace(trace, arrival_s=0 * trace.arrival_s))


def published(rate_per_s: float | None, gpus: int | None) -> ServingPlan:
    """70B in fp8 on H100s, 30,000 + 500 tokens, first token within 20 s at p90, no pipelines."""
    job = ServingJob(
        input_tokens=30_000,
        output_tokens=500,
        input_tokens_p99=120_187,
        output_tokens_p99=1407,
        ttft_s=20.0,
        percentile=90.0,
        request_rate_per_s=rate_per_s,
    )
    pins = {"pp": 1, "tp": 4} if gpus else {"pp": 1}
    request = ServingRequest(
        model=model("70b"), job=job, gpu="h100-sxm", num_gpus=gpus, weights=("fp8",), pins=pins
    )
    plan = search_serving(CAL, request, default_cluster("h100-sxm", gpus or 256).hierarchy)
    assert isinstance(plan, ServingPlan), plan
    return plan


def test_eight_gpus_of_long_prompts_are_busy_before_a_limit_breaks() -> None:
    """0.44 requests a second at 94 % busy; above them the first token is late, the queue does not grow."""
    plan = published(None, 8)
    assert plan.estimate.request_rate_per_s == pytest.approx(0.44, rel=0.03)
    assert plan.estimate.utilisation > 0.9
    assert plan.estimate.headroom is not None
    assert plan.estimate.headroom.broken == ("ttft",)


def test_a_fleet_for_long_prompts_is_no_larger_than_its_limits_ask() -> None:
    """36 H100 serve 2 requests a second; a false queue asked for 136."""
    plan = published(2.0, None)
    assert plan.num_gpus <= 40
    assert plan.optimality.status != "best-found"


def test_limits_alone_decide_where_prompts_are_long() -> None:
    """A replica's capacity is that of its limits, for prompts of 6,000 to 30,000 tokens."""
    for tokens in (6000, 12_000, 30_000):
        option = replica("70b", "h100-sxm", "vllm", ServingLayout(tp=4), tokens)
        option = replace(option, job=replace(option.job, ttft_s=10.0, tpot_s=0.1, percentile=90.0))
        over = load_at(option, 1.05 * capacity_per_s(option, most_per_s=rate_bound_per_s(option)))
        run = simulate_while(option.times, option.rules, over, lambda _: True)
        assert run is not None
        assert run.utilisation > 0.6
        assert not meets(option, over, run)
