"""A server whose longest request is longer than its cache does not start, and its audit says so first."""

import json
import re

import pytest

from app.reports.audit.server import server_answer
from costmodel.kernels.tables import load_calibration
from costmodel.models.stored import checkpoints, known_checkpoint
from planner.audit.read import read_texts
from planner.audit.serving.audit import ServingAudit, audited_server
from planner.audit.serving.server import Server, server_of
from planner.audit.serving.start import Start

CAL = load_calibration()
LLAMA = "# vLLM 0.5.3\nvllm serve meta-llama/Meta-Llama-3.1-405B-Instruct-FP8 --tensor-parallel-size 8"
OSS = "# vLLM 0.11\nvllm serve openai/gpt-oss-120b --max-num-batched-tokens 1024"
SMALL = "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 1"
SGLANG = "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --tp 1"


def audit(words: str, gpu: str = "h100-sxm") -> ServingAudit:
    """What is said of a command, under no load."""
    reading = read_texts({"serve.sh": words})
    server = server_of(reading, model=None, gpu=gpu)
    assert isinstance(server, Server)
    return audited_server(CAL, reading, server, ())


def start(words: str, gpu: str = "h100-sxm") -> Start:
    """What the server holds when it starts."""
    found = audit(words, gpu).start
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("words", "gpu", "starts"),
    [
        (f"{LLAMA} --gpu-memory-utilization 0.9", "h100-sxm", False),  # vllm issue 6746
        (f"{LLAMA} --gpu-memory-utilization 0.9 --max-model-len 65536", "h100-sxm", True),  # 79,392 tokens
        (f"{LLAMA} --gpu-memory-utilization 0.9 --max-model-len auto", "h100-sxm", True),
        (LLAMA, "h200-sxm", True),
        (f"{OSS} --gpu-memory-utilization 0.90", "h100-sxm", False),  # vllm issue 23278: no cache is left
        (f"{OSS} --gpu-memory-utilization 0.95", "h100-sxm", False),  # vllm issue 27508: 1.71 of 4.54 GiB
        (f"{OSS} --gpu-memory-utilization 0.95", "h200-sxm", True),
        (SMALL, "h100-sxm", True),
        (f"{SMALL} --max-model-len 131072", "rtx-4090", False),
        (f"{SMALL} --max-model-len 8192", "rtx-4090", True),
        (f"{SGLANG} --context-length 131072", "rtx-4090", True),
    ],
)
def test_a_server_starts_where_its_cache_holds_a_full_request(words: str, gpu: str, starts: bool) -> None:
    """Unless the engine shortens its requests to the cache, or takes longer ones than that."""
    found = audit(words, gpu)
    answer = server_answer(found)
    assert found.start is not None
    assert found.start.starts is starts
    assert (found.fits is False) is not starts
    assert ("does not start" in answer.headline) is not starts


@pytest.mark.parametrize("length", [22_528, 24_576])
def test_a_small_cache_beside_large_weights_is_no_verdict(length: int) -> None:
    """Two gigabytes beside 65 that are estimated: it may start, and nothing fails on a guess."""
    words = "vllm serve Qwen/Qwen2.5-32B-Instruct --tensor-parallel-size 1 --kv-cache-dtype fp8"
    found = audit(f"{words} --gpu-memory-utilization 0.82 --max-model-len {length}")
    assert found.start is not None
    assert found.start.concurrency < 1
    assert (found.start.starts, found.fits) == (None, None)
    assert "may not start" in found.start.finding[0]  # type: ignore[index]  # it has one


@pytest.mark.parametrize(
    ("checkpoint", "starts"),
    [("Qwen/Qwen2.5-7B-Instruct", True), ("Qwen/Qwen2.5-7B", False), ("ours/Qwen2.5-7B-Chat", None)],
)
def test_a_length_that_nobody_says_is_the_checkpoints(checkpoint: str, starts: bool | None) -> None:
    """32,768 tokens fit a card of 24 GB, 131,072 do not; a guess carries no verdict and is said."""
    found = audit(f"vllm serve {checkpoint}", "a10g")
    assert found.start is not None
    assert found.start.starts is starts
    text = json.dumps(server_answer(found).document())
    assert ("are not known" in text) is (starts is None)
    assert ("is a guess" in found.start.why) is (starts is None)


def test_what_is_wrong_stands_first_with_the_memory_in_the_words_of_the_engine() -> None:
    """Weights, cache and concurrency, above what was read from the files."""
    found = audit(f"{LLAMA} --gpu-memory-utilization 0.9")
    first = server_answer(found).sections[0]
    names = [name for name, _ in first.pairs]  # type: ignore[union-attr]  # the first section is of pairs
    assert names[0] == "start"
    text = dict(first.pairs)["memory"]  # type: ignore[union-attr]  # same
    assert "weights 57.7 GiB" in text
    assert "maximum concurrency for 131,072 tokens" in text


