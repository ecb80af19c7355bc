"""The cache of one server is one count: of its plan, its plan's file, its prediction, and its script's audit."""

from __future__ import annotations

from itertools import product

import pytest

import meshplan
from app.reports.audit.server import start_keys as keys_of_start
from costmodel.serving.engine import serving_stack
from meshplan.serving import LoadWords
from planner.audit.read import read_texts
from planner.audit.serving.texts import judged, predicted_plan
from planner.deployment.vllm_sglang import engine_words
from planner.questions.flags import ServeFlags
from planner.serving.plan import serving_from_json, serving_to_json, start_keys
from tests.counts import cases_of_run

NAMES = (
    "8b", "gpt-oss-120b", "kimi-k3", "minimax-m3", "deepseek-v3", "deepseek-v4-flash", "qwen3.5-35b-a3b",
    "qwen3-next-80b-a3b", "gemma-3-27b", "llama-4-maverick", "nemotron-3-nano", "glm-5", "kimi-linear-48b-a3b",
)  # fmt: skip
LOAD = ServeFlags(concurrency="2", input_tokens="2000", output_tokens="20")
CASES = list(product(NAMES, ("aggregated", "disaggregated")))
IN_SUITE = (("8b", "disaggregated"), ("gemma-3-27b", "aggregated"), ("nemotron-3-nano", "disaggregated"))


@pytest.mark.parametrize(
    ("name", "mode"), cases_of_run(CASES, nightly=[case for case in CASES if case not in IN_SUITE])
)
def test_a_plan_and_its_prediction_count_one_cache(name: str, mode: str) -> None:
    """Every pool; and the script that starts an only pool, which is told how many requests run at once."""
    gpus = 16 if name == "kimi-k3" else 8
    words = LoadWords(gpu="b200-sxm", concurrency=2, input=2000, output=20, layout={"tp": gpus}, mode=mode)
    words["gpus"] = gpus * (1 + (mode == "disaggregated"))
    plan = meshplan.serve(name, **words)
    read = serving_from_json(serving_to_json(plan))
    audit = predicted_plan(read, LOAD, "plan.json")
    assert keys_of_start(audit.start) == start_keys(plan) == start_keys(read)
    started = (audit.prefill_start,) * (plan.prefill is not None) + (audit.start,)
    for (_, pool), start in zip(plan.pools, started, strict=True):
        assert start is not None
        assert (start.cache_tokens, start.longest_tokens) == (pool.cache_tokens, pool.longest_context)
        assert 0 < pool.longest_context <= pool.cache_tokens or pool.longest_context == 0
    if plan.prefill is None:
        texts = {"serve.sh": " ".join(engine_words(plan, plan.decode, ""))}
        audited = judged(read_texts(texts), texts, {}, LOAD, {}, model=name, gpu="b200-sxm", compares=False)
        assert audited.start is not None
        assert audited.start.cache_tokens == plan.decode.cache_tokens


@pytest.mark.parametrize(
    "more",
    [
        LoadWords(draft_tokens=3, drafter="eagle3", acceptance=0.9),
        LoadWords(draft_tokens=2, acceptance=0.5),
        LoadWords(adapter="lora:r=16", adapters=8),
        LoadWords(memory_fraction=0.7, kv="fp8"),
    ],
)
def test_what_a_plan_holds_besides_is_in_its_prediction(more: LoadWords) -> None:
    """Drafts and their share that is accepted, adapters, its memory setting and the format of its cache."""
    load = LoadWords(gpu="h100-sxm", gpus=1, concurrency=8, input=1000, output=100, mode="aggregated")
    load.update(more)
    plan = meshplan.serve("8b", **load)
    audit = predicted_plan(serving_from_json(serving_to_json(plan)), ServeFlags(), "plan.json")
    assert keys_of_start(audit.start) == start_keys(plan)
    (judged,) = audit.loads
    assert judged.running is not None
    assert judged.running.requests_per_s == pytest.approx(plan.estimate.request_rate_per_s, rel=0.01)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_plan_names_the_longest_request_that_its_own_command_does(engine: str) -> None:
    """TensorRT-LLM is told one; vLLM and SGLang take what the cache or the model holds."""
    words = LoadWords(gpu="h200-sxm", gpus=1, concurrency=4, input=1000, output=100, mode="aggregated")
    words |= LoadWords(engine=engine, weights="bf16")
    plan = meshplan.serve("8b", **words)
    texts = {"serve.sh": " ".join(engine_words(plan, plan.decode, ""))}
    audited = judged(read_texts(texts), texts, {}, LOAD, {}, gpu="h200-sxm", compares=False)
    predicted = predicted_plan(serving_from_json(serving_to_json(plan)), LOAD, "plan.json")
    assert keys_of_start(audited.start) == keys_of_start(predicted.start) == start_keys(plan)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", ["8b", "deepseek-v3"])
def test_a_cache_of_alike_tokens_has_one_count(engine: str, name: str) -> None:
    """Where a token keeps as much whatever its request, requests of the load and longest ones find as many."""
    gpus = {"8b": 1, "deepseek-v3": 8}[name]
    words = LoadWords(gpu="h200-sxm", gpus=gpus, concurrency=8, input=1000, output=100, mode="aggregated")
    plan = meshplan.serve(name, **words, engine=engine)
    pool, block = plan.decode, serving_stack(engine).kv_block_tokens
    assert pool.kv_capacity_tokens == pool.cache_tokens * pool.layout.attention_dp
    assert pool.cache_tokens % block == 0
    assert pool.longest_context <= pool.cache_tokens
