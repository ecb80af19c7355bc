"""What replicas of unlike speed would take, beside the plan: is it worth to plan for them?

    python benchmarks/unlike_replicas.py

No pipeline; every replica is on one kind of node and takes as many microbatches as it gets through, so that
the slowest ends as early as can be (docs/decisions/0020). Ranks are all used, degrees and microbatch equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from costmodel.job import TrainingJob
from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.layout import LayoutTable
from costmodel.models.catalog import model
from costmodel.models.spec import layer_order, layer_runs
from costmodel.pipeline.stage_costs import StageCosts, StageSplit, memory_of_stages, step_time
from costmodel.training.stages import stage_costs_of
from costmodel.training.unlike import price_unlike
from planner.plan import Plan, PlanRequest, Problem, problem_of
from planner.pricing import clusters_of_kinds
from planner.search.search import search
from planner.space.degrees import combinations
from planner.space.unfold import eased, pipelines, placements, shardings, variants
from topology.base.units import format_seconds
from topology.builders import machine_node
from topology.hardware.datasheets import machines
from topology.spec import ClusterSpec, TierSpec

BATCHES = (64, 128, 512)


def request(batch: int) -> PlanRequest:
    """A model of 10B on 16 H100 + 16 A100."""
    nodes = tuple(machine_node(machines()[name], 2) for name in ("dgx-h100", "dgx-a100"))
    tiers = (TierSpec(name="leaf", nodes_per_unit=32),)
    return PlanRequest(
        model=replace(model("llama-3.1-8b"), num_layers=40),
        cluster=ClusterSpec(name="pool", nodes=nodes, tiers=tiers),
        job=TrainingJob(sequence_length=8192, global_batch_size=batch),
    )


def least_s(replicas: Sequence[int], each_s: Sequence[float], once_s: Sequence[float], total: int) -> float:
    """The earliest end of the slowest replica, whole microbatches: of kinds with so many replicas.

    A time is enough where the microbatches that fit into it, over all replicas, are as many as there are.

    >>> least_s((1, 1), (1.0, 3.0), (0.0, 0.0), 4)
    3.0
    """
    times = sorted(
        {m * each + once for each, once in zip(each_s, once_s, strict=True) for m in range(1, total + 1)}
    )
    kinds = list(zip(replicas, each_s, once_s, strict=True))

    def taken(seconds: float) -> int:
        fits = (n * math.floor((seconds - once) / each + 1e-9) for n, each, once in kinds)
        return sum(max(0, count) for count in fits)

    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if taken(times[middle]) >= total else (middle + 1, high)
    return times[low]


def layouts_of(s: Problem) -> LayoutTable:
    """Every layout without a pipeline."""
    pins = {"pp": 1}
    placed, _ = placements(s, pins, combinations(s, pins)[0])
    usual, _ = variants(s, pins, pipelines(s, pins, placed)[0])
    return shardings(s, pins, LayoutTable.concat([usual, eased(s, pins, usual)[0]]))[0]


def _times(costs: StageCosts, split: StageSplit) -> tuple[float, float] | None:
    """Seconds of a microbatch, and of all that is once a step; None where the split does not fit."""
    if float(memory_of_stages(costs, split).max()) > costs.capacity_bytes:
        return None
    whole = step_time(costs, split)
    each = step_time(replace(costs, num_microbatches=costs.num_microbatches + 1), split) - whole
    return each, whole - costs.num_microbatches * each


def best_replicas(asked: PlanRequest, cal: Calibration) -> float:
    """The least step of any layout whose replicas are each on one kind of node."""
    s, each = problem_of(asked, cal), clusters_of_kinds(asked.cluster)
    table = layouts_of(s)
    priced = price_unlike(s.case, each, table)
    runs, order, best = [run.count for run in layer_runs(s.model)], layer_order(s.model), math.inf
    for row in range(len(table)):
        x = table.layout(row)
        replicas = [one.num_gpus // (x.tp * x.cp) for one in each]
        if sum(replicas) != x.dp:
            continue
        again = sum(runs) if x.recompute == "full" else 0
        split = StageSplit(layers_of_stage=(tuple(runs),), recompute_of_stage=(again,))
        found = []
        for one, cluster in zip(priced, each, strict=True):
            room = cluster.gpu.memory_bytes * (1 - s.memory_headroom)
            found.append(
                _times(stage_costs_of(one.take(slice(row, row + 1)), x, s.job, runs, room, order), split)
            )
        fitting = [times for times in found if times is not None]
        if len(fitting) == len(found):
            each_s, once_s = zip(*fitting, strict=True)
            total = s.job.global_batch_size // x.microbatch_size
            best = min(best, least_s(replicas, each_s, once_s, total))
    return best


def main() -> None:
    """Print one line for every batch."""
    cal = load_calibration()
    for batch in BATCHES:
        asked = request(batch)
        plan = search(asked, cal)
        planned = format_seconds(plan.estimate.step_time_s) if isinstance(plan, Plan) else "no plan"
        replicas = format_seconds(best_replicas(asked, cal))
        print(f"batch {batch}: planned {planned}, replicas of unlike speed {replicas}")


if __name__ == "__main__":
    main()
