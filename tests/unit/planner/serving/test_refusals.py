"""A refusal names what removed the layouts: pins that none has, limits, memory, or what an engine cannot do."""

import re
from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.deployment import Weights
from costmodel.serving.engine import serving_stacks
from planner.analysis.serving.fleets import find_fleet
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import parse_time, understand_serving
from planner.serving.board import enumerate_options
from planner.serving.plan import (
    Mode,
    ServingInfeasible,
    ServingPlan,
    ServingRequest,
    keys_of_refusal,
    start_keys,
)
from planner.serving.replica import OUT_OF_MEMORY
from planner.serving.search import check_request, search_serving
from planner.serving.space import layouts_of
from topology.base.errors import InputError
from topology.base.units import GIB
from topology.builders import default_cluster
from topology.catalog import gpus
from topology.hardware.gpu import Gpu

CAL = load_calibration()


def request_of(
    pins: dict[str, int],
    *,
    name: str = "deepseek-r1",
    gpus: int = 16,
    modes: tuple[Mode, ...] = ("aggregated",),
    job: ServingJob | None = None,
) -> ServingRequest:
    """A question on H100s with these degrees pinned."""
    return ServingRequest(
        model=model(name),
        job=job or ServingJob(input_tokens=2048, output_tokens=128, concurrency=1),
        gpu="h100-sxm",
        num_gpus=gpus,
        engine="sglang",
        weights=("fp8",),
        pins=pins,
        modes=modes,
    )


PINS = [
    *({"tp": tp, "pp": pp} for tp, pp in product((1, 3, 8, 16, 64), (1, 2, 5, 16))),
    *({"tp": tp, "attention_dp": dp} for tp, dp in product((1, 2, 4), (3, 8, 16))),
    *({name: degree} for name, degree in product(("ep", "dcp"), (3, 7, 1000))),
]


@pytest.mark.parametrize("name", ["8b", "deepseek-r1"])
@pytest.mark.parametrize("pins", PINS, ids=str)
def test_a_pin_that_no_layout_has_is_not_a_lack_of_memory(pins: dict[str, int], name: str) -> None:
    """Memory is blamed where a layout was tried and did not fit, the pins where none was tried."""
    request = request_of(pins, name=name)
    hierarchy = default_cluster("h100-sxm", 16).hierarchy
    answer = search_serving(CAL, request, hierarchy)
    if isinstance(answer, ServingPlan):
        assert all(getattr(answer.decode.layout, axis) == degree for axis, degree in pins.items())
        return
    if layouts_of(request, hierarchy):
        reasons = {one.reason for one in enumerate_options(CAL, request, hierarchy).rejected}
        assert ("does not fit" in answer.what) is (reasons == {OUT_OF_MEMORY})
        return
    assert "does not fit" not in answer.what
    assert any(f"layout.{axis}={degree}" in answer.what for axis, degree in pins.items())


def test_tensor_parallelism_over_hosts_is_planned_where_it_is_pinned() -> None:
    """R1 with tp 16 on two hosts of H100 needs half of their memory; tt-inference-server 356: 23.1 ms a token."""
    answer = search_serving(
        CAL,
        request_of(
            {"tp": 16},
            job=ServingJob(input_tokens=2048, output_tokens=128, concurrency=1),
            modes=("aggregated",),
        ),
        default_cluster("h100-sxm", 16).hierarchy,
    )
    assert isinstance(answer, ServingPlan)
    assert answer.decode.layout.label == "tp16"
    assert answer.decode.memory.weights_bytes / 2**30 == pytest.approx(40, rel=0.02)
    assert "tensor parallelism over hosts" in answer.evidence.not_measured
    assert answer.estimate.tpot.lower_s < 0.0231 < answer.estimate.tpot.upper_s


def test_tensor_parallelism_wider_than_the_fleet_is_refused() -> None:
    """Eight GPUs have no tp of 16."""
    answer = search_serving(CAL, request_of({"tp": 16}, gpus=8), default_cluster("h100-sxm", 8).hierarchy)
    assert isinstance(answer, ServingInfeasible)
    assert "layout.tp=16 is searched" in answer.what
    assert answer.cause == "deepseek-r1 on 8 GPUs has no such degree: tp may be 1, 2, 4, 8"


def test_stages_that_cannot_move_between_pools_are_the_reason() -> None:
    """And not memory, which was never asked."""
    request = request_of(
        {"pp": 2},
        modes=("disaggregated",),
        job=ServingJob(input_tokens=2048, output_tokens=128, request_rate_per_s=1.0),
    )
    answer = search_serving(CAL, request, default_cluster("h100-sxm", 16).hierarchy)
    assert isinstance(answer, ServingInfeasible)
    assert "has stages, whose cache the engine cannot move" in answer.cause


def refused(request: ServingRequest, gpu: Gpu) -> str:
    """What a refusal before any search advises; empty where it is none."""
    try:
        check_request(request, gpu)
    except InputError as refusal:
        return refusal.fix
    return ""


def test_a_refusal_before_any_search_names_only_engines_that_it_does_not_refuse() -> None:
    """Every GPU, engine and format; formats of weights, which nobody tried, are not named."""
    named = 0
    for gpu, engine, weights in product(gpus().values(), serving_stacks(), get_args(Weights)):
        asked = replace(request_of({}), gpu=gpu.name, engine=engine, weights=(weights,))
        fix = refused(asked, gpu)
        assert not re.search(r"--weights|\d", fix), fix
        others = re.search(r"--engine ([a-z_]+(?: or [a-z_]+)*)", fix)
        for other in others[1].split(" or ") if others else ():
            assert not refused(replace(asked, engine=other), gpu)
            named += 1
    assert named > 10


