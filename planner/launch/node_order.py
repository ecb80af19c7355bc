"""Which host each rank was planned for, and what the step would take if a launcher numbered them otherwise.

Hosts differ to a plan only by what they share: a boundary of the fabric around several of them, but not all
(a rack of one scale-up domain, the nodes of an oversubscribed leaf). In the worst of orders no two
neighbours share one, which is the same as boundaries around each host alone: that is what is priced. Where
the step stays the plan's, every order is as good, and no launcher need be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodel.training.estimate import estimate_and_costs
from planner.launch.machines import PlanMachines
from planner.plan import Plan
from planner.pricing import split_of
from planner.structure import close
from topology.base.errors import InputError, NoFeasiblePlanError
from topology.base.units import format_seconds
from topology.fabric.hierarchy import Hierarchy
from topology.fabric.seats import hosts_by_rank, nodes_by_rank

ANY = "any"
"""The value of HOSTS that takes the launcher's own order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrder:
    """The plan's order of hosts, and what it is worth.

    Attributes:
        nodes: Node of the cluster by node rank.
        hosts: Their names, where the cluster names each of its nodes.
        together: Hosts of the innermost boundary around several.
        step_time_s: The step in this order.
        apart_s: The longest in any other.
        whole_s: The longest where only the hosts of each innermost boundary stay together and in order.
        listed: Whether the engine is told the names of all hosts, whatever their order is worth.
        kinds: The kinds of hosts by node rank, where stages run on unlike ones.
    """

    nodes: tuple[int, ...]
    hosts: tuple[str, ...]
    together: int
    step_time_s: float
    apart_s: float
    whole_s: float
    listed: bool = False
    kinds: str = ""

    @property
    def matters(self) -> bool:
        """Whether another order changes the step, or the plan leaves out nodes that it could have."""
        in_order = self.nodes == tuple(range(len(self.nodes)))
        return bool(self.kinds) or not close(self.apart_s, self.step_time_s) or not in_order

    @property
    def blocks_suffice(self) -> bool:
        """Whether it matters, and it is enough that each so many hosts share the innermost boundary."""
        in_order = self.nodes == tuple(range(len(self.nodes))) and len(self.nodes) % self.together == 0
        return self.matters and not self.kinds and in_order and close(self.whole_s, self.step_time_s)

    @property
    def kinds_suffice(self) -> bool:
        """Whether any order of the nodes of each kind will do: no boundary is around several of them."""
        return bool(self.kinds) and self.together == 1

    @property
    def why(self) -> str:
        """The sentence for people."""
        if self.kinds:
            return f"stages run on unlike nodes, by the rank of each: {self.kinds}"
        if not self.matters:
            return "any order of nodes will do: each is alike to the plan, whose step stays the same"
        if close(self.apart_s, self.step_time_s):
            return "the plan leaves out nodes of the cluster and has its ranks on the others, in this order"
        here, there = format_seconds(self.step_time_s), format_seconds(self.apart_s)
        return f"in another order of nodes a step takes up to {there} instead of {here}"


