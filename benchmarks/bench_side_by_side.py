"""The questions that are asked beside AIConfigurator (docs/notes/serving.md): what is served, and how fast.

`python benchmarks/bench_side_by_side.py [--times 3]`: medians within their limits, no pipeline stages,
requests of one length, one pool and two in one command, as that tool counts them. Least CPU seconds of whole
commands, and over them those of AIConfigurator 0.12.0 (23 Nov 2026, beside other work: a quieter machine
flatters the ratio; Mixtral was stopped after 120).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALIKE = "--percentile 50 --set layout.pp=1 --mode auto --input-p99 alike --output-p99 alike --json"
QUESTIONS = """
7.6 --model 70b --weights bf16 --gpus 8 --gpu h100 --input 4000 --output 500 --ttft 1s --tpot 30ms
9.4 --model qwen3-32b --weights fp8 --gpus 8 --gpu h200 --engine trtllm --input 4000 --output 500 \
    --ttft 1s --tpot 30ms
13.1 --model 8b --weights bf16 --gpus 8 --gpu h100 --input 1000 --output 200 --ttft 500ms --tpot 20ms
12.2 --model 70b --weights bf16 --rate 100/s --gpu b200 --input 1000 --output 200 --ttft 500ms --tpot 60ms
29.8 --model deepseek-r1 --weights fp8 --gpus 32 --gpu h200 --engine trtllm --input 4000 --output 1000 \
    --ttft 3s --tpot 50ms
26.3 --model qwen3-235b --weights fp8 --gpus 8 --gpu h200 --engine trtllm --input 4000 --output 500 \
    --ttft 1s --tpot 30ms
54.9 --model gpt-oss-120b --gpus 8 --gpu h100 --input 1000 --output 500 --ttft 1s --tpot 15ms
49.5 --model deepseek-r1 --weights fp8 --gpus 72 --gpu gb200 --engine trtllm --input 4000 --output 1000 \
    --ttft 3s --tpot 50ms
6.8 --model 70b --weights bf16 --gpus 8 --gpu h100 --input 100000 --output 500 --ttft 30s --tpot 50ms
7.6 --model 70b --weights bf16 --gpus 8 --gpu h100 --input 4000 --output 500 --cached 0.5 \
    --ttft 1s --tpot 30ms
120 --model mixtral-8x22b --weights bf16 --gpus 16 --gpu a100 --input 1000 --output 200 --ttft 5s --tpot 100ms
"""


def asked(words: list[str]) -> tuple[float, str]:
    """CPU seconds of one command, and what each mode serves a second, or on how many GPUs."""
    before = os.times()
    command = [sys.executable, "-m", "meshplan", "serve", *words, *ALIKE.split()]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    plan = json.loads(done.stdout)
    served = {plan["mode"]: (plan["estimate"]["request_rate_per_s"], plan["num_gpus"])}
    served |= {one["mode"]: (one["request_rate_per_s"], one["num_gpus"]) for one in plan["other_fleets"]}
    rates = "--rate" in words
    return cpu_s, ", ".join(
        f"{mode} {gpus} GPUs" if rates else f"{mode} {per_s:.3g}/s"
        for mode, (per_s, gpus) in sorted(served.items())
    )


def main() -> None:
    """Ask every question; print the least of its times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3)
    times = parser.parse_args().times
    for line in QUESTIONS.strip().splitlines():
        there_s, *words = line.split()
        cpu_s, served = min(asked(words) for _ in range(times))
        print(
            f"{cpu_s:6.2f} s, {float(there_s) / cpu_s:5.1f} x   {served}   {' '.join(words[:8])}", flush=True
        )


if __name__ == "__main__":
    main()
