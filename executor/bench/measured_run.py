"""What a training run measured: its step time and memory, as a measurement and as a row of measured runs.

The row has the columns of ``training_runs_v2.csv``, so that `plan accuracy` compares it with the prediction
and `--anchor` corrects later predictions by it. Only files are read here, no torch.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.kernels.measurement import Measurement, measurements_json
from costmodel.layout import AXIS_FIELDS
from executor.training.settings import METRICS_FILE
from planner.plan import Plan
from topology.base.atomic import write_atomically
from topology.base.files import json_rows
from topology.base.units import GIB

MEASURED_ROW, MEASURED_JSON = "measured.csv", "measured.json"
WARM_UP_STEPS = 3  # allocators and caches fill
FEWEST_STEPS = 5  # a median of fewer says little
PERCENT = 100
STEADY_KEYS = ("step", "step_time_s", "peak_memory_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadySteps:
    """Seconds of the steady steps of a run, and the peak memory of its first rank in bytes."""

    p10_s: float
    p50_s: float
    p90_s: float
    steps: int
    peak_memory_bytes: float


def steady_steps(folder: Path) -> SteadySteps | None:
    """Steady steps of the last time the run was started; None when there are too few to tell."""
    rows = [row for row in json_rows(folder / METRICS_FILE) if _is_measured(row)]
    starts = [i for i in range(1, len(rows)) if rows[i]["step"] <= rows[i - 1]["step"]]
    steady = rows[(starts[-1] if starts else 0) :][WARM_UP_STEPS:]
    if len(steady) < FEWEST_STEPS:
        return None
    seconds = sorted(float(row["step_time_s"]) for row in steady)
    return SteadySteps(
        p10_s=quantile(seconds, 10),
        p50_s=statistics.median(seconds),
        p90_s=quantile(seconds, 90),
        steps=len(seconds),
        peak_memory_bytes=max(float(row["peak_memory_bytes"]) for row in steady),
    )


def _is_measured(row: Mapping[str, Any]) -> bool:
    """Whether a row has the numbers of a step."""
    return all(isinstance(row.get(key), int | float) and math.isfinite(row[key]) for key in STEADY_KEYS)


def quantile(ordered: Sequence[float], percent: int) -> float:
    """Nearest-rank quantile of ordered values.

    >>> quantile([1.0, 2.0, 3.0, 4.0, 5.0], 10), quantile([1.0, 2.0, 3.0, 4.0, 5.0], 90)
    (1.0, 5.0)
    """
    return ordered[max(0, math.ceil(percent * len(ordered) / PERCENT) - 1)]


def measurement_of(plan: Plan, times: SteadySteps, cluster: str, when: str) -> Measurement:
    """The step as a `Measurement`; `cluster` is the fingerprint, `when` an ISO 8601 date."""
    layout, job, node = plan.layout, plan.request.job, plan.request.cluster.nodes[0]
    degrees = {axis: float(getattr(layout, axis)) for axis in AXIS_FIELDS}
    return Measurement(
        what="training_step",
        cluster=cluster,
        gpu=node.gpu,
        dtype=job.precision,
        inputs={
            **degrees,
            "microbatch_size": float(layout.microbatch_size),
            "global_batch_size": float(job.global_batch_size),
            "sequence_length": float(job.sequence_length),
        },
        value=times.p50_s,
        unit="s",
        repeats=times.steps,
        p10=times.p10_s,
        p50=times.p50_s,
        p90=times.p90_s,
        when=when,
    )


def run_row(
    plan: Plan, times: SteadySteps, *, name: str, cluster: str, has_gpu: bool
) -> Mapping[str, object]:
    """The run as a row of measured runs; `cluster` is a file that describes where it ran.

    Memory is that of the allocator, so a run on CPU ranks states none.
    """
    spec, layout, job = plan.request.model, plan.layout, plan.request.job
    node, moe = plan.request.cluster.nodes[0], plan.request.model.is_moe
    return {
        "id": name,
        "source": "plan run",
        "model": spec.name,
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.moe_intermediate_size if moe else spec.intermediate_size,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "gated_mlp": int(spec.gated_mlp),
        "tie_word_embeddings": int(spec.tie_word_embeddings),
        "num_experts": spec.num_experts if moe else "",
        "num_experts_per_token": spec.num_experts_per_token if moe else "",
        "sequence_length": job.sequence_length,
        "gpu": node.gpu,
        "num_gpus": layout.num_gpus,
        "gpus_per_node": node.gpus_per_node,
        "cluster": cluster,
        "framework": "meshplan",
        "precision": job.precision,
        "flash_attention": 1,
        **{axis: getattr(layout, axis) for axis in AXIS_FIELDS},
        "sequence_parallel": int(layout.sequence_parallel),
        "virtual_stages": layout.virtual_stages,
        "schedule": layout.schedule,
        "zero_stage": layout.zero_stage,
        "shard_degree": layout.shard_degree or "",
        "microbatch_size": layout.microbatch_size,
        "global_batch_size": job.global_batch_size,
        "recompute": recompute_cell(plan),
        "step_time_s": f"{times.p50_s:.6g}",
        "peak_memory_gib": f"{times.peak_memory_bytes / GIB:.4g}" if has_gpu else "",
    }


def recompute_cell(plan: Plan) -> str:
    """The recompute policy as the table spells it: full:N recomputes N layers of a stage."""
    if plan.layout.recompute != "full":
        return plan.layout.recompute
    return f"full:{math.ceil(sum(plan.recompute_of_stage) / plan.layout.pp)}"


def write_measured(folder: Path, row: Mapping[str, object], measurement: Measurement) -> Path:
    """Write both files; returns the row's."""
    path = folder / MEASURED_ROW
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, fieldnames=list(row))
    table.writeheader()
    table.writerow(row)
    write_atomically(path, text.getvalue())
    write_atomically(folder / MEASURED_JSON, measurements_json([measurement]))
    return path
