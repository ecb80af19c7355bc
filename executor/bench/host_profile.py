"""This computer's CPU as a cluster the planner can plan for: one node whose "GPUs" are gloo ranks.

Peaks, memory and link rates are what `executor.bench.kernels` measured here, so a plan for this cluster
predicts a gloo run on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from executor.bench.kernels import Benchmark
from topology.hardware.gpu import Gpu
from topology.spec import ClusterSpec, NodeSpec

CPU = "cpu"
NOMINAL_W = 100.0  # of a rank: a CPU's power is not known here, and no time depends on it


def cpu_name(ranks: int) -> str:
    """Name of one rank's share of a CPU; shares of different size are different devices.

    >>> cpu_name(4)
    'cpu-4'
    """
    return f"{CPU}-{ranks}"


def cpu_cluster(entries: Sequence[Benchmark], ranks: int, when: str) -> ClusterSpec:
    """Describe this computer as `ranks` ranks, from measurements of all of them at once."""
    link = _link_bytes_per_s(entries)
    node = NodeSpec(
        gpu=cpu_name(ranks),
        count=1,
        gpus_per_node=ranks,
        scaleup="pcie",
        scaleup_bandwidth_bytes_per_s=link,
        host_bandwidth_bytes_per_s=link,
        nics_per_node=1,
        nic_bandwidth_bytes_per_s=link,
    )
    return ClusterSpec(
        name=f"this computer, {ranks} CPU ranks", nodes=(node,), gpus=(_cpu(entries, ranks, when),)
    )


def _cpu(entries: Sequence[Benchmark], ranks: int, when: str) -> Gpu:
    """One rank's share of the CPU, at the best rates measured."""
    flop = {
        entry.dtype: 2.0 * entry.inputs["m"] * entry.inputs["n"] * entry.inputs["k"] / entry.timing.p50_s
        for entry in sorted(entries, key=_rate)
        if entry.what == "gemm"
    }
    copies = [e.inputs["bytes"] / e.timing.p50_s for e in entries if e.what == "elementwise"]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / ranks
    return Gpu(
        name=cpu_name(ranks),
        architecture=CPU,
        peak_flop_per_s={**flop, "fp32": flop.get("fp32", max(flop.values()))},
        memory_bytes=memory,
        memory_bandwidth_bytes_per_s=min(copies, default=1.0) if len(copies) < 2 else copies[-1],
        tdp_w=NOMINAL_W,
        source="plan bench on this computer",
        as_of=when,
        unverified=("tdp_w",),
    )


def _rate(entry: Benchmark) -> float:
    """FLOP/s of a matrix product; zero for anything else."""
    if entry.what != "gemm":
        return 0.0
    return entry.inputs["m"] * entry.inputs["n"] * entry.inputs["k"] / entry.timing.p50_s


def _link_bytes_per_s(entries: Sequence[Benchmark]) -> float:
    """Bus bandwidth of the largest all-reduce: 2(n−1)/n·B/t; memory's when there is only one rank."""
    largest = [e for e in entries if e.what == "all_reduce"] or [
        e for e in entries if e.what == "elementwise"
    ]
    entry = max(largest, key=lambda e: e.inputs["bytes"])
    n = entry.inputs.get("size", 2.0)
    return 2 * (n - 1) / n * entry.inputs["bytes"] / entry.timing.p50_s
