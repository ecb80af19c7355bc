"""Tokens of KV cache as the engines report them.

Source: vllm-project/vllm issue 21348 (2025-07-22), Qwen3-235B-A22B-FP8 on 4 × H100, tensor parallel.
"""

from dataclasses import replace

import pytest

from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import serving_stack
from costmodel.serving.memory import engine_bytes, kv_bytes_per_token, kv_capacity_tokens, memory_breakdown
from topology.base.units import GIB
from topology.builders import default_cluster


def deployed(engine: str) -> Deployment:
    """What the issue's commands start."""
    return Deployment(
        model=model("qwen3-235b-a22b"),
        hierarchy=default_cluster("h100-sxm", 4).hierarchy,
        layout=ServingLayout(tp=4),
        stack=serving_stack(engine),
        weights="fp8",
    )


@pytest.mark.parametrize(
    ("engine", "cache_gib", "reported_tokens"), [("vllm", 8.11, 178_880), ("sglang", 8.23 + 8.23, 367_404)]
)
def test_reported_cache_holds_the_reported_tokens(
    engine: str, cache_gib: float, reported_tokens: int
) -> None:
    """Bytes of the cache over bytes of a token, within 2 %."""
    assert cache_gib * GIB / kv_bytes_per_token(deployed(engine)) == pytest.approx(reported_tokens, rel=0.02)


@pytest.mark.parametrize(
    ("engine", "fraction", "reported_tokens"), [("vllm", 0.9, 178_880), ("sglang", 0.93, 367_404)]
)
def test_capacity_is_what_the_engine_reports(engine: str, fraction: float, reported_tokens: int) -> None:
    """Weights, sampling and activations off the engine's share of an H100, within 5 %.

    Steps of 8,192 tokens and 1,024 requests are vLLM's defaults on that GPU.
    """
    tokens = kv_capacity_tokens(
        deployed(engine), token_budget=8192, max_batch=1024, memory_fraction=fraction, context=40_960
    )
    assert tokens == pytest.approx(reported_tokens, rel=0.05)


def test_cache_behind_pcie_is_what_vllm_reports() -> None:
    """8.69 GiB a GPU of two RTX 4090 at 0.98 (vllm issue 13061: Qwen2.5 14B), less what vLLM profiles since.

    That version profiled neither sampling nor graphs and its GPU had 23.55 GiB, so both are put back.
    """
    deployment = Deployment(
        model=model("qwen2.5-14b"),
        hierarchy=default_cluster("rtx-4090", 2).hierarchy,
        layout=ServingLayout(tp=2),
        stack=serving_stack("vllm"),
    )
    parts = memory_breakdown(deployment, token_budget=2048, max_batch=1, memory_fraction=0.98)
    reported_gpu_gib, graphs_gib = 23.55, 0.17
    smaller = 0.98 * (deployment.hierarchy.gpu.memory_bytes / GIB - reported_gpu_gib)
    assert parts.weights_bytes / GIB == pytest.approx(13.95, rel=0.02)
    assert parts.kv_cache_bytes / GIB - smaller + graphs_gib == pytest.approx(8.69, rel=0.05)


@pytest.mark.parametrize(("gpu", "gigabytes"), [("rtx-4090", 0.54), ("l40s", 0.54), ("h100-sxm", 4.5)])
def test_what_an_engine_holds_depends_on_the_links_of_the_gpu_and_not_on_their_number(
    gpu: str, gigabytes: float
) -> None:
    """A machine of one H100 has no NVLink to use, and its plan is that of one H100 of eight."""
    held = [
        engine_bytes(replace(deployed("vllm"), hierarchy=default_cluster(gpu, number).hierarchy))
        for number in (1, 4)
    ]
    assert held == [gigabytes * 1e9] * 2