@pytest.mark.parametrize(("text", "flag"), [("0ms", "--ttft"), ("0s", "--tpot")])
def test_a_limit_that_is_none_is_refused_without_another(text: str, flag: str) -> None:
    """No time was tried, so none is named."""
    with pytest.raises(InputError) as refusal:
        parse_time(text, flag)
    assert not re.search(r"\d", refusal.value.fix)


def test_a_full_gpu_is_told_the_flags_that_leave_its_cache_room() -> None:
    """Kimi-K2.5 in INT4 on eight H100: the flags that are named plan it."""
    small = ServeFlags(
        model="kimi-k2.5",
        gpu="h100-sxm",
        gpus="8",
        concurrency="8",
        input_tokens="20000",
        output_tokens="500",
    )
    with pytest.raises(InputError, match="does not fit") as refused:
        find_fleet(understand_serving(small))
    assert "or --memory-fraction 0.95" in refused.value.fix
    plan = find_fleet(understand_serving(replace(small, memory_fraction="0.95")))
    assert plan.decode.layout.num_gpus == 8


FULL = ServingJob(input_tokens=30_000, output_tokens=500, concurrency=1)


def test_a_server_fits_where_its_cache_holds_one_request() -> None:
    """A second request waits: 66 of 72 GiB are weights, and the cache holds one of 30,500 tokens.

    vLLM starts where one request of the longest kind fits (`check_enough_kv_cache_memory`, vLLM 0.11,
    v1/core/kv_cache_utils.py).
    """
    request = replace(request_of({}, name="70b", gpus=2, job=FULL), engine="vllm", weights=("bf16",))
    hierarchy = default_cluster("h100-sxm", 2).hierarchy
    answer = search_serving(CAL, request, hierarchy)
    assert isinstance(answer, ServingPlan)
    assert start_keys(answer)["starts"]
    assert 30_500 <= answer.decode.kv_capacity_tokens < 2 * 30_500
    longer = replace(request, job=replace(FULL, input_tokens=45_000))
    refused = search_serving(CAL, longer, hierarchy)
    assert isinstance(refused, ServingInfeasible)
    assert refused.held is not None
    keys = keys_of_refusal(refused, refused.held)
    assert keys["starts"] is False
    assert keys["kv_cache_tokens"] < 45_500
    assert keys["weights_gib_per_gpu"] == pytest.approx(answer.decode.memory.weights_bytes / GIB)
    assert f"{keys['kv_cache_tokens']:,} tokens of cache, where one request has 45,000 + 500" in keys["why"]


def test_only_the_longest_that_are_drawn_may_be_beyond_a_cache() -> None:
    """Lengths that spread have a few requests twice as long as one in a hundred: the server starts without."""
    spread = ServingJob(input_tokens=20_000, output_tokens=500, input_tokens_p99=30_000, concurrency=1)
    request = replace(request_of({}, name="70b", gpus=2, job=spread), engine="vllm", weights=("bf16",))
    refused = search_serving(CAL, request, default_cluster("h100-sxm", 2).hierarchy)
    assert isinstance(refused, ServingInfeasible)
    assert refused.starts
    assert "the longest 60,500" in refused.cause


def test_every_attention_rank_holds_a_whole_request() -> None:
    """Ranks share no cache: eight of them that hold one request together hold none."""
    pins = {"tp": 1, "attention_dp": 8}
    request = request_of(pins, gpus=8, job=replace(FULL, input_tokens=120_000))
    for answer in [search_serving(CAL, request, default_cluster("h200-sxm", 8).hierarchy)]:
        if isinstance(answer, ServingPlan):
            assert answer.decode.kv_capacity_tokens // 8 >= 120_500
        else:
            assert answer.held is not None
            assert answer.held.longest_tokens < 120_500 + 128


@pytest.mark.parametrize(
    "limits",
    [{"tpot_s": 0.002}, {"ttft_s": 0.001}, {"end_to_end_s": 0.1}, {"ttft_s": 0.02, "concurrency": 1}],
    ids=str,
)
def test_limits_that_are_too_tight_are_told_beside_what_one_request_meets(limits: dict[str, float]) -> None:
    """What is simulated of a request alone is no faster than what is called a bound of it."""
    load = {"concurrency": 1} if "concurrency" in limits else {"request_rate_per_s": 1.0}
    job = ServingJob(input_tokens=2000, output_tokens=300, percentile=50, **{**load, **limits})  # type: ignore[arg-type]
    request = replace(request_of({}, name="8b", gpus=2, job=job), engine="vllm")
    missed = search_serving(CAL, request, default_cluster("h100-sxm", 2).hierarchy)
    assert isinstance(missed, ServingInfeasible)
    alone = missed.cause.partition("a request is simulated to have ")[2]
    first_s, each_s = (
        parse_time(f"{value}{unit}", "--ttft")
        for value, unit in re.findall(r"(?:token|one) ([\d.]+) (m?s)", alone)
    )
    assert first_s is not None
    assert each_s is not None
    assert first_s >= 0.99 * (missed.best_ttft_s or 0)
    assert each_s >= 0.99 * (missed.best_tpot_s or 0)
