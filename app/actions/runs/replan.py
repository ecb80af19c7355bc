"""A plan for what is left of a run's GPUs."""

from __future__ import annotations

from dataclasses import replace

from app.actions.plan import searched_plan
from costmodel.layout import DEGREES
from planner.plan import Plan, PlanRequest
from topology.base.errors import InputError
from topology.cluster_file import resized
from topology.fabric.degraded import degraded
from topology.spec import ClusterSpec


def replanned(request: PlanRequest, num_gpus: int, lost: tuple[str, ...]) -> Plan | None:
    """Plan the same job and global batch on fewer GPUs; pinned degrees no longer fit and are dropped.

    `lost` are names of hosts that it must do without.
    """
    try:
        rest = degraded(request.cluster, without=lost)
    except InputError:  # nothing is left
        return None
    cluster = part_of_cluster(rest, num_gpus)
    if cluster is None:
        return None
    pins = {name: value for name, value in request.pins.items() if name not in (*DEGREES, "shard_degree")}
    answer = searched_plan(replace(request, cluster=cluster, pins=pins))
    return answer if isinstance(answer, Plan) else None


def part_of_cluster(cluster: ClusterSpec, num_gpus: int) -> ClusterSpec | None:
    """So many GPUs of a cluster: whole nodes, or a part of one; None for what it has not."""
    node = cluster.nodes[0]
    if len(cluster.nodes) == 1 and not cluster.switches and 0 < num_gpus < node.gpus_per_node:
        nics = max(1, node.nics_per_node * num_gpus // node.gpus_per_node)
        part = replace(node.times(1), gpus_per_node=num_gpus, nics_per_node=nics)
        return replace(cluster, nodes=(part,))
    try:
        return resized(cluster, num_gpus)
    except InputError:
        return None
