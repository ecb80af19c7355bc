"""How an autoscaled day is told: the policies side by side, and the replicas hour by hour."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.quantities import format_usd
from app.reports.answer import Answer, Table, json_text
from costmodel.kernels.tables import load_calibration
from costmodel.serving.simulation.load import Load, mean_rate_per_s
from planner.analysis.serving.autoscale import ScalingPolicy, ScalingRun, autoscale
from planner.serving.plan import ServingPlan
from planner.serving.search import replica_capacity_per_s
from topology.base.errors import InputError
from topology.base.units import HOUR, MINUTE, format_seconds, three_digits
from topology.builders import default_cluster

SHORT_QUEUE, LONG_QUEUE = 2.0, 8.0
"""Requests waiting in each replica that policies aim at."""
NO_LIMIT_S = 10.0  # waits longer than this count as missed when no limit on the first token is given


def policies(asked: ScalingPolicy) -> list[tuple[str, ScalingPolicy | None]]:
    """Those that are compared: none, two queues, and a start that takes twice as long.

    >>> [name for name, _ in policies(ScalingPolicy())][-1]
    'queue of 8, slow start (10 min)'
    """
    short, long = (replace(asked, target_queue=queue) for queue in (SHORT_QUEUE, LONG_QUEUE))
    slow = replace(long, start_up_s=2 * asked.start_up_s)
    return [
        ("fixed at the peak", None),
        (f"queue of {SHORT_QUEUE:g} per replica", short),
        (f"queue of {LONG_QUEUE:g} per replica", long),
        (f"queue of {LONG_QUEUE:g}, slow start ({slow.start_up_s / MINUTE:g} min)", slow),
    ]


def autoscale_answer(plan: ServingPlan, trace: Load | None, policy: ScalingPolicy) -> Answer:
    """Compare scaling policies on the trace, for the replica of the plan."""
    runs = day_runs(plan, trace, policy)
    base = runs[0][1]
    table = Table(
        title="Policies",
        columns=("policy", "GPU hours", "cost", "missed", "utilisation", "replicas mean (max)"),
        rows=tuple(
            (
                name,
                three_digits(run.gpu_hours),
                format_usd(run.usd),
                f"{100 * run.missed_share:.2f} %",
                f"{100 * run.utilisation:.0f} %",
                f"{run.replicas.mean():.1f} ({run.replicas.max():.0f})",
            )
            for name, run in runs
        ),
    )
    chosen_name, chosen = min(
        runs[1:], key=lambda pair: (pair[1].missed_share > max(base.missed_share, 0.01), pair[1].gpu_hours)
    )
    saved, lasts = 1 - chosen.gpu_hours / base.gpu_hours, format_seconds(base.time_s[-1])
    name = plan.request.model.name
    return Answer(
        headline=f"{name} over {lasts}: {chosen_name} saves {100 * saved:.0f} % of the GPU hours",
        sections=(table, _hours(chosen_name, chosen)),
        document=lambda: json_text({name: _document(run) for name, run in runs}),
        records=tuple(_hour_records(chosen)),
    )


def day_runs(plan: ServingPlan, trace: Load | None, asked: ScalingPolicy) -> list[tuple[str, ScalingRun]]:
    """Every policy on the trace."""
    trace = day_of(trace)
    hierarchy = default_cluster(
        plan.request.gpu, max(plan.decode.layout.num_gpus, plan.gpus_per_node)
    ).hierarchy
    capacity = replica_capacity_per_s(load_calibration(), plan, hierarchy)
    peak = peak_rate(trace)
    fixed = int(np.ceil(peak / capacity))
    runs = []
    for name, policy in policies(asked):
        used = replace(policy, most=4 * fixed) if policy else ScalingPolicy(fewest=fixed, most=fixed)
        run = autoscale(
            trace.arrival_s,
            capacity_per_s=capacity,
            wait_limit_s=plan.request.job.ttft_s or NO_LIMIT_S,
            gpus_per_replica=plan.decode.layout.num_gpus,
            policy=used,
            usd_per_gpu_hour=plan.request.usd_per_gpu_hour,
        )
        runs.append((name, run))
    return runs


def day_of(trace: Load | None) -> Load:
    """The trace that a fleet is followed through; that there is none is known before any search."""
    if trace is None:
        raise InputError(
            what="autoscaling needs a load over time",
            cause="--trace is missing",
            fix="add --trace FILE with a day of requests, or --save-dir DIR for HPA and KEDA files",
        )
    return trace


def peak_rate(trace: Load, window_s: float = 60.0) -> float:
    """Highest rate of any window of the trace, requests per second."""
    bins = max(int(np.ceil(float(trace.arrival_s[-1]) / window_s)), 1)
    counts = np.histogram(trace.arrival_s, bins=bins)[0]
    width = float(trace.arrival_s[-1]) / bins
    return float(counts.max()) / width if width > 0 else mean_rate_per_s(trace)


def _hours(name: str, run: ScalingRun) -> Table:
    """Replicas, load and backlog hour by hour."""
    rows = tuple(
        (f"{r['hour']}", f"{r['arrivals_per_s']:.2f}", f"{r['replicas']:.1f}", f"{r['backlog']:.0f}")
        for r in _hour_records(run)
    )
    return Table(
        title=f"Hour by hour: {name}", columns=("hour", "requests/s", "replicas", "waiting"), rows=rows
    )


def _hour_records(run: ScalingRun) -> list[dict[str, float]]:
    """Means of every hour."""
    hour = (run.time_s // HOUR).astype(int)
    return [
        {
            "hour": float(h),
            "arrivals_per_s": float(run.arrivals_per_s[hour == h].mean()),
            "replicas": float(run.replicas[hour == h].mean()),
            "backlog": float(run.backlog[hour == h].mean()),
        }
        for h in np.unique(hour)
    ]


def _document(run: ScalingRun) -> dict[str, object]:
    """A run as plain data."""
    return {
        "gpu_hours": run.gpu_hours,
        "usd": run.usd,
        "missed_share": run.missed_share,
        "utilisation": run.utilisation,
        "utilisation_per_usd": run.utilisation_per_usd,
        "requests": run.requests,
        "time_s": run.time_s.tolist(),
        "arrivals_per_s": run.arrivals_per_s.tolist(),
        "replicas": run.replicas.tolist(),
        "backlog": run.backlog.tolist(),
    }
