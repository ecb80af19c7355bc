"""What every file that starts a plan reads from it: hosts, and what is handed out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from planner.engines.quoting import slug
from planner.launch.makers import MAKERS, NVIDIA, Maker, maker_of
from planner.plan import Plan
from planner.pricing import clusters_of_kinds
from topology.base.errors import InputError
from topology.fabric.degraded import working_gpus
from topology.fabric.seats import nodes_by_rank
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
    """Hosts of one kind that follow each other by the rank of their node, from `first` on, `ranks` each."""

    first: int
    count: int
    ranks: int
    spec: NodeSpec
    gpu: Gpu

    def __str__(self) -> str:
        """Which, in words for people."""
        last = self.first + self.count - 1
        which = f"node {self.first}" if self.count == 1 else f"nodes {self.first}–{last}"
        return f"{which} of {self.spec.gpus_per_node} {self.gpu.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMachines:
    """Hosts of a plan by kind (one where all are planned for alike), and who made their GPUs.

    `gpus_per_node` are the ranks of every node, or of the largest where `unequal`. `gpus_of_node` are the
    GPUs of each by node rank, as the node numbers them; None where some are broken and it is not known which.
    `reduces` says that switches add up all-reduces.
    """

    nodes: int
    gpus_per_node: int
    kinds: tuple[AlikeHosts, ...]
    maker: Maker
    gpus_of_node: tuple[tuple[int, ...], ...] | None = None
    reduces: bool = False

    @property
    def ranks_of_node(self) -> tuple[int, ...]:
        """Ranks of each node, by the rank of the node."""
        return tuple(kind.ranks for kind in self.kinds for _ in range(kind.count))

    @property
    def unequal(self) -> bool:
        """Whether nodes have unlike numbers of ranks."""
        return len({kind.ranks for kind in self.kinds}) > 1

    @property
    def in_part(self) -> bool:
        """Whether the GPUs of some node are not its first ones."""
        each = self.gpus_of_node
        return each is None or any(gpus != tuple(range(len(gpus))) for gpus in each)

    @property
    def gpu(self) -> str:
        """GPU of the first hosts."""
        return self.kinds[0].spec.gpu


def hosts_by_kind(plan: Plan) -> PlanMachines:
    """How many hosts of each kind the plan's ranks fill, and how many GPUs of each."""
    kinds = tuple(_kinds(plan))
    plan_machines = PlanMachines(
        nodes=sum(kind.count for kind in kinds),
        gpus_per_node=max(kind.ranks for kind in kinds),
        kinds=kinds,
        maker=maker_of(kinds[0].gpu),
    )
    hierarchy = plan.case.cluster.hierarchy
    reduces = any(level.reduces for level in hierarchy.levels) and plan_machines.maker is MAKERS[NVIDIA]
    return replace(plan_machines, gpus_of_node=_gpus_of_node(plan, plan_machines), reduces=reduces)


def _gpus_of_node(plan: Plan, where: PlanMachines) -> tuple[tuple[int, ...], ...] | None:
    """GPUs that each node uses, by node rank, as the node numbers them."""
    spec = plan.case.cluster.spec
    working = working_gpus(spec)
    if working is None:
        return None
    nodes = nodes_by_rank(plan.mesh, spec, where.ranks_of_node)
    return tuple(working[node][:count] for node, count in zip(nodes, where.ranks_of_node, strict=True))


def _kinds(plan: Plan) -> Iterator[AlikeHosts]:
    """Hosts by kind, in the order of ranks."""
    cluster = plan.request.cluster
    if not plan.kind_of_stage:
        per_node = min(cluster.nodes[0].gpus_per_node, plan.layout.num_gpus)
        nodes = _whole(plan.layout.num_gpus, per_node, "")
        gpu = plan.problem.cluster.gpu
        yield AlikeHosts(first=0, count=nodes, ranks=per_node, spec=cluster.nodes[0], gpu=gpu)
        return
    each, first = clusters_of_kinds(plan.request.cluster), 0
    phrases = tuple(stages_on(cluster, plan.kind_of_stage))
    for (kind, stages), phrase in zip(groupby(plan.kind_of_stage), phrases, strict=True):
        spec = kinds_of(cluster)[kind]
        per_node = spec.gpus_per_node
        count = _whole(len(list(stages)) * plan.layout.stage_ranks, per_node, phrase)
        yield AlikeHosts(first=first, count=count, ranks=per_node, spec=spec, gpu=each[kind].gpu)
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


def require_equal(where: PlanMachines, who: str) -> None:
    """Refuse what starts as many ranks on every node, where nodes have unlike numbers of them."""
    if where.unequal:
        raise InputError(
            what=f"{who} starts as many ranks on every node",
            cause=f"this plan has {', '.join(map(str, where.kinds))}",
            fix="use --launcher slurm, torchrun, mpi or kubernetes with an engine that torchrun starts,"
            " or plan for nodes with as many GPUs each",
        )


def title_of(plan: Plan) -> str:
    """The job's name: its model and its GPUs."""
    return slug(f"{plan.request.model.name}-{plan.layout.num_gpus}")
