"""What a request holds of a pool of pages whose layers keep unlike things, beside what vLLM printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import at_version, serving_stack
from costmodel.serving.memory import kv_bytes_per_token
from costmodel.serving.pages import paged_request_bytes
from topology.builders import default_cluster

GIB = 2**30
POOL = default_cluster("h200-sxm", 8).hierarchy


def deployed(name: str, tp: int = 8, engine: str = "vllm") -> Deployment:
    """A deployment with an eight-bit cache."""
    stack, layout = serving_stack(engine), ServingLayout(tp=tp)
    return Deployment(
        model=model(name), hierarchy=POOL, layout=layout, stack=stack, weights="fp4", kv_dtype="fp8"
    )


def test_a_request_of_a_million_tokens_needs_what_the_engine_prints() -> None:
    """Vllm issue 53961: 23.32 GiB of DeepSeek-V4-Pro at 1,048,576 tokens, two steps of 16,384 in flight."""
    needed = paged_request_bytes(deployed("deepseek-v4-pro"), 1_048_576, 2 * 16_384)
    assert needed == pytest.approx(23.32 * GIB, rel=0.0005)


def test_a_pool_holds_the_tokens_that_the_engine_prints() -> None:
    """Vllm issue 51041: 1,009,661 tokens of DeepSeek-V4-Flash in 7.01 GiB, requests of 912,128, one step."""
    needed = paged_request_bytes(deployed("deepseek-v4-flash", 2), 912_128, 8192)
    assert needed is not None
    assert 7.01 * GIB / needed * 912_128 == pytest.approx(1_009_661, rel=0.02)


def test_pages_are_those_of_the_layers_that_the_engine_printed() -> None:
    """Vllm issue 54703: a page of 1,002,240 bytes; a request of one block holds a page, and two of a window's."""
    flash = deployed("deepseek-v4-flash")
    more = [paged_request_bytes(flash, tokens) for tokens in (4096, 4096 + 256)]
    assert more[0] is not None
    assert more[1] is not None
    assert more[1] - more[0] == 1_002_240


def test_a_state_and_every_draft_hold_a_page_of_attention() -> None:
    """Qwen3.5-27B on two GPUs: 48 states of 1.6 MB in three groups of 16 layers, blocks of 1,568 tokens."""
    plain = deployed("qwen3.5-27b", 2)
    page = 16 * 1568 * 2 * 2 * 256
    assert paged_request_bytes(plain, 1568) == page * (1 + 3)
    assert paged_request_bytes(plain, 1569) == page * (2 + 3)
    drafted = replace(plain, drafter="mtp", draft_tokens=3)
    assert paged_request_bytes(drafted, 1568) == page / 16 * 17 * (1 + 3 * 4)
    assert kv_bytes_per_token(drafted, 1568) * 1568 == pytest.approx(page / 16 * 17 * (1 + 3 * 4))


def test_other_engines_and_models_have_no_such_pages() -> None:
    """A layer keeps what it needs."""
    assert paged_request_bytes(deployed("deepseek-v4-pro", engine="sglang"), 4096) is None
    assert paged_request_bytes(deployed("deepseek-v3"), 4096) is None


def test_windows_hold_the_tokens_of_two_steps_since_a_version() -> None:
    """VllmConfig.max_in_flight_tokens came with 0.26."""
    stack = serving_stack("vllm")
    assert [at_version(stack, version).batches_in_flight for version in ("0.25", "0.26", "")] == [1, 2, 2]
