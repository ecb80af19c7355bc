"""What a run must find before anything of it is written: nodes, their network, variables and its key."""

from __future__ import annotations

from collections.abc import Mapping

from executor.comm.meeting import endpoint, is_here, require_here, require_reachable
from executor.launch.environment import check_named
from executor.launch.nodes import LOOPBACKS, UNNUMBERED, listening_interface, placed
from executor.launch.schedulers import check_gpus, nodes_here
from executor.training.manifest import read_key
from executor.training.settings import RunSettings
from planner.plan import Plan
from topology.base.errors import InputError
from topology.builders import build
from topology.fabric.seats import hosts_by_rank
from topology.pools.kinds import kinds_of, stages_on


def ranks_per_node(num_gpus: int, nodes: int) -> int:
    """Ranks on each node; GPUs must fill nodes evenly."""
    if num_gpus % nodes:
        raise InputError(
            what="the plan does not fill the nodes",
            cause=f"{num_gpus} ranks over {nodes} nodes",
            fix="plan for a multiple of the number of nodes",
        )
    return num_gpus // nodes


def require_even(plan: Plan) -> None:
    """Refuse a plan whose stages are on nodes of unlike numbers of GPUs: a launcher divides ranks evenly."""
    kinds = kinds_of(plan.request.cluster)
    if len({kinds[kind].gpus_per_node for kind in plan.kind_of_stage}) > 1:
        raise InputError(
            what="plan run starts as many ranks on every node",
            cause=f"this plan has {', '.join(stages_on(plan.request.cluster, plan.kind_of_stage))}",
            fix="write a bundle: plan export --to meshplan --launcher torchrun --save-dir DIR",
        )


def check_doors(settings: RunSettings, plan: Plan, environment: Mapping[str, str]) -> None:
    """Refuse a run whose nodes, network, variables or key are not there."""
    nodes = nodes_here(environment, settings.nnodes, settings.rdzv_endpoint)
    each = ranks_per_node(plan.layout.num_gpus, nodes.count)
    if settings.device != "cpu":
        check_gpus(environment, each)
    interface = listening_interface(nodes, settings.interface)
    if settings.rdzv_endpoint is not None:
        where = endpoint(settings.rdzv_endpoint)
        if nodes.count > 1:
            alone = interface in LOOPBACKS
            require_reachable(where, loopback=alone)
            rank = placed(nodes, hosts_of(plan, each), environment).rank
            if rank == 0 or (rank == UNNUMBERED and not alone and is_here(where)):
                require_here(where)
    check_named(settings.env, environment)
    read_key(settings.run_key)


def hosts_of(plan: Plan, each: int) -> tuple[str, ...]:
    """Names of the plan's hosts by the rank of their node, none where its cluster has none."""
    return hosts_by_rank(plan.mesh, build(plan.request.cluster).spec, each)
