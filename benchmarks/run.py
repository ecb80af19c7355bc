"""Run every benchmark and print asked against measured; medians of several whole processes.

python benchmarks/run.py [--repeats N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One command and how fast and small it should be."""

    name: str
    words: tuple[str, ...]
    most_s: float
    most_bytes: float = float("inf")


def _words(*parts: str) -> tuple[str, ...]:
    """Words of a command line that asks for JSON."""
    return (*" ".join(parts).split(), "--json")


def _audited(name: str) -> tuple[str, ...]:
    """Words that ask about a launch file."""
    return ("audit", str(ROOT / "benchmarks/launch" / name), "--gpu", "h100-sxm", "--json")


CASES = (
    Case(name="plan --help", words=("--help",), most_s=0.15),
    Case(name="70b on 32 GPUs", words=("--model", "70b", "--gpus", "32", "--json"), most_s=1.2),
    Case(
        name="405b on 16,384 GPUs",
        words=("--model", "405b", "--gpus", "16384", "--json"),
        most_s=5.0,
        most_bytes=0.6 * GIB,
    ),
    Case(name="70b on 16,384 GPUs", words=("--model", "70b", "--gpus", "16384", "--json"), most_s=7.5),
    Case(
        name="deepseek-v3 on 2,048 GPUs",
        words=("--model", "deepseek-v3", "--gpus", "2048", "--json"),
        most_s=5.0,
    ),
    Case(
        name="serve 70b on 8 GPUs",
        words=_words(
            "serve --model 70b --gpus 8 --gpu h100-sxm", "--input 4000 --output 500 --ttft 1s --tpot 30ms"
        ),
        most_s=3.0,
    ),
    Case(
        name="serve deepseek-r1 on 32 H200",
        words=_words("serve --model deepseek-r1 --gpus 32 --gpu h200-sxm --input 4000 --output 500"),
        most_s=8.0,
    ),
    Case(name="audit of 70b on 32 GPUs", words=_audited("70b_on_32.sh"), most_s=3.0),
    Case(name="audit of 405b on 16,384 GPUs", words=_audited("405b_on_16384.sh"), most_s=6.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One cold process: wall clock, peak memory, and what its plan says of the search."""

    wall_s: float
    peak_bytes: float
    search_s: float | None
    status: str


def whole_process(words: tuple[str, ...]) -> Run:
    """Run one cold process and read the plan it writes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    before = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    text = process.stdout.read() if process.stdout else b""
    _, _, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - before
    plan = json.loads(text) if "--json" in words else {}
    return Run(
        wall_s=wall_s,
        peak_bytes=usage.ru_maxrss * 1024,
        search_s=plan.get("search_time_s"),
        status=plan.get("optimality", {}).get("status", ""),
    )


def layouts_per_second() -> float:
    """Layouts that the vectorised model scores in a second on one core."""
    import numpy as np

    from costmodel.case import Case
    from costmodel.job import TrainingJob
    from costmodel.kernels.tables import load_calibration
    from costmodel.layout import LayoutTable, ParallelLayout
    from costmodel.models.catalog import model
    from costmodel.pipeline.schedules import usual_schedule
    from costmodel.stack import stack
    from costmodel.training.score import evaluate
    from topology.builders import default_cluster

    layouts = [
        ParallelLayout(
            tp=tp, pp=pp, dp=1024 // (tp * pp), microbatch_size=mb, zero_stage=zero, virtual_stages=v,
            schedule=usual_schedule(v), recompute=policy, sequence_parallel=tp > 1,
        )
        for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8, 16) for mb in (1, 2, 4) for zero in (0, 1)
        for v in (1, 2) for policy in ("none", "full")
    ]  # fmt: skip
    table = LayoutTable.from_rows(layouts).take(np.arange(500_000) % len(layouts))
    case = Case(
        model=model("llama-3.1-70b"),
        cluster=default_cluster("h100-sxm", 1024),
        job=TrainingJob(sequence_length=8192, global_batch_size=2048),
        stack=stack("megatron-core"),
        cal=load_calibration(),
    )
    evaluate(case, table.take(np.arange(10)))
    seconds = []
    for _ in range(3):
        before = time.process_time()
        evaluate(case, table)
        seconds.append(time.process_time() - before)
    return len(table) / statistics.median(seconds)


def simulation_ms() -> float:
    """Milliseconds to simulate 8,192 passes of a pipeline: 16 stages, 256 microbatches."""
    from costmodel.layout import ParallelLayout
    from costmodel.pipeline.simulator import StageSeconds, simulate_step

    stages = StageSeconds(forward_s=(1.0,) * 16, input_s=(1.0,) * 16, weight_s=(1.0,) * 16)
    seconds = []
    for _ in range(5):
        before = time.process_time()
        simulate_step(ParallelLayout(pp=16), 256, stages)
        seconds.append(time.process_time() - before)
    return 1000 * statistics.median(seconds)


def _row(case: Case, median_s: float, runs: list[Run]) -> str:
    """One line of the table."""
    slowest, memory = max(run.wall_s for run in runs), max(run.peak_bytes for run in runs) / 2**20
    searches = [run.search_s for run in runs if run.search_s is not None]
    search = f"{statistics.median(searches):>7.2f} s {runs[0].status}" if searches else ""
    asked = f"≤ {case.most_s:g} s"
    return f"{case.name:34} {asked:>16} {median_s:>8.2f} s {slowest:>8.2f} s {memory:>6.0f} MiB {search}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    sys.path.insert(0, str(ROOT))
    print(f"{'what':34} {'asked':>16} {'median':>10} {'slowest':>10} {'memory':>10} {'search':>9}")
    medians: dict[str, float] = {}
    for case in CASES:
        runs = [whole_process(case.words) for _ in range(repeats)]
        medians[case.name] = statistics.median(run.wall_s for run in runs)
        print(_row(case, medians[case.name], runs), flush=True)
    growth = medians["70b on 16,384 GPUs"] / medians["70b on 32 GPUs"]
    print(f"{'growth from 32 to 16,384 GPUs':34} {'≤ 5 ×':>16} {growth:>8.1f} ×")
    print(f"{'layouts scored per second':34} {'≥ 500,000':>16} {layouts_per_second():>10,.0f}")
    print(f"{'8,192 pipeline passes simulated':34} {'≤ 40 ms':>16} {simulation_ms():>7.0f} ms")


if __name__ == "__main__":
    main()
