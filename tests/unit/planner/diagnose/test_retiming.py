"""A step timed once more without a cause takes what the same step takes that never had it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.diagnose.diagnosis import diagnosed
from planner.diagnose.record import recorded_job
from planner.diagnose.retiming import Repair, step_graph
from planner.questions.flags import Flags
from planner.traces.read import read_traces
from tests.unit.planner.diagnose.simulated import STEPS, Simulated, simulate, write_ranks
from tests.unit.planner.traces.micro import host, kernel, write

CURED = (
    ("loader", 101),
    ("garbage collection", 101),
    ("allocator", 101),
    ("checkpoint in the step", 102),
    ("copies in the step", 102),
    ("synchronisation in the step", 102),
    ("host-bound", 101),
    ("overlap off", 101),
    ("small buckets", 101),
    ("slow GPU", 101),
    ("slow rank", 101),
    ("slow link", 101),
    ("slow link", 103),
    ("uneven stages", 101),
)
"""Faults whose absence is another job of the simulator, with the same noise."""


def step_s(job: Simulated) -> float:
    """Mean seconds of a step, as the simulator made it."""
    last = max(event["ts"] + event["dur"] for of in job.events.values() for event in of)
    return (last - 1000.0) / STEPS * 1e-6


@pytest.mark.parametrize(("fault", "seed"), CURED)
def test_the_step_without_the_cause_is_that_of_the_cured_job(tmp_path: Path, fault: str, seed: int) -> None:
    """Within 5 %: what is rounded, and latencies that the repair keeps; the gain is never promised twice."""
    diagnosis = diagnosed(write_ranks(simulate(seed, fault), tmp_path), Flags())
    left = diagnosis.findings[0].step_without_s
    assert left == pytest.approx(step_s(simulate(seed, fault, cured=True)), rel=0.05)


@pytest.mark.parametrize("seed", [101, 102])
def test_nothing_repaired_takes_what_it_took(tmp_path: Path, seed: int) -> None:
    job = recorded_job(read_traces(write_ranks(simulate(seed, "uneven stages"), tmp_path)))
    graph = step_graph(job)
    assert graph is not None
    lasts = [np.mean([of[place].seconds for of in job.budgets.values()]) for place in range(STEPS)]
    assert graph.seconds() == pytest.approx(np.median(lasts), rel=1e-3)


def test_a_hidden_cost_gains_nothing(tmp_path: Path) -> None:
    """Kernels of a second stream that run beside longer ones: without them the step is as long."""
    events = [host("ProfilerStep#1", 0.0, 100.0), host("ProfilerStep#2", 100.0, 200.0)]
    for step in (0.0, 100.0):
        number = int(step) + 1
        events += [kernel("gemm", step + 10.0, step + 90.0, number, launched_us=step + 1.0)]
        events += [kernel("softmax", step + 20.0, step + 70.0, number + 1, launched_us=step + 4.0, stream=9)]
    job = recorded_job(read_traces([write(tmp_path / "rank0.json", *events)]))
    graph = step_graph(job)
    assert graph is not None
    recorded = job.traces[0].events
    hidden = recorded.named(np.array([name == "softmax" for name in recorded.names]))
    for which, left in ((hidden, 100e-6), (recorded.of("kernel") & ~hidden, 80e-6)):
        repair = Repair(factor={0: np.where(which, 0.0, 1.0)})
        assert graph.seconds(repair) == pytest.approx(left)


def test_what_has_no_gpu_has_a_bound_alone(tmp_path: Path) -> None:
    events = [host(f"ProfilerStep#{n}", 100.0 * n, 100.0 * n + 100.0) for n in (1, 2)]
    job = recorded_job(read_traces([write(tmp_path / "rank0.json", *events)]))
    assert step_graph(job) is None