@pytest.mark.parametrize("length", [1024, 4096, 16_384, 32_768, 65_536, 131_072])
def test_concurrency_is_the_cache_over_the_length(length: int) -> None:
    """And the verdict is that of the numbers beside it."""
    found = start(f"{SMALL} --max-model-len {length}", "l40s")
    assert found.longest == length
    assert found.concurrency == pytest.approx(found.cache_tokens / length)
    assert (found.finding is None) is (found.concurrency >= 1)


def test_all_memory_is_remarked_on() -> None:
    """Nothing is left for what the engine does not count."""
    finding = start(f"{SMALL} --gpu-memory-utilization 1.0").finding
    assert finding is not None
    assert "does not start" in finding[0]
    assert "all memory" in finding[0]
    assert start(f"{SMALL} --gpu-memory-utilization 0.9").finding is None


def test_known_checkpoints_have_a_source_and_weigh_more_than_their_format() -> None:
    """As the engine printed them: vLLM issues 6746, 23278 (0.11) and 33155 (0.14.1)."""
    assert all(one.source and one.as_of for one in checkpoints())
    assert known_checkpoint("meta-llama/Llama-3.1-8B-Instruct") is None
    printed = ((LLAMA, 57.752), (OSS, 65.97), (OSS.replace("0.11", "0.14.1"), 64.38))
    for words, gib in printed:
        assert start(words).weights_bytes / 2**30 == pytest.approx(gib, rel=0.005)


def test_the_engine_says_what_one_request_needs() -> None:
    """Issue 27508 of vLLM: 4.54 GiB of cache for 131,072 tokens, windows with the tokens of a step among them."""
    found = start(f"{OSS} --gpu-memory-utilization 0.95")
    assert found.request_bytes / 2**30 == pytest.approx(4.54, rel=0.002)


@pytest.mark.parametrize(
    "words", [LLAMA, f"{OSS} --gpu-memory-utilization 0.95", f"{SMALL} --max-model-len 131072"]
)
def test_a_server_starts_with_the_settings_that_help(words: str) -> None:
    """A length that is named is one that the cache holds."""
    found = start(
        f"{words} --gpu-memory-utilization 0.9" if words == LLAMA else words,
        "rtx-4090" if words.startswith(SMALL) else "h100-sxm",
    )
    assert found.remedy
    if match := re.search(r"at most ([0-9,]+) tokens$", found.remedy):
        length = match[1].replace(",", "")
        assert start(f"{words} --max-model-len {length}").starts


def test_json_has_the_words_of_the_log() -> None:
    """The keys that tools read."""
    document = json.loads(server_answer(audit(f"{LLAMA} --gpu-memory-utilization 0.9")).document())
    assert document["starts"] is False
    assert "131,072" in document["why"]
    assert document["weights_gib_per_gpu"] == pytest.approx(57.752, rel=0.005)
    assert document["longest_context"] == document["kv_cache_tokens"] < 131_072
    assert document["max_concurrency"] == pytest.approx(document["kv_cache_tokens"] / 131_072, rel=1e-3)


def test_requests_with_windows_are_told_as_the_engine_counts_them_and_as_they_are_kept() -> None:
    """Two counts of one cache: at its start a step's tokens stand in the windows, later they do not."""
    windows = start("# vLLM 0.25\nvllm serve deepseek-ai/DeepSeek-V4-Flash -tp 4 --max-model-len 4096")
    assert windows.kept_concurrency > 10 * windows.concurrency
    assert f"counts at its start; once computed {windows.kept_concurrency:.2f}x" in windows.words
    whole = start(f"{SMALL} --max-model-len 8192")
    assert whole.kept_concurrency == pytest.approx(whole.concurrency, rel=1e-3)
    assert "windows" not in whole.words


SPARK = (
    "# vLLM 0.29.1\nvllm serve cyankiwi/MiniMax-M2.7-AWQ-4bit --gpu-memory-utilization {} -tp 2 "
    "--distributed-executor-backend ray --max-model-len {}"
)


@pytest.mark.parametrize(
    ("words", "gpu", "starts"),
    [
        (SPARK.format(0.8, 196608), "gb10", None),  # 22.5 GiB by its log, 23.25 asked: it did not
        (SPARK.format(0.8, 32768), "gb10", True),
        (f"{SPARK.format(0.8, 196608)} --kv-cache-memory-bytes 32000000000", "gb10", True),
        ("# vLLM 0.27.1\nvllm serve Qwen/Qwen3.8-27B --max-model-len 32768", "gb10", True),  # a log: 51.7 GiB
        (SPARK.format(0.9, 196608), "rtx-pro-6000", True),  # the GPU has its own
        (SPARK.format(0.9, 196608), "gh200-144gb", True),  # memory behind a link, but of its own
    ],
)
def test_a_host_with_the_same_memory_leaves_a_doubt(words: str, gpu: str, starts: bool | None) -> None:
    """What the host takes meanwhile counts, more on two hosts; not of a cache that is stated."""
    held = start(words, gpu)
    assert held.starts is starts
    assert held.host_may_fill is (starts is None)
    assert starts is True or (held.finding is not None and "one memory" in held.finding[0])
