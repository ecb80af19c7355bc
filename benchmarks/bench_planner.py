"""What the planner takes, against what was asked: run `python benchmarks/bench_planner.py`.

Whole processes are timed from the shell's point of view, three times, and the best is printed; searches and
the vectorised evaluation are timed inside one process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPEATS = 3
ROWS = 500_000

PROCESS = """
import json, resource, sys
from app.cli import main
sys.argv = ["plan", *sys.argv[1:]]
try:
    main()
finally:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"peak_mib": peak / 1024}), file=sys.stderr)
"""


def process_seconds(arguments: list[str]) -> tuple[float, float, str]:
    """Wall seconds, peak MiB and stdout of one whole `plan` process, the best of a few."""
    best = (float("inf"), 0.0, "")
    for _ in range(REPEATS):
        started = time.perf_counter()
        shown = subprocess.run(
            [sys.executable, "-c", PROCESS, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - started
        peak = json.loads(shown.stderr.strip().splitlines()[-1])["peak_mib"]
        best = min(best, (seconds, peak, shown.stdout))
    return best


def seconds_of(work: Callable[[], object]) -> float:
    """Best wall seconds of a few calls."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def row(what: str, asked: str, measured: str) -> None:
    """Print one line of the table."""
    print(f"| {what} | {asked} | {measured} |")


def bench_processes() -> dict[str, float]:
    """Time the commands of the table as whole processes."""
    seconds, peak, _ = process_seconds(["--help"])
    row("`plan --help`", "≤ 0.25 s", f"{seconds:.2f} s, {peak:.0f} MiB")
    took: dict[str, float] = {}
    asked = {
        ("llama-3.1-70b", 32): "≤ 1.5 s, proven, search ≤ 0.5 s",
        ("llama-3.1-405b", 16384): "≤ 5 s, ≤ 600 MB, proven",
        ("deepseek-v3", 2048): "≤ 5 s, proven",
    }
    for (model, gpus), limit in asked.items():
        seconds, peak, text = process_seconds(["--model", model, "--gpus", str(gpus), "--json"])
        plan = json.loads(text)
        status, search_s = plan["optimality"]["status"], plan["search_time_s"]
        measured = f"{seconds:.2f} s, {peak:.0f} MiB, {status}, search {search_s:.2f} s"
        row(f"`plan --model {model} --gpus {gpus}`", limit, measured)
        took[model] = seconds
    return took


def bench_growth() -> None:
    """Time one model at 32 and at 16,384 GPUs."""
    small, _, _ = process_seconds(["--model", "70b", "--gpus", "32", "--json"])
    large, _, _ = process_seconds(["--model", "70b", "--gpus", "16384", "--json"])
    row(
        "growth: 70B at 16,384 GPUs over 32 GPUs",
        "≤ 5 ×",
        f"{large / small:.2f} × ({small:.2f} s, {large:.2f} s)",
    )


def bench_evaluation() -> None:
    """Count layouts scored in a second on one core."""
    import numpy as np

    from costmodel.calibration import load_calibration
    from costmodel.model_catalog import model
    from costmodel.stack import stack
    from costmodel.training import evaluate
    from costmodel.workload import TrainingJob
    from planner.cores import cores
    from planner.space import pipelines, placements, variants
    from planner.violation import Setting
    from topology.builders import default_cluster

    job = TrainingJob(sequence_length=8192, global_batch_size=512)
    setting = Setting(
        model=model("llama-3.1-70b"),
        cluster=default_cluster("h100-sxm", 256),
        job=job,
        stack=stack("megatron-core"),
    )
    found, _ = cores(setting, {})
    placed, _ = placements(setting, {}, found)
    pipelined, _, _ = pipelines(setting, {}, placed.take(np.arange(min(len(placed), 40_000))))
    table, _ = variants(setting, {}, pipelined)
    table = table.take(np.arange(min(len(table), ROWS)))
    cal, s = load_calibration(), setting
    evaluate(s.model, s.cluster, s.job, s.stack, table, cal)
    seconds = seconds_of(lambda: evaluate(s.model, s.cluster, s.job, s.stack, table, cal))
    row("vectorised evaluation", "≥ 500,000 layouts/s", f"{len(table) / seconds:,.0f} layouts/s")


def main() -> None:
    """Print the table."""
    print("| what | asked | measured |\n|---|---|---|")
    bench_processes()
    bench_growth()
    bench_evaluation()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
