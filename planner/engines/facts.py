"""What every export reads from a plan, and what it must refuse or warn of."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.layout import ParallelLayout, num_microbatches
from costmodel.parallel.axes import AXES
from costmodel.pipeline.schedules import RECORDS
from planner.plan import Plan
from topology.base.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One written configuration: its text, a file name, and what the tool cannot say or does otherwise."""

    target: str
    file_name: str
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMachines:
    """Hosts of a plan."""

    nodes: int
    gpus_per_node: int
    gpu: str


def machines_of(plan: Plan) -> PlanMachines:
    """How many hosts the plan's ranks fill, and how many GPUs of each."""
    spec = plan.request.cluster.nodes[0]
    per_node = min(spec.gpus_per_node, plan.layout.num_gpus)
    if plan.layout.num_gpus % per_node:
        raise InputError(
            what="the plan does not fill whole nodes",
            cause=f"{plan.layout.num_gpus} ranks, {per_node} GPUs per node",
            fix="plan for a multiple of the GPUs of a node",
        )
    return PlanMachines(nodes=plan.layout.num_gpus // per_node, gpus_per_node=per_node, gpu=spec.gpu)


def accumulation(plan: Plan) -> int:
    """Microbatches of one replica in a step."""
    return num_microbatches(plan.layout, plan.request.job)


def is_even(counts: tuple[int, ...]) -> bool:
    """Whether all stages have the same number of layers."""
    return len(set(counts)) == 1


def refuse(target: str, what: str, cause: str, fix: str) -> InputError:
    """Say that a tool cannot run this plan."""
    return InputError(what=f"{target} cannot run this plan: {what}", cause=cause, fix=fix)


def refuse_axes(target: str, layout: ParallelLayout, has: tuple[str, ...]) -> None:
    """Refuse a layout that splits the job over an axis which a tool has not."""
    for axis in AXES:
        degree = getattr(layout, axis)
        if degree > 1 and axis not in has:
            raise refuse(target, f"{axis} > 1", f"{axis} = {degree}", f"plan with --set layout.{axis}=1")


def schedule_name(target: str, layout: ParallelLayout) -> str:
    """Name of the layout's schedule in a tool, which must have it.

    >>> schedule_name("torchtitan", ParallelLayout(pp=2))
    '1F1B'
    """
    names = RECORDS[layout.schedule].engine_names
    if target not in names:
        has = [name for name, record in RECORDS.items() if target in record.engine_names]
        raise refuse(
            target, f"schedule {layout.schedule}", f"it has {' and '.join(has)}", "set layout.schedule"
        )
    return names[target]
