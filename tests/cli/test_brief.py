"""The main answer of unlike questions: at most 14 lines of 80 columns under its headline, or three lines."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from app.reports.serving.brief import brief_of_fleet
from planner.serving.plan import ServingPlan
from planner.serving.search import search_serving
from tests.cli.commands import plan
from tests.counts import cases_of_run
from tests.unit.planner.deployment.test_serving_flags import CAL, planned
from topology.builders import default_cluster

MOST_LINES, WIDE = 14, 80
MIXED = """name = "mixed"

[[nodes]]
gpu = "h100-sxm"
count = 2
machine = "dgx-h100"

[[nodes]]
gpu = "a100-sxm-80gb"
count = 2
"""
QUICK = (
    "--model gpt2 --gpus 1",
    "--model 8b --gpus 1 --adapter qlora:r=16",
    "--model mamba2-2.7b --gpus 8",
    "--model 70b --gpus 8",
    "estimate --model 70b --gpus 8 --set layout.tp=8",
    "serve --model 8b --gpus 1 --rate 1 --weights bf16 --gpu h100-sxm",
)
DEAR = (
    "--model 70b --gpus 32",
    "--model 405b --gpus 8",
    "--model deepseek-v3 --gpus 8",
    "--model deepseek-v3 --gpus 256 --gpu h200-sxm",
    "--model mixtral-8x22b --gpus 64 --precision fp8",
    "--model 70b --gpus 32 --tokens 15T --deadline 30d",
    "--model 70b --gpus 32 --tokens 1T --budget $100k",
    "--model 405b --gpus 16384 --batch 2048 --tokens 15T",
    "--model 405b --gpus 2048 --tokens 1T --deadline 60d --objective cost",
    "--model 8b --gpus 256 --tokens 1T --deadline 60d --objective gpus",
    "--model 8b --gpus ..64 --tokens 1T --deadline 200d --objective gpus",
    "--model 70b --gpus 32 --batch 256..1024",
    "--model 8b --gpus 1 --adapter lora --for any",
    "--model 8b --gpu rtx-4090 --gpus 4 --adapter qlora:r=16",
    "--model 70b --gpus 8 --offload optimizer",
    "--model 70b --gpu mi300x --gpus 64",
    "--model 70b --gpu gb200 --gpus 72",
    "--model 70b --gpu a100-sxm-80gb --gpus 64 --sequence-length 128k",
    "--model 8b --gpus 8 --sequence-length 1M",
    "--model qwen3-235b-a22b --gpus 128 --gpu b200-sxm --precision fp8",
    "--model qwen3-30b-a3b --gpus 16 --stack torchtitan",
    "--model llama-2-7b --gpus 8 --for deepspeed",
    "--model llama-3.2-1b --gpus 8 --memory-headroom 0.3",
    "--model 70b --gpus 48 --set layout.tp=2",
    "--model 70b --gpus 32 --set layout.tp=4 --set layout.pp=4 --set layout.recompute=full",
    "--model kimi-k2 --gpus 512 --gpu h200-sxm",
    "--model gpt-oss-120b --gpus 64",
    "--model nemotron-h-56b --gpus 64",
    "--model llama-2-13b --gpus 16 --gpu v100-sxm-32gb",
    "--model 70b --gpus 3",
    "--model 70b --gpus 4096 --batch 4096 --objective memory",
    "--model gemma-3-27b --gpus 16",
    "--model llama-4-maverick --gpus 256 --gpu b200-sxm",
    "--model 405b --gpus 1024 --gpu b300-sxm --tokens 15T --precision fp8 --deadline 90d --budget 20M",
    "--model qwen3-32b --gpus 8 --gpu l40s --adapter lora",
    "--model 70b --cluster mixed.toml",
    "--model 8b --cluster mixed.toml --tokens 1T",
    "estimate --model 70b --gpus 32 --set layout.tp=8 --set layout.pp=4",
    "serve --model 70b --rate 20/s --ttft 1s --tpot 40ms",
    "serve --model 70b --gpu h100-sxm --input 4000 --output 500 --ttft 1s --tpot 30ms --rate 20/s",
    "serve --model deepseek-v3 --rate 5/s --gpu h200-sxm",
    "serve --model 405b --gpus 8 --rate 2/s --ttft 2s",
    "serve --model 8b --rate 10/s --gpu h100-sxm --ttft 500ms --tpot 30ms",
    "serve --model qwen3-32b --gpu h200-sxm --gpus 8 --concurrency 64 --mode disaggregated",
    "serve --model gpt-oss-120b --rate 4/s --gpu b200-sxm --spare 1",
)


@pytest.mark.parametrize("line", cases_of_run((*QUICK, *DEAR), DEAR))
def test_the_main_answer_is_a_glance(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked: experts, adapters, a mixed cluster, a run with its end, a fleet, what does not fit."""
    monkeypatch.setenv("COLUMNS", str(WIDE))
    monkeypatch.chdir(tmp_path)
    Path("mixed.toml").write_text(MIXED, encoding="utf-8")
    done = plan(*shlex.split(line))
    if not done.stdout:
        said = [each.partition(":")[0] for each in done.stderr.splitlines()]
        assert (done.returncode, said[-3:]) == (1, ["error", "cause", "help"])
        return
    headline, _, answer = done.stdout.partition("\n\n")
    assert headline
    assert len(answer.splitlines()) <= MOST_LINES, answer
    assert max(map(len, done.stdout.splitlines())) <= WIDE, done.stdout


def test_a_fleet_at_a_glance_says_what_the_whole_answer_says() -> None:
    """Each of its figures of time, memory and money is one of `--full`."""
    question = shlex.split(QUICK[-1])
    brief, full = plan(*question).stdout, plan(*question, "--full").stdout
    whole = set(full.replace("\n", " ").split())
    for name in ("latency", "memory"):
        (line,) = (each for each in brief.splitlines() if each.strip().startswith(name))
        figures = [word.strip("(),") for word in line.split() if word.strip("(),")[:1].isdigit()]
        assert figures
        assert [one for one in figures if not any(one in word for word in whole)] == []


def test_what_tokens_cost_at_a_glance_is_what_an_hour_costs() -> None:
    """The price of an hour is shared by inputs and outputs, and both shares are told."""
    request = replace(planned("vllm", "pipelined bf16").request, usd_per_gpu_hour=3.0)
    found = search_serving(CAL, request, default_cluster("h200-sxm", 8).hierarchy)
    assert isinstance(found, ServingPlan)
    money = next(str(value) for name, value in brief_of_fleet(found).pairs if name == "money")
    said = re.search(r"\$([\d.]+) an hour.*?; \$([\d.]+) per million input and \$([\d.]+) per", money)
    assert said is not None, money
    hour, inputs, outputs = map(float, said.groups())
    of_a_query = inputs * request.job.input_tokens + outputs * request.job.output_tokens
    assert hour == pytest.approx(of_a_query / 1e6 * found.estimate.request_rate_per_s * 3600, rel=0.02)
