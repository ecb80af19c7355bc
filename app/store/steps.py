"""Keep what `plan run` measured, where it ran on what the plan is for."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from executor.bench.measured_run import measurement_of, run_row, steady_steps, write_measured
from planner.plan import Plan
from topology.base.atomic import write_atomically
from topology.base.errors import InputError
from topology.builders import build
from topology.cluster_file import to_toml
from topology.hardware.device_names import gpu_of_device

CLUSTER_FILE = "cluster.toml"


def keep_measured_step(folder: Path, plan: Plan, device: str, memory_bytes: float = 0.0) -> tuple[str, ...]:
    """Write the run's measured step beside its metrics; returns what to tell the user.

    Args:
        folder: The run's.
        plan: What was run.
        device: Name of the device it ran on, as the device calls itself; ``cpu`` for CPU ranks.
        memory_bytes: What that device reports.
    """
    times = steady_steps(folder)
    if times is None:
        return ()
    planned = ", ".join(dict.fromkeys(node.gpu for node in plan.request.cluster.nodes))
    measured = f"median step {times.p50_s:.3g} s over {times.steps} steps"
    if not is_device(plan, device, memory_bytes):
        return (f"{measured} on {device}; the plan is for {planned}, so it anchors no prediction",)
    cluster, today = build(plan.request.cluster), dt.datetime.now(tz=dt.UTC).date().isoformat()
    try:
        described = folder / CLUSTER_FILE
        write_atomically(described, to_toml(plan.request.cluster))
        row = run_row(plan, times, name=folder.name, cluster=str(described), has_gpu=device != "cpu")
        path = write_measured(folder, row, measurement_of(plan, times, cluster.fingerprint(), today))
    except OSError as failure:
        return (f"{measured}; it could not be kept ({failure.strerror or failure})",)
    return (
        f"{measured}, predicted {plan.estimate.step_time_s:.3g} s",
        f"correct predictions by it with `plan accuracy --anchor {path} --trust-paths --name NAME`",
    )


def is_device(plan: Plan, device: str, memory_bytes: float) -> bool:
    """Whether a device is what the plan was made for, by its name and memory; of unlike stages none is."""
    if plan.kind_of_stage:
        return False
    planned = build(plan.request.cluster).gpu
    if device == "cpu" or planned.architecture == "cpu":
        return device == planned.architecture
    try:
        return gpu_of_device(device, memory_bytes) == planned.name
    except InputError:
        return False
