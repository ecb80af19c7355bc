"""Results of the four benchmark clients, in the forms that they write."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from costmodel.calibration.bench_files import Figures, read_bench
from topology.base.errors import InputError

VLLM: dict[str, Any] = {
    "date": "20261101-101500", "endpoint_type": "openai", "backend": "openai", "label": None,
    "model_id": "Qwen/Qwen3-32B", "tokenizer_id": "Qwen/Qwen3-32B", "num_prompts": 640, "request_rate": "inf",
    "burstiness": 1.0, "max_concurrency": 64, "duration": 214.0, "completed": 640,
    "total_input_tokens": 655_360, "total_output_tokens": 163_840, "request_throughput": 2.99,
    "output_throughput": 765.6, "total_token_throughput": 3828.0, "mean_ttft_ms": 620.0,
    "median_ttft_ms": 580.1, "std_ttft_ms": 301.0, "p99_ttft_ms": 2400.5, "mean_tpot_ms": 21.5,
    "median_tpot_ms": 21.4, "std_tpot_ms": 1.9, "p99_tpot_ms": 29.9, "mean_itl_ms": 21.4, "p99_itl_ms": 90.2,
}  # fmt: skip
SGLANG: dict[str, Any] = {
    "backend": "sglang", "dataset_name": "random", "request_rate": "inf", "max_concurrency": 16,
    "sharegpt_output_len": None, "random_input_len": 1024, "random_output_len": 512,
    "random_range_ratio": 0.8, "server_info": {"model_path": "Qwen/Qwen3-32B", "tp_size": 4},
    "duration": 60.0, "completed": 160, "total_input_tokens": 147_456, "total_output_tokens": 73_728,
    "total_output_tokens_retokenized": 73_700, "request_throughput": 2.66, "mean_e2e_latency_ms": 5900.0,
    "median_e2e_latency_ms": 5880.0, "mean_ttft_ms": 210.0, "median_ttft_ms": 190.0, "std_ttft_ms": 80.0,
    "p99_ttft_ms": 500.0, "mean_tpot_ms": 12.3, "median_tpot_ms": 12.2, "mean_itl_ms": 12.3,
    "concurrency": 15.7, "accept_length": None,
}  # fmt: skip


def metric(unit: str, avg: float, **more: float) -> dict[str, Any]:
    """One metric of genai-perf or aiperf."""
    return {"unit": unit, "avg": avg, **more}


GENAI_PERF: dict[str, Any] = {
    "request_throughput": metric("requests/sec", 2.87), "request_latency": metric("ms", 2784.0, p99=2999.0),
    "time_to_first_token": metric("ms", 160.0, p50=150.1, p99=260.0, min=90.0, max=300.0, std=30.0),
    "inter_token_latency": metric("ms", 10.5, p99=11.2), "request_count": metric("count", 80.0),
    "output_token_throughput": metric("tokens/sec", 720.0),
    "output_sequence_length": metric("tokens", 251.0, min=249.0, max=256.0),
    "input_sequence_length": metric("tokens", 550.0, min=548.0, max=551.0),
    "input_config": {"model": ["meta-llama/Llama-3.1-8B-Instruct"], "backend": "vllm", "streaming": True,
                     "perf_analyzer": {"stimulus": {"concurrency": 8}}},
}  # fmt: skip
AIPERF: dict[str, Any] = {
    **GENAI_PERF,
    "schema_version": "1.1", "aiperf_version": "0.8.0",
    "input_config": {
        "endpoint": {"model_names": ["meta-llama/Llama-3.1-8B-Instruct"], "streaming": True},
        "loadgen": {"concurrency": 8, "request_count": 80},
    },
}  # fmt: skip


def read(tmp_path: Path, *documents: object) -> tuple[Figures, ...]:
    """Read documents, one a line."""
    path = tmp_path / "bench.json"
    path.write_text("\n".join(json.dumps(one) for one in documents), encoding="utf-8")
    return read_bench(path)


def test_what_vllm_bench_serve_writes(tmp_path: Path) -> None:
    """Means in seconds, lengths per request, the client's limit as requests in flight."""
    (found,) = read(tmp_path, VLLM)
    assert (found.tool, found.engine, found.model) == ("vllm bench serve", "vllm", "Qwen/Qwen3-32B")
    assert (found.requests, found.concurrency, found.input_tokens, found.output_tokens) == (
        640,
        64,
        1024,
        256,
    )
    assert (found.ttft_s, found.tpot_s) == pytest.approx((0.62, 0.0215))
    assert found.lowest_length_share is None


