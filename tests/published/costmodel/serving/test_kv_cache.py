"""Tokens of KV cache as the engines report them.

Source: vllm-project/vllm issue 21348 (2025-07-22), Qwen3-235B-A22B-FP8 on 4 × H100, tensor parallel.
"""

import pytest

from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import serving_stack
from costmodel.serving.memory import kv_bytes_per_token, kv_capacity_tokens
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
