"""What every file that starts a plan reads from it: hosts, and what is handed out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from planner.engines.quoting import slug
from planner.launch.makers import Maker, maker_of
from planner.plan import Plan
from planner.problem import kinds_of_setting, setting_of
from topology.base.errors import InputError
from topology.hardware.gpu import Gpu
from topology.pools.kinds import kinds_of, stages_on
from topology.spec import NodeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One written configuration: its text and file name, files that go with it, what is left to the user."""

    target: str
    file_name: str
    text: str
    notes: tuple[str, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeHosts:
    """Hosts of one kind that follow each other by the rank of their node, from `first` on."""

    first: int
    count: int
    spec: NodeSpec
    gpu: Gpu

    def __str__(self) -> str:
        """Which, in words for people."""
        last = self.first + self.count - 1
        which = f"node {self.first}" if self.count == 1 else f"nodes {self.first}–{last}"
        return f"{which} of {self.spec.gpus_per_node} {self.gpu.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMachines:
    """Hosts of a plan by kind (one where all are planned for alike), and who made their GPUs."""

    nodes: int
    gpus_per_node: int
    kinds: tuple[AlikeHosts, ...]
    maker: Maker

    @property
    def gpu(self) -> str:
        """GPU of the first hosts."""
        return self.kinds[0].spec.gpu


def machines_of(plan: Plan) -> PlanMachines:
    """How many hosts of each kind the plan's ranks fill, and how many GPUs of each."""
    spec = plan.request.cluster.nodes[0]
    per_node = min(spec.gpus_per_node, plan.layout.num_gpus)
    kinds = tuple(_kinds(plan, per_node))
    return PlanMachines(
        nodes=sum(kind.count for kind in kinds),
        gpus_per_node=per_node,
        kinds=kinds,
        maker=maker_of(kinds[0].gpu),
    )


def _kinds(plan: Plan, per_node: int) -> Iterator[AlikeHosts]:
    """Hosts by kind, in the order of ranks."""
    cluster = plan.request.cluster
    if not plan.kind_of_stage:
        nodes = _whole(plan.layout.num_gpus, per_node, "")
        gpu = setting_of(plan.request).cluster.gpu
        yield AlikeHosts(first=0, count=nodes, spec=cluster.nodes[0], gpu=gpu)
        return
    each, first = kinds_of_setting(plan.request).each, 0
    phrases = tuple(stages_on(cluster, plan.kind_of_stage))
    for (kind, stages), phrase in zip(groupby(plan.kind_of_stage), phrases, strict=True):
        spec = kinds_of(cluster)[kind]
        if spec.gpus_per_node != per_node:
            raise InputError(
                what="a launcher starts as many ranks on every node",
                cause=f"this plan has {'; '.join(phrases)}",
                fix="export its flags to an engine, or plan for nodes with as many GPUs each",
            )
        count = _whole(len(list(stages)) * plan.layout.stage_ranks, per_node, phrase)
        yield AlikeHosts(first=first, count=count, spec=spec, gpu=each[kind].gpu)
        first += count


def _whole(ranks: int, per_node: int, of: str) -> int:
    """Nodes that so many ranks fill."""
    if ranks % per_node:
        raise InputError(
            what="the plan does not fill whole nodes",
            cause=f"{ranks} ranks{of and f' in {of}'}, {per_node} GPUs per node",
            fix="plan for a multiple of the GPUs of a node",
        )
    return ranks // per_node


def title_of(plan: Plan) -> str:
    """The job's name: its model and its GPUs."""
    return slug(f"{plan.request.model.name}-{plan.layout.num_gpus}")