def test_lengths_that_were_written_tell_their_spread(tmp_path: Path) -> None:
    """`--save-detailed` lists them."""
    (found,) = read(tmp_path, {**VLLM, "output_lens": [200, 256, 250], "errors": ["", "", ""]})
    assert found.lowest_length_share == 200 / 256


def test_what_sglang_bench_serving_appends(tmp_path: Path) -> None:
    """One result a line; the range of random lengths is the share of the longest."""
    one, other = read(tmp_path, SGLANG, {**SGLANG, "max_concurrency": 32})
    assert (one.engine, one.model, one.lowest_length_share) == ("sglang", "Qwen/Qwen3-32B", 0.8)
    assert (one.concurrency, other.concurrency) == (16, 32)


@pytest.mark.parametrize(("document", "tool"), [(GENAI_PERF, "genai-perf"), (AIPERF, "aiperf")])
def test_what_genai_perf_and_aiperf_export(tmp_path: Path, document: dict[str, Any], tool: str) -> None:
    """Averages in the unit that stands beside them."""
    (found,) = read(tmp_path, document)
    assert (found.tool, found.model) == (tool, "meta-llama/Llama-3.1-8B-Instruct")
    assert (found.requests, found.concurrency, found.input_tokens, found.output_tokens) == (80, 8, 550, 251)
    assert (found.ttft_s, found.tpot_s) == pytest.approx((0.16, 0.0105))
    seconds = {**document, "inter_token_latency": metric("s", 0.0105)}
    assert read(tmp_path, seconds)[0].tpot_s == pytest.approx(0.0105)


def test_without_a_limit_the_requests_in_flight_follow_from_rate_and_stay(tmp_path: Path) -> None:
    """Little: requests a second times the seconds that one stays; never more than there were."""
    (found,) = read(tmp_path, {**VLLM, "max_concurrency": None})
    assert found.concurrency == round(2.99 * (0.62 + 256 * 0.0215))
    (burst,) = read(tmp_path, {**VLLM, "max_concurrency": None, "request_throughput": 900.0})
    assert burst.concurrency == 640


HOSTILE = (
    "", "[]", "{}", "null", "\x00", "[" * 100_000, '{"mean_ttft_ms": 1}', "{}\n" * 100,
    *(json.dumps({**VLLM, key: value}) for key in ("mean_tpot_ms", "completed", "total_output_tokens")
      for value in (0, -1, "x", None, True, 1e300, [1])),
    json.dumps({**VLLM, "mean_tpot_ms": math.nan}),
    json.dumps({**VLLM, "total_output_tokens": 640}),
    json.dumps({**VLLM, "max_concurrency": 10**9, "completed": 10**9}),
    json.dumps({**GENAI_PERF, "time_to_first_token": {"unit": "weeks", "avg": 1}}),
    json.dumps({**GENAI_PERF, "output_sequence_length": 5}),
    json.dumps({**GENAI_PERF, "time_to_first_token": {"unit": [], "avg": {}}}),
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    """In three lines, with the file."""
    path = tmp_path / "bench.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"bench\.json"):
        read_bench(path)


def test_odd_settings_of_a_client_are_left_out(tmp_path: Path) -> None:
    """Nothing but the figures is needed."""
    odd: dict[str, Any] = {"input_config": {"endpoint": [], "loadgen": 3, "perf_analyzer": {"stimulus": 1}}}
    (found,) = read(tmp_path, {**GENAI_PERF, **odd})
    assert (found.model, found.concurrency) == ("", round(2.87 * (0.16 + 251 * 0.0105)))
    (other,) = read(tmp_path, {**SGLANG, "server_info": [], "random_range_ratio": "x"})
    assert (other.model, other.lowest_length_share) == ("", None)
