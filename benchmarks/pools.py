"""Measured layouts of pools of unlike GPUs beside what is predicted: are they in the same order?

    python benchmarks/pools.py POOLS_FOLDER

The layouts are those that AMP (NeurIPS 2022) measured with Megatron-DeepSpeed on 16 GPUs of AWS: four T4
nodes, and three V100 nodes with one T4 node, which has the last ranks. A stage with some T4 is planned as T4.
Neither GPU has kernel tables, and nothing is fitted on these rows.

Found on 2026-11-23: alike T4, 38 layouts, rank correlation 0.95, 41 % too fast in the median (a T4 of 70 W
does not hold its peak), 29 % in the band; mixed, 18 layouts, 9 % off, 94 % in the band, rank correlation
0.60, and 0.86 without the row that is slower than any sum of its parts (tp 2, pp 8, microbatch 1). Replicas
sum gradients in four bytes there; with two it was 0.43 and 33 % off.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from costmodel.case import Case
from costmodel.estimate import Estimate
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.pipeline.stage_costs import StageSplit
from costmodel.stack import stacks
from costmodel.training.estimate import estimate
from costmodel.training.unlike import estimate_unlike
from topology.base.units import GBIT, GIB, GIGA, TERA
from topology.builders import build
from topology.cluster import Cluster
from topology.hardware.gpu import Gpu
from topology.spec import ClusterSpec, NodeSpec, TierSpec

SUMMED_BYTES = 4
"""Of a gradient that replicas sum: DachengLi1/AMP@49afb8b, examples/ds_config.json, `fp32_allreduce`."""
MODULES_BEFORE, BLOCKS = 3, 24  # stages are cut from 30 modules; the first and last three hold no block
PER_NODE, V100_NODES = 4, 3

T4 = Gpu(
    name="t4", architecture="other", peak_flop_per_s={"fp32": 8.1 * TERA, "fp16": 65 * TERA},
    memory_bytes=15 * GIB, memory_bandwidth_bytes_per_s=320 * GIGA, tdp_w=70,
    source="NVIDIA T4 data sheet (65 TFLOPS mixed precision, 16 GB, 320+ GB/s, 70 W)", as_of="2026-11-23",
)  # fmt: skip
V100 = Gpu(
    name="v100-sxm-16gb", architecture="volta", peak_flop_per_s={"fp32": 15.7 * TERA, "fp16": 125 * TERA},
    memory_bytes=16 * GIB, memory_bandwidth_bytes_per_s=900 * GIGA, tdp_w=300,
    source="NVIDIA V100 data sheet (SXM2, 125 TFLOPS tensor, 900 GB/s, NVLink 300 GB/s)", as_of="2026-11-23",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured layout."""

    experiment: str
    layout: ParallelLayout
    blocks: tuple[int, ...]
    batch: int
    measured_s: float


def rows_of(path: Path) -> Iterator[Row]:
    """The layouts of GPT-2 that ran."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] != "ok" or not row["model"].startswith("gpt2 24x1024 seq 1024"):
                continue
            cuts = [int(cut) for cut in row["layer_cuts"].strip("[]").split(",")]
            inside = [min(max(cut - MODULES_BEFORE, 0), BLOCKS) for cut in cuts]
            layout = ParallelLayout(
                tp=int(row["tp"]), dp=int(row["dp"]), pp=int(row["pp"]), microbatch_size=int(row["mbs"])
            )
            yield Row(
                experiment=row["experiment"],
                layout=layout,
                blocks=tuple(b - a for a, b in itertools.pairwise(inside)),
                batch=int(row["gbs"]),
                measured_s=float(row["measured_s"]),
            )


def nodes(gpu: Gpu, count: int) -> NodeSpec:
    """AWS g4dn.12xlarge (T4 over PCIe, 50 Gbit/s) or p3.8xlarge (V100 by NVLink, 10 Gbit/s)."""
    is_t4 = gpu is T4
    return NodeSpec(
        gpu=gpu.name, count=count, gpus_per_node=PER_NODE, scaleup="pcie" if is_t4 else "nvlink-mesh",
        scaleup_bandwidth_bytes_per_s=(12 if is_t4 else 150) * GIGA, scaleup_latency_s=3 * 1e-6,
        host_bandwidth_bytes_per_s=12 * GIGA, nics_per_node=1, nic_latency_s=20 * 1e-6,
        nic_bandwidth_bytes_per_s=(50 if is_t4 else 10) * GBIT,
    )  # fmt: skip


def cluster(*entries: NodeSpec) -> Cluster:
    """Nodes on one switch."""
    count = sum(node.count for node in entries)
    tier = TierSpec(name="leaf", nodes_per_unit=count)
    return build(ClusterSpec(name="aws", nodes=entries, tiers=(tier,), rail_optimized=False, gpus=(T4, V100)))


def predicted(row: Row) -> Estimate:
    """The estimate of one row on its pool."""
    spec = replace(model("gpt-2-medium"), vocab_size=52_256)
    job = TrainingJob(sequence_length=1024, global_batch_size=row.batch, precision="fp16")
    stack, cal, layout = stacks()["megatron-deepspeed"], load_calibration(), row.layout
    stack = replace(stack, memory=replace(stack.memory, gradient_reduce_bytes=SUMMED_BYTES))
    split = StageSplit(
        layers_of_stage=tuple((count,) for count in row.blocks), recompute_of_stage=(0,) * layout.pp
    )
    t4s = cluster(nodes(T4, 4))
    case = Case(model=spec, cluster=t4s, job=job, stack=stack, cal=cal)
    if row.experiment == "homogeneous":
        return estimate(case, layout, split)
    pool = cluster(nodes(V100, V100_NODES), nodes(T4, 1))
    last = [(stage + 1) * layout.stage_ranks - 1 for stage in range(layout.pp)]
    kind_of_stage = tuple(int(rank >= V100_NODES * PER_NODE) for rank in last)
    if len(set(kind_of_stage)) == 1:
        return estimate(replace(case, cluster=pool), layout, split)
    slow = replace(nodes(T4, 4), nic_bandwidth_bytes_per_s=10 * GBIT)  # its groups reach V100 nodes
    each = (cluster(nodes(V100, 4)), cluster(slow))
    return estimate_unlike(replace(case, cluster=pool), layout, each, split, kind_of_stage)[0]


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Correlation of ranks; equal numbers share theirs."""
    ranks = [
        np.array([np.mean(np.flatnonzero(np.sort(column) == x)) for x in column])
        for column in map(np.asarray, (one, other))
    ]
    return float(np.corrcoef(*ranks)[0, 1])


def told(rows: Sequence[Row]) -> Mapping[str, float]:
    """Rank correlation, median error and share within the band of some rows."""
    found = [predicted(row) for row in rows]
    measured = [row.measured_s for row in rows]
    off = [abs(one.step_time_s / row.measured_s - 1) for one, row in zip(found, rows, strict=True)]
    inside = [one.lower_s <= row.measured_s <= one.upper_s for one, row in zip(found, rows, strict=True)]
    return {
        "rows": len(rows),
        "spearman": spearman([one.step_time_s for one in found], measured),
        "median error": float(np.median(off)),
        "in band": float(np.mean(inside)),
    }


def main() -> None:
    """Print each experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    rows = list(rows_of(parser.parse_args().folder / "amp_runs.csv"))
    for experiment in sorted({row.experiment for row in rows}):
        facts = told([row for row in rows if row.experiment == experiment])
        words = "  ".join(f"{name} {value:.3g}" for name, value in facts.items())
        sys.stdout.write(f"{experiment:14s} {words}\n")


if __name__ == "__main__":
    main()
