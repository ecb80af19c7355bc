"""What has refuted a certificate, each kind by the side that was wrong; loads of hours say which."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from costmodel.job import ServingJob
from costmodel.models.catalog import model
from costmodel.serving.simulation.simulator import admissions, simulate
from planner.serving.backlog import GROWTH_RESOLUTION, growth
from planner.serving.board import enumerate_options
from planner.serving.capacity import load_at, serves
from planner.serving.fleet import run_pools
from planner.serving.fleet_choice import Selection
from planner.serving.plan import ServingRequest
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY, WHOLE, Option
from tests.oracle.planner.serving.plain_fleets import (
    TENTHS,
    Question,
    calibration,
    keeps,
    keeps_up_to,
    kinds,
    lasts,
)
from topology.builders import default_cluster


def _question(
    job: ServingJob, name: str, gpu: str, gpus: int, *, weights: str = "int8", **asked: Any
) -> Question:
    """A question of the enumeration's."""
    request = ServingRequest(model=model(name), job=job, gpu=gpu, num_gpus=gpus, weights=(weights,), **asked)
    return Question(name=name, request=request, hierarchy=default_cluster(gpu, gpus).hierarchy)


def _options(question: Question) -> dict[str, Option]:
    """Those of the search, by phase."""
    board = enumerate_options(calibration(), question.request, question.hierarchy)
    return {option.phase: option for option in board.options}


def test_a_queue_that_settles_in_the_second_pass_does_not_grow() -> None:
    """512 places that are free at first take a percent of a load: 37.9/s last for hours, 39.5/s do not."""
    job = ServingJob(input_tokens=64, output_tokens=500, draft_tokens=3, acceptance=0.6)
    question = _question(job, "qwen3-30b-a3b", "h200-sxm", 1, engine="sglang")
    option, kind = _options(question)[WHOLE], kinds(question)[0]
    for rate_per_s, kept in ((37.3, True), (37.9, True), (39.5, False)):
        found = growth(load_at(option, rate_per_s), partial(admissions, option.times, option.rules))
        assert (found <= GROWTH_RESOLUTION) is kept, rate_per_s
        assert serves(option, rate_per_s) is kept, rate_per_s
        assert lasts(kind, job, rate_per_s) is kept, rate_per_s


def test_a_pool_has_no_more_of_an_end_to_end_limit_than_the_other_leaves() -> None:
    """A decode worker that may take all of it seems to serve 30/s; after any prompt it is beyond the limit."""
    job = ServingJob(
        input_tokens=64, output_tokens=500, draft_tokens=3, acceptance=0.6, percentile=50.0,
        tpot_s=0.0305824, end_to_end_s=1.575,
    )  # fmt: skip
    question = _question(
        job,
        "deepseek-v2-lite",
        "h100-sxm",
        4,
        engine="trtllm",
        modes=("disaggregated",),
        pins={"attention_dp": 2},
    )
    rate_per_s, options = 30.0, _options(question)
    decode = next(kind for kind in kinds(question) if kind.phase == OUTPUT_ONLY)
    assert not keeps(decode, job, rate_per_s)
    assert keeps(replace(decode, elsewhere_s=0.0), job, rate_per_s)
    selection = Selection(counts={0: 1, 1: 1}, rate_per_s=rate_per_s, num_gpus=4)
    run = run_pools(selection, (options[PROMPT_ONLY], 1), (options[OUTPUT_ONLY], 1), rate_per_s)
    assert run.limits == ("end_to_end",)


def test_late_first_tokens_of_an_empty_batch_that_fills_end_no_simulation() -> None:
    """A third of those that fill two attention ranks are late, and 16 of a thousand of those after them."""
    job = ServingJob(
        input_tokens=300, output_tokens=60, output_tokens_p99=180, ttft_s=0.2415, percentile=90.0
    )
    question = _question(
        job, "gpt-oss-20b", "h100-sxm", 2, engine="sglang", weights="fp8", pins={"attention_dp": 2}
    )
    option, kind = _options(question)[WHOLE], kinds(question)[0]
    rate_per_s = 270.0
    load = load_at(option, rate_per_s)
    late = simulate(option.times, option.rules, load).ttft_s > 0.2415
    assert late[: load.filling].mean() > 0.1
    assert lasts(kind, job, rate_per_s)
    assert serves(option, rate_per_s)


def test_a_rate_is_no_capacity_where_less_breaks_a_limit() -> None:
    """Prompts wait for those of eight ranks: 170/s keep 11.6 ms a token, 51/s take 11.9 ms for hours."""
    job = ServingJob(input_tokens=64, output_tokens=8, cached_share=0.5, ttft_s=2.18, tpot_s=0.0116)
    question = _question(
        job, "mixtral-8x7b", "h100-sxm", 8, engine="trtllm", weights="bf16", pins={"attention_dp": 8, "tp": 1}
    )
    kind = next(kind for kind in kinds(question) if kind.rules.balance_steps)
    assert (lasts(kind, job, 170.0), lasts(kind, job, 51.0)) == (True, False)
    assert not keeps_up_to(kind, job, 170.0, shares=TENTHS[2:])


def test_a_first_token_is_seen_when_the_cache_is_handed_over() -> None:
    """Of 500 requests one ends with it: a prefill worker's median of 44 ms is 112 ms to the others, at any rate."""
    job = ServingJob(input_tokens=2048, output_tokens=8, output_tokens_p99=24, ttft_s=0.0545, percentile=50.0)
    question = _question(
        job,
        "qwen3-4b",
        "a100-sxm-80gb",
        8,
        engine="trtllm",
        weights="bf16",
        modes=("disaggregated",),
        pins={"tp": 4, "pp": 1},
    )
    prompts = next(kind for kind in kinds(question) if kind.phase == PROMPT_ONLY)
    assert keeps(replace(prompts, handed_over_s=0.0), job, 12.7)
    assert not keeps(prompts, job, 12.7)
    options = _options(
        _question(
            replace(job, ttft_s=None),
            "qwen3-4b",
            "a100-sxm-80gb",
            8,
            engine="trtllm",
            weights="bf16",
            modes=("disaggregated",),
            pins={"tp": 4, "pp": 1},
        )
    )
    selection = Selection(counts={0: 1, 1: 1}, rate_per_s=1.0, num_gpus=8)
    run = run_pools(selection, (options[PROMPT_ONLY], 1), (options[OUTPUT_ONLY], 1), 1.0)
    assert float(np.median(run.simulation.ttft_s)) > 0.0545


def test_a_limit_on_each_token_bounds_no_pool_of_prompts() -> None:
    """One GPU decodes a single request within 10.9 ms; of prompts it runs what its cache holds."""
    job = ServingJob(input_tokens=1000, output_tokens=60, cached_share=0.5, ttft_s=0.72, tpot_s=0.0108)
    question = _question(
        job, "8b", "rtx-4090", 4, weights="fp8", engine="vllm", modes=("aggregated", "disaggregated")
    )
    offered = [kind for kind in kinds(question) if kind.num_gpus == 1]
    assert {kind.rules.max_batch for kind in offered if kind.phase != PROMPT_ONLY} == {1}
    board = enumerate_options(calibration(), question.request, question.hierarchy)
    (searched,) = [one for one in board.options if (one.phase, one.num_gpus) == (PROMPT_ONLY, 1)]
    plain = {kind.rules.token_budget: kind.rules for kind in offered if kind.phase == PROMPT_ONLY}
    assert {rules.token_budget: rules.max_batch for rules in searched.schedulers} == {
        size: rules.max_batch for size, rules in plain.items()
    }
    assert min(rules.max_batch for rules in plain.values()) > 50
