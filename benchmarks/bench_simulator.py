"""How many requests a second the simulation of a serving replica gets through on one core.

`python benchmarks/bench_simulator.py [--repeats N]` serves 50,000 requests of 70B on 8 H100 at four fifths of
the bound on what its widest replica can serve; median of several simulations.
"""

import argparse
import statistics
import time

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.simulation.load import Lengths, open_load
from costmodel.serving.simulation.simulator import simulate
from planner.serving.board import enumerate_options
from planner.serving.plan import ServingRequest
from planner.serving.replica import rate_bound_per_s
from topology.builders import default_cluster

ASKED_PER_S = 100_000
REQUESTS = 50_000
LOAD = 0.8


def main() -> None:
    """Print asked against measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    job = ServingJob(input_tokens=1000, output_tokens=200)
    request = ServingRequest(model=model("70b"), gpu="h100-sxm", num_gpus=8, job=job)
    board = enumerate_options(load_calibration(), request, default_cluster("h100-sxm", 8).hierarchy)
    option = max(board.options, key=lambda one: one.deployment.layout.tp)
    load = open_load(
        rate_per_s=LOAD * rate_bound_per_s(option),
        count=REQUESTS,
        inputs=Lengths(mean=job.input_tokens),
        outputs=Lengths(mean=job.output_tokens),
    )
    took = []
    for _ in range(repeats):
        started = time.perf_counter()
        simulate(option.times, option.rules, load)
        took.append(time.perf_counter() - started)
    per_s = REQUESTS / statistics.median(took)
    print(f"simulated requests a second: asked {ASKED_PER_S:,}, measured {per_s:,.0f}")


if __name__ == "__main__":
    main()