def node_order(plan: Plan, where: PlanMachines, *, lists_hosts: bool = False) -> NodeOrder:
    """The order of a plan's hosts.

    Raises:
        InputError: ranks of one node are not the GPUs of one host, in order.
    """
    problem = plan.problem
    spec = problem.cluster.spec
    nodes = nodes_by_rank(plan.mesh, spec, where.ranks_of_node)
    hosts = hosts_by_rank(plan.mesh, spec, where.ranks_of_node)
    hierarchy = problem.cluster.hierarchy
    unlike = len(where.kinds) > 1
    host = spec.nodes[0].gpus_per_node
    shared = [level.unit_gpus // host for level in hierarchy.levels if level.unit_gpus > host]
    innermost = min(shared, default=1)

    def step(unit_gpus: int) -> float:
        if not shared or unlike:  # a stage on another kind may not even fit: no order is worth looking at
            return plan.estimate.step_time_s
        split = split_of(problem.model, plan.layout, plan.layers_of_stage, plan.recompute_of_stage)
        case = replace(problem.case, cluster=problem.cluster.wired_as(_cut(hierarchy, unit_gpus)))
        estimate, _ = estimate_and_costs(case, plan.layout, split)
        return estimate.step_time_s

    return NodeOrder(
        nodes=nodes,
        listed=lists_hosts and len(nodes) > 1,
        hosts=hosts,
        together=min(innermost, len(nodes)),
        step_time_s=plan.estimate.step_time_s,
        apart_s=step(host),
        whole_s=step(innermost * host),
        kinds=", ".join(map(str, where.kinds)) if unlike else "",
    )


def _cut(hierarchy: Hierarchy, unit_gpus: int) -> Hierarchy:
    """The hierarchy with no boundary around more GPUs than this: what is outside is as far as can be."""
    levels = tuple(replace(level, unit_gpus=min(level.unit_gpus, unit_gpus)) for level in hierarchy.levels)
    return replace(hierarchy, gpus_per_node=min(hierarchy.gpus_per_node, unit_gpus), levels=levels)


HOSTS, BLOCKS = "hosts", "blocks"
KEEPS: Mapping[str, str] = {
    "slurm": HOSTS, "torchrun": HOSTS, "mpi": HOSTS, "ray": HOSTS,
    "kubernetes": BLOCKS, "kubeflow": BLOCKS,
    "pytorchjob": "master and workers are two sets of pods, and Kueue keeps blocks within one",
    "skypilot": "its nodes have no names before they are made",
    "sagemaker": "its hosts have no names before they are made",
    "vertex": "its hosts have no names before they are made",
}  # fmt: skip
"""How a launcher keeps the plan's order: each node looks itself up among the hosts; Kueue keeps blocks of
pods together, whose index is the rank of a node; or why it cannot."""


SELECTS = ("kubernetes",)
"""Launchers that select nodes by kind, in the order of ranks; nodes of one kind in any order."""


def require_order(order: NodeOrder, launcher: str, *, nearest: bool) -> tuple[str, ...]:
    """Refuse a launcher that cannot keep an order that matters, or say what it may cost."""
    keeps = KEEPS[launcher]
    if order.listed and keeps != HOSTS:
        raise InputError(
            what=f"{launcher} cannot tell this engine its hosts",
            cause=f"it is told all {len(order.nodes)} of them by name, which they have not before they start",
            fix="use --launcher slurm, torchrun, mpi or ray with HOSTS",
        )
    if order.kinds and keeps != HOSTS and not (launcher in SELECTS and order.kinds_suffice):
        alike = "is asked for nodes that are all alike"
        if launcher in SELECTS:
            alike = f"keeps nodes of a kind in no order, and {order.together} of them share a boundary"
        raise InputError(
            what=f"{launcher} {alike}",
            cause=order.why,
            fix="use --launcher slurm, torchrun, mpi or ray with HOSTS",
        )
    if order.kinds:
        return ()
    if not order.matters or keeps == HOSTS or (keeps == BLOCKS and order.blocks_suffice):
        return ()
    reason = keeps if keeps != BLOCKS else "Kueue keeps blocks of nodes together, which is not all of it"
    if nearest:
        return (f"{launcher} does not keep the plan's order of nodes ({reason}): {order.why}",)
    raise NoFeasiblePlanError(
        answer=order,
        what=f"{launcher} cannot keep the plan's order of nodes: {reason}",
        cause=f"{order.why}; {order.together} nodes share the innermost boundary of the fabric",
        fix="use --launcher slurm, torchrun, mpi or ray with HOSTS, or write it all the same with --nearest",
    )


def hosts_check(order: NodeOrder) -> list[str]:
    """Shell lines that stop where nobody says which hosts the plan's nodes are, though it matters."""
    if order.hosts:  # also where another order were as good: ranks sit where the plan says they do
        return [f'export HOSTS="${{HOSTS:-{HOSTS_FILE}}}"']
    if not (order.matters or order.listed):
        return []
    if order.listed:
        by_name = f'[ "$HOSTS" != {ANY} ] || {{ echo "hosts: the engine is told each by name" >&2; exit 1; }}'
        return [f': "${{HOSTS:?name a {HOSTS_ARE}}}"; export HOSTS', by_name]
    what = f"name a {HOSTS_ARE}: {order.why};"
    return [f': "${{HOSTS:?{what} HOSTS={ANY} takes the order of the launcher}}"; export HOSTS']


HOSTS_FILE = "hosts"
HOSTS_ARE = "file with the hosts of ranks.csv in the order of node_rank, one a line"
_LOOKUP = """\
# the rank of this node: the line of its own name in the file $HOSTS; node 0 is the first{asked}
# {why}
names=""
if [ "${{HOSTS:-{any}}}" != {any} ]; then
  [ -r "$HOSTS" ] || {{ echo "hosts: no file $HOSTS beside start.sh" >&2; exit 1; }}
  names=$(awk '$1 ~ "^[^#]" {{ print $1 }}' "$HOSTS")
  count=$(echo "$names" | sort -u | wc -l)
  [ "$count" -eq {nodes} ] || {{ echo "hosts: $count different ones in $HOSTS, not {nodes}" >&2; exit 1; }}
  mine=" ${{NODE_NAME:-}} ${{SLURMD_NODENAME:-}} $(hostname) $(hostname -s 2>/dev/null || true)"
  mine="$mine $(hostname -f 2>/dev/null || true) $(hostname -I 2>/dev/null || true) "
  NODE_RANK="" MASTER_ADDR="" rank=0
  for name in $names; do
    [ -n "$MASTER_ADDR" ] || MASTER_ADDR=$name
    case "$mine" in *" $name "*) NODE_RANK=$rank ;; esac
    rank=$((rank + 1))
  done
  [ -n "$NODE_RANK" ] || {{ echo "hosts: this node,$mine, is none of $HOSTS{unless}" >&2; exit 1; }}
  [ "$rank" -eq {nodes} ] || {{ echo "hosts: a host is twice in $HOSTS" >&2; exit 1; }}
fi
"""


def lookup(order: NodeOrder, launcher: str) -> dict[str, str]:
    """The files by which a node finds its rank, where hosts are named."""
    if KEEPS[launcher] != HOSTS:
        return {}
    asked = "".join(f"\n{line}" for line in hosts_check(order))
    unless = "" if order.listed else f"; HOSTS={ANY} takes the order of the launcher"
    text = _LOOKUP.format(asked=asked, why=order.why, any=ANY, nodes=len(order.nodes), unless=unless)
    known = {HOSTS_FILE: "\n".join(order.hosts) + "\n"} if order.hosts else {}
    return {"hosts.sh": text, **known}
