"""What every file that starts a plan reads from it: hosts, and what is handed out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.engines.quoting import slug
from planner.launch.makers import Maker, maker_of
from planner.plan import Plan
from planner.problem import setting_of
from planner.structure import require_alike
from topology.base.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One written configuration: its text and file name, files that go with it, what is left to the user."""

    target: str
    file_name: str
    text: str
    notes: tuple[str, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMachines:
    """Hosts of a plan, and who made their GPUs."""

    nodes: int
    gpus_per_node: int
    gpu: str
    maker: Maker


def machines_of(plan: Plan) -> PlanMachines:
    """How many hosts the plan's ranks fill, and how many GPUs of each."""
    require_alike(plan, "launch files are written for")
    spec = plan.request.cluster.nodes[0]
    per_node = min(spec.gpus_per_node, plan.layout.num_gpus)
    if plan.layout.num_gpus % per_node:
        raise InputError(
            what="the plan does not fill whole nodes",
            cause=f"{plan.layout.num_gpus} ranks, {per_node} GPUs per node",
            fix="plan for a multiple of the GPUs of a node",
        )
    maker = maker_of(setting_of(plan.request).cluster.gpu)
    return PlanMachines(
        nodes=plan.layout.num_gpus // per_node, gpus_per_node=per_node, gpu=spec.gpu, maker=maker
    )


def title_of(plan: Plan) -> str:
    """The job's name: its model and its GPUs."""
    return slug(f"{plan.request.model.name}-{plan.layout.num_gpus}")
