"""Seconds of whole `plan serve` commands for the questions whose times are promised (docs/notes/serving.md).

`python benchmarks/bench_serving_question.py [--times 3]`: each runs as a process of its own, least of several
times; CPU seconds beside, since a machine that is shared makes a wall clock say anything.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = {
    "70b at 100/s, five GPU kinds, three precisions, both modes (4 s)": (
        "--model 70b --rate 100/s --input 1000 --output 200 --ttft 500ms --weights bf16,fp8,int4 --mode auto"
    ),
    "70b, what a machine serves (4 s)": "--model 70b",
    "DeepSeek-R1 on 32 x H200, both modes (8 s)": (
        "--model deepseek-r1 --gpu h200 --gpus 32 --input 4000 --output 1000 --ttft 3s --tpot 50ms"
    ),
}


def seconds_of(words: str) -> tuple[float, float]:
    """Wall and CPU seconds of one command."""
    before, started = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "meshplan", "serve", *words.split(), "--json"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, cpu


def main() -> None:
    """Ask every question; print the least of its times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3)
    times = parser.parse_args().times
    for name, words in QUESTIONS.items():
        found = [seconds_of(words) for _ in range(times)]
        wall, cpu = (min(column) for column in zip(*found, strict=True))
        print(f"{wall:6.2f} s, {cpu:6.2f} s of CPU   {name}", flush=True)


if __name__ == "__main__":
    main()
