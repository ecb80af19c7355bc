"""What the layout and split of a plan cost, on nodes that are alike or on unlike kinds."""

from __future__ import annotations

from dataclasses import replace

from costmodel.estimate import Estimate
from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec, layer_order, layer_runs
from costmodel.pipeline.schedules import is_plain
from costmodel.pipeline.stage_costs import AnyStages, StageSplit
from costmodel.pipeline.stages import ranks_of_chunks, runs_of_ranks
from costmodel.training.estimate import estimate_and_costs
from costmodel.training.unlike import estimate_unlike
from planner.plan import Plan, Problem
from topology.base.errors import InputError
from topology.builders import build
from topology.cluster import Cluster
from topology.pools.kinds import each_kind
from topology.spec import ClusterSpec


def split_of(
    model: ModelSpec, layout: ParallelLayout, layers: tuple[int, ...], recomputes_held: tuple[int, ...]
) -> StageSplit:
    """A split as the cost model reads it: layers of each run on each pipeline rank."""
    runs, owners = tuple(run.count for run in layer_runs(model)), ranks_of_chunks(layout)
    split = StageSplit(
        layers_of_stage=runs_of_ranks(owners, layers, runs, layer_order(model)),
        recompute_of_stage=recomputes_held,
    )
    return split if split.chunk_layers(owners) == layers else replace(split, layers_of_chunk=layers)


def clusters_of_kinds(spec: ClusterSpec) -> tuple[Cluster, ...]:
    """The cluster that the nodes of each kind make, where nodes differ."""
    return tuple(build(part) for part in each_kind(spec))


def estimate_split(
    problem: Problem, plan: Plan, layout: ParallelLayout, split: StageSplit, *, paid_gpus: int | None = None
) -> tuple[Estimate, AnyStages]:
    """The estimate of a layout and split on the nodes of a plan, each stage on those of its kind.

    Args:
        problem: what it is judged against; its model, job and stack need not be the plan's.
        plan: whose cluster, and whose kinds of node of the stages.
        layout: how the job is split.
        split: layers and recomputed layers of every rank.
        paid_gpus: GPUs that are paid for, by default all.
    """
    if not plan.kind_of_stage:
        return estimate_and_costs(problem.case, layout, split, paid_gpus=paid_gpus)
    if len(plan.kind_of_stage) != layout.pp or not is_plain(layout):
        raise InputError(
            what="stages of unlike GPUs cannot be estimated in this pipeline",
            cause=f"{layout.pp} stages of {layout.schedule}, {len(plan.kind_of_stage)} have a kind of node",
            fix="keep to as many stages, one chunk each, under 1f1b, the pipeline axis outermost",
        )
    case = problem.of(cluster=plan.problem.cluster).case
    each = clusters_of_kinds(plan.request.cluster)
    return estimate_unlike(case, layout, each, split, plan.kind_of_stage, paid_gpus=paid_gpus)


def capacities_bytes(plan: Plan) -> tuple[float, ...]:
    """Memory of a GPU of every pipeline stage."""
    if not plan.kind_of_stage:
        return (plan.problem.cluster.gpu.memory_bytes,) * plan.layout.pp
    each = clusters_of_kinds(plan.request.cluster)
    return tuple(each[kind].gpu.memory_bytes for kind in plan.kind_of_stage)


def capacity_of_fullest(plan: Plan) -> float:
    """Memory of a GPU of the stage that needs most."""
    totals = [stage.total_bytes for stage in plan.estimate.memory_by_stage]
    return capacities_bytes(plan)[totals.index(max(totals))]
