"""Keep what `plan run` measured, where it ran on what the plan is for."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from executor.bench.measured_run import measurement_of, run_row, steady_steps, write_measured
from executor.parallel.planned_device import is_device
from executor.training.settings import RUN_FILE, read_settings, read_status
from planner.plan import Plan, from_json
from topology.base.atomic import write_atomically
from topology.base.errors import InputError
from topology.base.files import read_text
from topology.builders import build
from topology.cluster_file import to_toml

CLUSTER_FILE, PLAN_FILE = "cluster.toml", "plan.json"


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


def unlike_device(folder: Path) -> str:
    """What a run is on, in words, where that is not what its plan is for; nothing where it is, or is unknown.

    Args:
        folder: The run's: its plan, its settings, and its status once it has ended.
    """
    try:
        settings = read_settings(folder / RUN_FILE)
        plan = from_json(read_text(folder / PLAN_FILE), PLAN_FILE)
        status = read_status(folder)
    except (InputError, OSError):
        return ""
    device = (status.device if status else "") or ("cpu" if settings.device == "cpu" else "")
    if not device or is_device(plan, device, status.device_memory_bytes if status else 0.0):
        return ""
    planned = ", ".join(dict.fromkeys(node.gpu for node in plan.request.cluster.nodes))
    return (
        f"It runs on {device}; the plan is for {planned}, so times, MFU and memory are not compared with it."
    )
