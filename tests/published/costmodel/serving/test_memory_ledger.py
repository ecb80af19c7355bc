"""What servers printed as they loaded, beside what is predicted: weights, tokens of the cache, whether they start.

The package-side rows are figures of public threads (`source`); all of ``shared/data/memory_ledger.csv`` is held to
the same where it is there. A row without a version is judged by the release of its day.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import pytest

from costmodel.kernels.tables import load_calibration
from planner.audit.read import read_texts
from planner.audit.serving.audit import audited_server
from planner.audit.serving.server import Server, server_of
from planner.audit.serving.start import Start
from topology.base.errors import InputError
from topology.catalog import gpu_name

CAL = load_calibration()
LEDGER = Path(__file__).parents[5] / "shared" / "data" / "memory_ledger.csv"
GIB = 2**30
WEIGHTS, TOKENS = 0.015, 0.06
TOKENS_OF_MOST = 0.045
RELEASES = (
    ("2024-07-23", "0.5"), ("2024-09-04", "0.6"), ("2025-01-27", "0.7"), ("2025-03-18", "0.8"),
    ("2025-05-15", "0.9"), ("2025-07-24", "0.10"), ("2025-10-02", "0.11"), ("2025-12-03", "0.12"),
    ("2026-01-20", "0.14"), ("2026-05-01", "0.20"), ("2026-05-29", "0.22"), ("2026-07-02", "0.24"),
    ("2026-07-11", "0.25"), ("2026-07-24", "0.26"), ("2026-08-07", "0.27"), ("2026-08-26", "0.28"),
    ("2026-09-09", "0.29"),
)  # fmt: skip
"""Days of vLLM's releases (its tags at github.com)."""
SGLANG_RELEASES = (
    ("2025-07-01", "0.4"), ("2026-06-17", "0.5.13"), ("2026-07-15", "0.5.15"), ("2026-08-08", "0.5.17"),
    ("2026-08-25", "0.5.18"), ("2026-09-07", "0.5.19"), ("2026-09-18", "0.5.20"),
)  # fmt: skip
"""The same of SGLang (images of aws/deep-learning-containers, pulls 6655 and 6722; gpustack/runner pull 236)."""
MTP = '--speculative-config \'{{"method": "mtp", "num_speculative_tokens": {}}}\''
ROWS = [
    # command, GPU, what was printed, source
    (
        ("# vLLM 0.5.3\nvllm serve meta-llama/Meta-Llama-3.1-405B-Instruct-FP8 --tensor-parallel-size 8 "
        "--max-model-len 131072 --gpu-memory-utilization 0.9"),
        "h100-sxm", {"weights": 57.752, "tokens": 79_392, "starts": False}, "vllm issue 6746",
    ),
    (
        "# vLLM 0.14.1\nvllm serve openai/gpt-oss-120b --max-num-batched-tokens 5120",
        "h100-sxm", {"weights": 64.38, "starts": False}, "vllm issue 33155",
    ),
    (
        "# vLLM 0.9.2\nvllm serve Qwen/Qwen3-235B-A22B-FP8 --tensor-parallel-size 4",
        "h100-sxm", {"tokens": 178_880, "starts": True}, "vllm issue 21348",
    ),
    (
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B-FP8 --tp 4 --mem-fraction-static 0.93",
        "h100-sxm", {"tokens": 367_404, "starts": True}, "vllm issue 21348",
    ),
    (
        "# vLLM 0.5.5\nvllm serve meta-llama/Meta-Llama-3-8B-Instruct",
        "mi300x", {"tokens": 1_262_352, "starts": True}, "rocm-blogs, vllm-optimize",
    ),
    (
        ("# vLLM 0.5.4\nvllm serve deepseek-ai/DeepSeek-Coder-V2-Instruct --tensor-parallel-size 8 "
        "--max-model-len 64000 --gpu-memory-utilization 0.95"),
        "h100-sxm", {"starts": False}, "vllm pull 4650",
    ),
    (
        ("# vLLM 0.10.1\nvllm serve Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8 --data-parallel-size 8 "
        "--enable-expert-parallel --max-model-len 262144"),
        "h20-141gb", {"tokens": 205_728, "starts": False}, "vllm recipes pull 12",
    ),
    (
        ("# SGLang 0.5.13\nsglang serve --model-path deepseek-ai/DeepSeek-V4-Pro --tp 8 --moe-runner-backend marlin "
        "--mem-fraction-static 0.88"),
        "h200-sxm", {"weights": 125.65, "starts": False}, "InferenceX issue 2128",
    ),
    (
        ("# SGLang 0.5.13\nsglang serve --model-path deepseek-ai/DeepSeek-V4-Pro --tp 8 --moe-runner-backend marlin "
        "--mem-fraction-static 0.93"),
        "h200-sxm", {"starts": True}, "InferenceX issue 2128: 0.9113 at least",
    ),
    (
        "# vLLM 0.19.1\nvllm serve Qwen/Qwen3-8B",
        "a100-sxm-40gb", {"weights": 15.27, "tokens": 140_960, "starts": True}, "a log: graphs estimated, not counted",
    ),
    (
        ("# vLLM 0.19.0\nvllm serve Qwen/Qwen2.5-72B-Instruct --tensor-parallel-size 4 --max-model-len 8192 "
        "--gpu-memory-utilization 0.9"),
        "l40s", {"weights": 33.98, "tokens": 67_024, "starts": True}, "a log over PCIe",
    ),
    (
        ("# vLLM 0.21.0\nvllm serve Qwen/Qwen2.5-14B-Instruct --max-model-len 4096 --max-num-seqs 256 "
        "--gpu-memory-utilization 0.9"),
        "h100-sxm", {"tokens": 226_240, "starts": True}, "a log: graphs counted",
    ),
    (
        "# vLLM 0.21.0\nvllm serve Qwen/Qwen3-8B --max-model-len 16384 --gpu-memory-utilization 0.9764",
        "rtx-4090", {"tokens": 46_368, "starts": True}, "LMCache issue 3430: graphs 0.52 GiB",
    ),
    (
        "# vLLM 0.27.1\nvllm serve Qwen/Qwen3.8-27B --max-model-len 32768",
        "gb10", {"tokens": 786_432, "starts": True}, "a log: graphs 1.56 GiB",
    ),
    (
        ("# vLLM 0.26.0\nvllm serve Qwen/Qwen3.8-27B-FP8 --max-model-len 131072 --gpu-memory-utilization 0.9 "
        "--max-num-seqs 16"),
        "l40s", {"weights": 28.51, "tokens": 155_600, "starts": True}, "a report of 2026-09",
    ),
    (
        "# vLLM 0.26.0\nvllm serve Qwen/Qwen3.8-27B-FP8 --max-model-len 131072 --gpu-memory-utilization 0.9",
        "l40s", {"weights": 28.51, "tokens": 141_036, "starts": False}, "the same: fewer states than 256 requests",
    ),
    (
        "# vLLM 0.31.0\nvllm serve meta-llama/Llama-3.1-8B-Instruct",
        "a100-sxm-80gb", {"weights": 15.0, "tokens": 460_496, "starts": True}, "a log: graphs 0.23 GiB",
    ),
    (
        "# vLLM 0.11.2\nvllm serve deepseek-ai/DeepSeek-R1-0528 --tensor-parallel-size 8 --max-model-len 8192",
        "h200-sxm", {"weights": 79.739, "tokens": 635_648, "starts": True}, "a log: latents' products kept twice",
    ),
    (
        ("# vLLM 0.25.0\nvllm serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 2 --kv-cache-dtype fp8 "
        "--gpu-memory-utilization 0.95 --max-model-len 1048576 --max-num-seqs 64 --max-num-batched-tokens 4096 "
        "--speculative-config '{\"method\": \"mtp\", \"num_speculative_tokens\": 2}'"),
        "rtx-pro-6000", {"weights": 75.64, "tokens": 1_993_100, "starts": True}, "a guide: graphs 1.58 GiB",
    ),
    (
        ("# vLLM 0.20.0\nvllm serve RedHatAI/Qwen3.6-35B-A3B-NVFP4 --max-model-len 65536 --max-num-seqs 1 "
        "--max-num-batched-tokens 8192 --kv-cache-dtype fp8_e4m3 --max-cudagraph-capture-size 1"),
        "gb10", {"weights": 21.86, "starts": True}, "a log: a scale to sixteen weights",
    ),
]  # fmt: skip


