"""What is to be planned: a `Setting`, everything that the layouts of a request are judged against."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.estimate import Estimate
from costmodel.job import TrainingJob
from costmodel.kernels.saved import calibration_for
from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.layout import ParallelLayout
from costmodel.memory.fit import headroom_for
from costmodel.models.spec import ModelSpec, layer_order, layer_runs
from costmodel.pipeline.schedules import is_plain
from costmodel.pipeline.stage_costs import AnyStages, StageSplit
from costmodel.pipeline.stages import ranks_of_chunks, runs_of_ranks
from costmodel.stack import SoftwareStack
from costmodel.training.bands import peak_deviation
from costmodel.training.estimate import Question, estimate_and_costs
from costmodel.training.unlike import Kinds, estimate_unlike
from planner.plan import FREE, RECOMPUTED_LAYERS, Plan, PlanRequest, RecomputedLayers, stack_of
from topology.base.errors import InputError
from topology.builders import build
from topology.cluster import Cluster
from topology.pools.kinds import each_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything a layout is judged against.

    `memory_headroom` is the share of a GPU's memory that a plan leaves free, `engine` whose limits it keeps,
    `recomputed_layers` how many layers of every pipeline rank the policy ``full`` recomputes: all of them, a
    number, or None for as many as memory asks for.
    """

    model: ModelSpec
    cluster: Cluster
    job: TrainingJob
    stack: SoftwareStack
    memory_headroom: float = 0.0
    engine: str = FREE
    recomputed_layers: RecomputedLayers | None = None

    @property
    def memory_budget_bytes(self) -> float:
        """What a plan may fill of one GPU's memory."""
        return self.cluster.gpu.memory_bytes * (1 - self.memory_headroom)


def setting_of(request: PlanRequest) -> Setting:
    """What the layouts of a request are judged against.

    Who names no headroom leaves as much free as a layout needs to fit (`costmodel.memory.fit`).
    """
    setting = Setting(
        model=request.model,
        cluster=build(request.cluster),
        job=request.job,
        stack=stack_of(request),
        memory_headroom=request.memory_headroom or 0.0,
        engine=request.engine,
        recomputed_layers=request.pins.get(RECOMPUTED_LAYERS) if "recompute" in request.pins else None,
    )
    if request.memory_headroom is not None:
        return setting
    return replace(setting, memory_headroom=headroom_for(deviation_of(setting)))


def deviation_of(s: Setting) -> float:
    """Standard deviation of log peak memory of what is planned, under any layout."""
    return peak_deviation(s.model, s.cluster, s.job, s.stack)


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


def kinds_of_setting(request: PlanRequest) -> Kinds:
    """The cluster of a request whose nodes differ, and what the nodes of each kind make."""
    each = tuple(build(part) for part in each_kind(request.cluster))
    return Kinds(together=build(request.cluster), each=each)


def estimate_split(
    s: Setting,
    plan: Plan,
    layout: ParallelLayout,
    cal: Calibration,
    split: StageSplit,
    *,
    paid_gpus: int | None = None,
) -> tuple[Estimate, AnyStages]:
    """The estimate of a layout and split on the nodes of a plan, each stage on those of its kind.

    Args:
        s: what it is judged against; its model, job and stack need not be the plan's.
        plan: whose cluster, and whose kinds of node of the stages.
        layout: how the job is split.
        cal: kernel and collective tables.
        split: layers and recomputed layers of every rank.
        paid_gpus: GPUs that are paid for, by default all.
    """
    if not plan.kind_of_stage:
        return estimate_and_costs(s.model, s.cluster, s.job, s.stack, layout, cal, split, paid_gpus=paid_gpus)
    if len(plan.kind_of_stage) != layout.pp or not is_plain(layout):
        raise InputError(
            what="stages of unlike GPUs cannot be estimated in this pipeline",
            cause=f"{layout.pp} stages of {layout.schedule}, {len(plan.kind_of_stage)} have a kind of node",
            fix="keep to as many stages, one chunk each, under 1f1b, the pipeline axis outermost",
        )
    kinds = kinds_of_setting(plan.request)
    question = Question(
        model=s.model, cluster=kinds.together, job=s.job, stack=s.stack, layout=layout, cal=cal,
        paid_gpus=paid_gpus or kinds.together.num_gpus,
    )  # fmt: skip
    return estimate_unlike(question, kinds.each, split, plan.kind_of_stage)


def capacities_bytes(plan: Plan) -> tuple[float, ...]:
    """Memory of a GPU of every pipeline stage."""
    if not plan.kind_of_stage:
        return (build(plan.request.cluster).gpu.memory_bytes,) * plan.layout.pp
    each = kinds_of_setting(plan.request).each
    return tuple(each[kind].gpu.memory_bytes for kind in plan.kind_of_stage)


def capacity_of_fullest(plan: Plan) -> float:
    """Memory of a GPU of the stage that needs most."""
    totals = [stage.total_bytes for stage in plan.estimate.memory_by_stage]
    return capacities_bytes(plan)[totals.index(max(totals))]


def tables_of(plan: Plan) -> Calibration:
    """The tables a plan was made with, if they are here: the shipped ones, or those with own measurements."""
    if plan.origin is not None and not plan.origin.measurements:
        return load_calibration()
    return calibration_for(plan.request.cluster)
