"""Attention ranks schedule by themselves: a prompt longer than a step's tokens stops no other rank."""

import pytest

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.deployment import ServingLayout
from costmodel.serving.simulation.load import Lengths, closed_load
from costmodel.serving.simulation.simulator import simulate
from planner.serving.plan import ServingRequest
from planner.serving.replica import Option, started_option
from planner.serving.space import deployment_of
from topology.builders import default_cluster

CAL = load_calibration()
SHAPES = {"deepseek-v3": "b200-sxm", "deepseek-r1": "h200-sxm", "kimi-k2": "b200-sxm"}


def prompts_per_s(name: str, engine: str, layout: ServingLayout, tokens: int) -> float:
    """Prompts of so many tokens that a replica computes a second, two a GPU in flight; 0 without room."""
    gpu = SHAPES[name]
    job = ServingJob(input_tokens=tokens, output_tokens=1)
    request = ServingRequest(model=model(name), job=job, gpu=gpu, engine=engine, weights=("fp8",))
    deployment = deployment_of(request, default_cluster(gpu, 8).hierarchy, "fp8", layout)
    option = started_option(CAL, deployment, job, max_batch=None, token_budget=None)
    assert isinstance(option, Option), option
    if option.rules.kv_capacity_tokens < 16 * tokens:
        return 0.0
    load = closed_load(
        concurrency=16, count=64, inputs=Lengths(mean=tokens), outputs=Lengths(mean=job.output_tokens)
    )
    return len(load) / simulate(option.times, option.rules, load).makespan_s


@pytest.mark.parametrize("tokens", [500, 2000, 8000, 20_000, 60_000, 100_000])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-r1"])
def test_ranks_compute_prompts_nearly_as_fast_as_tensor_parallelism(
    name: str, engine: str, tokens: int
) -> None:
    """Latent attention has one cached head: splitting it over GPUs saves no time that whole ranks lose."""
    ranks = prompts_per_s(name, engine, ServingLayout(attention_dp=8, ep=8), tokens)
    if not ranks:
        pytest.skip("the caches of the ranks do not hold two prompts each")
    tensor = prompts_per_s(name, engine, ServingLayout(tp=8, ep=8), tokens)
    assert ranks >= 0.8 * tensor