def start_of_command(words: str, gpu: str) -> Start | None:
    """What a command's server holds; None where its model is not known."""
    reading = read_texts({"serve.sh": f"#!/bin/bash\n{words}\n"})
    server = server_of(reading, model=None, gpu=gpu)
    return audited_server(CAL, reading, server, ()).start if isinstance(server, Server) else None


@pytest.mark.parametrize(("words", "gpu", "printed", "source"), ROWS)
def test_a_server_holds_what_its_log_says(
    words: str, gpu: str, printed: Mapping[str, float], source: str
) -> None:
    """Weights within 1.5 %, tokens within 6 %, and the verdict."""
    start = start_of_command(words, gpu)
    assert start is not None, source
    assert start.starts is bool(printed["starts"])
    if "weights" in printed:
        assert start.weights_bytes / GIB == pytest.approx(printed["weights"], rel=WEIGHTS)
    if "tokens" in printed:
        assert start.cache_tokens == pytest.approx(printed["tokens"], rel=TOKENS)


@pytest.mark.skipif(not LEDGER.exists(), reason="shared/data/memory_ledger.csv is not there")
def test_the_ledger_is_kept() -> None:
    """Medians within the bounds; of rows that state GPU, split and length at most one verdict is wrong."""
    weights, tokens, wrong, judged = [], [], [], 0
    with LEDGER.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        start = _start_of_row(row)
        if start is None:
            continue
        if row["weights_gib_per_gpu"]:
            weights.append(abs(start.weights_bytes / GIB / float(row["weights_gib_per_gpu"]) - 1))
        if row["kv_cache_tokens"]:
            tokens.append(abs(start.cache_tokens / float(row["kv_cache_tokens"]) - 1))
        if row["gpu"] and row["tp"] and row["max_length"]:
            judged += 1
            if start.starts is not (row["result"] == "starts"):
                wrong.append(f"{row['model']} on {row['gpu']}: {start.starts}, {row['result']}")
    assert len(weights) >= 4
    assert len(tokens) >= 8
    assert median(weights) <= WEIGHTS
    assert sum(error <= WEIGHTS for error in weights) >= len(weights) - 1  # DeepSeek-R1 in stages: 1.9 %
    assert median(tokens) <= TOKENS
    # A T4 and DeepSeek-Coder-V2 of vLLM 0.4 and 0.5 hold far less, DeepSeek-V4-Flash 9 %; GLM-5.2 states no split.
    assert sum(error <= TOKENS for error in tokens) >= len(tokens) - 4
    assert sum(error <= TOKENS_OF_MOST for error in tokens) >= 8
    assert judged >= 8
    assert len(wrong) <= 1, wrong


