"""Pools of unlike nodes: the step, beside the steps of their parts, and the seconds of the search.

python benchmarks/unlike_stages.py
"""

from __future__ import annotations

import time
from dataclasses import replace

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.plan import Plan, PlanRequest
from planner.search.search import search
from topology.base.units import format_seconds
from topology.builders import build, machine_node
from topology.hardware.datasheets import machines
from topology.pools.kinds import parts_of_pool
from topology.spec import ClusterSpec, TierSpec

CASES = (
    ("llama-3.1-70b", 0, 512, (("dgx-h100", 4), ("dgx-a100", 1))),
    ("llama-3.1-8b", 40, 512, (("dgx-h100", 2), ("dgx-a100", 2))),
    ("llama-3.1-70b", 0, 1024, (("dgx-h100", 64), ("dgx-a100", 64))),
    ("llama-3.1-70b", 0, 1024, (("dgx-h100", 16), ("dgx-a100", 8), ("dgx-a100-40gb", 8))),
)
"""Model, layers if not its own, sequences of a step, nodes of each kind."""


def main() -> None:
    """Print one line for every pool."""
    tables = load_calibration()
    for name, layers, batch, counts in CASES:
        nodes = tuple(machine_node(machines()[machine], count) for machine, count in counts)
        tiers = (TierSpec(name="leaf", nodes_per_unit=32),)
        cluster = ClusterSpec(name="pool", nodes=nodes, tiers=tiers)
        shape = replace(model(name), num_layers=layers) if layers else model(name)
        job = TrainingJob(sequence_length=8192 if layers else 4096, global_batch_size=batch)
        for part in parts_of_pool(cluster):
            build(part).hierarchy  # noqa: B018  (kept, as in a process that has planned on it)
        started = time.process_time()
        found = search(PlanRequest(model=shape, cluster=cluster, job=job), tables)
        seconds = time.process_time() - started
        if not isinstance(found, Plan) or found.pool is None:
            print(f"{name} on {counts}: no plan")
            continue
        steps = [part.step_time_s for part in found.pool.others if part.step_time_s]
        certificate = found.optimality
        print(
            f"{name} on {cluster.num_gpus} GPUs {counts}: {format_seconds(found.estimate.step_time_s)}, "
            f"parts {', '.join(map(format_seconds, steps))}; layers {found.layers_of_stage} "
            f"on {found.kind_of_stage}; {certificate.status}, gap {certificate.gap:.1e}, "
            f"{certificate.enumerated:,} layouts in {seconds:.1f} s of one core"
        )


if __name__ == "__main__":
    main()
