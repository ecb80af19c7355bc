"""A model whose layers keep a state: a page of the pool for every request that may run, or no start."""

from __future__ import annotations

import pytest

from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import serving_stack
from costmodel.serving.held import held_cache
from costmodel.serving.pages import paged_request_bytes, state_page_bytes
from planner.audit.read import read_texts
from planner.audit.serving.audit import ONE_REQUEST
from planner.audit.serving.full_load import asked_of
from planner.audit.serving.server import Server, as_planned, server_of
from planner.audit.serving.start import Start, start_of
from topology.builders import default_cluster

GIB = 2**30
HYBRID = "vllm serve Qwen/Qwen3.6-27B-FP8 --max-model-len 65536"
NEW, OLD = "# vLLM 0.24.0\n", "# vLLM 0.19.1\n"


def start(words: str, gpu: str = "h100-sxm") -> Start:
    """What the server holds when it starts."""
    server = server_of(read_texts({"serve.sh": words}), model=None, gpu=gpu)
    assert isinstance(server, Server)
    request, hierarchy = asked_of(server, ONE_REQUEST).requests[0]
    return start_of(server, as_planned(server, request), hierarchy)


@pytest.mark.parametrize(
    ("words", "gpu", "starts"),
    [
        (HYBRID, "h100-sxm", False),  # 1,024 by default on 80 GB
        (NEW + HYBRID, "h100-sxm", False),
        (NEW + HYBRID, "a100-sxm-40gb", False),  # 256 by default on 40 GB
        (HYBRID, "b200-sxm", True),
        (f"{HYBRID} --max-num-seqs 512", "h100-sxm", True),
        (f"{HYBRID} --max-num-seqs 1000", "h100-sxm", False),
        (f"{HYBRID} --enforce-eager", "h100-sxm", True),  # no graph asks for a state
        (f"{HYBRID} -O1", "h100-sxm", True),
        (f"{HYBRID} -O 3", "h100-sxm", False),
        (f'{HYBRID} --compilation-config \'{{"cudagraph_mode": "PIECEWISE"}}\'', "h100-sxm", True),
        (f"{HYBRID} --max-num-batched-tokens 512", "h100-sxm", True),  # no more requests than tokens
        (OLD + HYBRID, "h100-sxm", True),  # captured smaller steps instead
        ("vllm serve Qwen/Qwen3-32B-FP8 --max-model-len 32768", "h100-sxm", True),  # no states
        ("python -m sglang.launch_server --model-path Qwen/Qwen3.6-27B-FP8", "h100-sxm", True),
    ],
)
def test_an_engine_starts_where_its_cache_has_a_state_for_every_request(
    words: str, gpu: str, starts: bool
) -> None:
    """Vllm pull 38270; issue 49064 and recipes pulls 551 and 831 print it of H100 and RTX PRO 6000."""
    assert start(words, gpu).starts is starts


def test_what_is_told_to_be_given_starts() -> None:
    """The number is one that the lower end of the cache holds."""
    refused = start(HYBRID)
    assert refused.finding is not None
    why, fix = refused.finding
    assert "1,024 requests may run at once, by the release's default" in why
    number = fix.partition("--max-num-seqs ")[2].split()[0]
    assert 0 < int(number) <= refused.sure_states < refused.state_pages < 1024
    assert start(f"{HYBRID} --max-num-seqs {number}").starts is True


def test_a_cache_too_small_for_the_longest_request_is_told_both() -> None:
    """A card of 40 GB holds neither 262,144 tokens nor 256 states."""
    found = start("vllm serve Qwen/Qwen3.6-27B-FP8", "a100-sxm-40gb").finding
    assert found is not None
    assert "allow requests of at most" in found[1]
    assert "--max-num-seqs" in found[1]


@pytest.mark.parametrize(
    ("name", "tp", "cache_gib", "states"),
    [
        ("qwen3.6-27b", 2, 3.86, 161),  # vllm issue 49064, of the same shape: 2 x RX 7900 XT, 122,633 tokens
        ("qwen3.5-9b", 1, 1.74, 108),  # a recipe's card, vLLM 0.27.1: 53,084 tokens of 24,576
    ],
)
def test_states_are_as_many_as_the_engine_prints(name: str, tp: int, cache_gib: float, states: int) -> None:
    """Of the cache that it prints in hundredths of a GiB."""
    page = state_page_bytes(_deployed(name, tp))
    least, most = ((cache_gib + half) * GIB / page for half in (-0.005, 0.005))
    assert int(least) <= states <= int(most)


def test_states_of_an_estimated_cache_are_near_what_was_printed() -> None:
    """Recipes pull 551: 856 on an H100 at 0.95 (the tower's own share is not counted, doubts are 15 %)."""
    found = start("# vLLM 0.22.0\nvllm serve Qwen/Qwen3.6-27B-FP8 --gpu-memory-utilization 0.95")
    assert found.state_pages == pytest.approx(856, rel=0.15)


@pytest.mark.parametrize("name", ["qwen3.6-27b", "qwen3.5-9b", "nemotron-3-super", "qwen3-next-80b-a3b"])
def test_a_request_of_a_plan_holds_more_than_its_state(name: str) -> None:
    """So a plan's own limit on requests, which its cache holds, is one that its engine takes."""
    deployed = _deployed(name, 2)
    request = paged_request_bytes(deployed, 1)
    assert request is not None
    assert request >= 2 * state_page_bytes(deployed) > 0
    held = held_cache(deployed, token_budget=2048, max_batch=8, longest=2048)
    assert held.cache_bytes // request <= held.state_pages


def _deployed(name: str, tp: int) -> Deployment:
    return Deployment(
        model=model(name),
        hierarchy=default_cluster("h100-sxm", tp).hierarchy,
        layout=ServingLayout(tp=tp),
        stack=serving_stack("vllm"),
        weights="fp8",
    )