def _start_of_row(row: Mapping[str, str]) -> Start | None:
    """What is predicted of a row; None where its model or GPU is not known."""
    gpu = {"141 GB class": "h200-sxm", "h20": "h20-141gb"}.get(row["gpu"], row["gpu"])
    try:
        return start_of_command(_command(row), gpu_name(gpu)) if gpu else None
    except InputError:
        return None


def _cache_format(row: Mapping[str, str]) -> str:
    """The format of a row's cache, as its note spells it where the column has its width alone."""
    spelled = re.search(r"\bfp8_e\dm\d\b", row["note"])
    return spelled[0] if spelled and row["kv_dtype"] == "fp8" else row["kv_dtype"]


STATED = {
    "https://github.com/vllm-project/vllm/issues/51041": (
        " --gpu-memory-utilization 0.95 --max-num-seqs 32 --max-num-batched-tokens 8192 " + MTP.format(1)
    ),
    "https://github.com/noonghunna/club-3090/issues/1087": (
        " --max-model-len 262144 --kv-cache-dtype fp8 --max-num-batched-tokens 8192 --max-num-seqs 2 "
        + MTP.format(3)
    ),
}
"""What threads say of their commands and no column holds."""


def _command(row: Mapping[str, str]) -> str:
    """The command of a row; an H20 of its own thread has 141 GB, as its two fractions differ by 7 GiB."""
    words = {
        "vllm": ("vllm serve", "--tensor-parallel-size", "--gpu-memory-utilization", "--max-model-len"),
        "sglang": ("python3 -m sglang.launch_server --model-path", "--tp", "--mem-fraction-static", "--context-length"),
        "trtllm": ("trtllm-serve", "--tp_size", "--kv_cache_free_gpu_memory_fraction", "--max_seq_len"),
    }[row["engine"]]  # fmt: skip
    values = (row["model"], row["tp"], row["memory_fraction"], row["max_length"])
    told = [f"{word} {value}" for word, value in zip(words, values, strict=True) if value]
    if row["engine"] == "vllm":
        more = {
            "--pipeline-parallel-size": row["pp"], "--data-parallel-size": row["dp"],
            "--max-num-batched-tokens": row["token_budget"], "--kv-cache-dtype": _cache_format(row),
        }  # fmt: skip
        told += [f"{word} {value}" for word, value in more.items() if value]
        told += ["--enable-expert-parallel"] * (row["ep"] not in ("", "1"))
        if drafts := re.search(r"\bMTP (\d+)", row["note"]):
            told.append(MTP.format(drafts[1]))
        if most := re.search(r"max sequences (\d+)", row["note"]):
            told.append(f"--max-num-seqs {most[1]}")
        return f"# vLLM {_release(row, RELEASES)}\n{' '.join(told)}{STATED.get(row['source'], '')}"
    if row["engine"] == "sglang":
        return f"# SGLang {_release(row, SGLANG_RELEASES)}\n{' '.join(told)}"
    return " ".join(told)


def _release(row: Mapping[str, str], releases: tuple[tuple[str, str], ...]) -> str:
    """The release that a row states, or the newest of its day."""
    known = [(day, release) for day, release in releases if day <= max(row["date"], releases[0][0])]
    return row["engine_version"] or max(known)[1]
