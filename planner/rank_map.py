"""Where the ranks of a plan sit: host and GPU of each rank, and the hosts by the rank of their node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.plan import Plan
from topology.base.errors import InputError
from topology.builders import build
from topology.spec import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One rank: node of the cluster, from 0, its name where the cluster has one, and GPU of that node."""

    rank: int
    node: int
    host: str
    gpu: int


def rank_map(plan: Plan) -> tuple[Seat, ...]:
    """The seat of every rank."""
    spec = _built(plan)
    first = _first_gpus(spec)
    gpus = np.asarray(plan.mesh.gpu_of_rank)
    nodes, names = np.searchsorted(first, gpus, side="right") - 1, spec.hosts
    return tuple(
        Seat(rank=rank, node=int(node), host=names[node] if names else "", gpu=int(gpu - first[node]))
        for rank, (node, gpu) in enumerate(zip(nodes, gpus, strict=True))
    )


def nodes_by_rank(plan: Plan, per_node: int) -> tuple[int, ...]:
    """Node of the cluster by node rank.

    Raises:
        InputError: ranks of one node, `per_node` of them, are not the first GPUs of one host, in order.
    """
    gpus = np.asarray(plan.mesh.gpu_of_rank).reshape(-1, per_node)
    first = _first_gpus(_built(plan))
    nodes = np.searchsorted(first, gpus[:, 0], side="right") - 1
    wrong = np.flatnonzero((gpus != first[nodes][:, None] + np.arange(per_node)).any(1))
    if wrong.size:
        raise InputError(
            what="a launcher starts the ranks of a node on the GPUs of one host, in order",
            cause=f"node {wrong[0]} of the plan has GPUs {', '.join(map(str, gpus[wrong[0]][:8]))}",
            fix="plan anew: the search places whole hosts",
        )
    return tuple(map(int, nodes))


def hosts_by_rank(plan: Plan, per_node: int) -> tuple[str, ...]:
    """Names of the hosts by node rank; none unless the cluster has one for each of its nodes."""
    names = _built(plan).hosts
    return tuple(names[node] for node in nodes_by_rank(plan, per_node)) if names else ()


def _built(plan: Plan) -> ClusterSpec:
    """The cluster with its nodes in the order of its GPUs."""
    return build(plan.request.cluster).spec


def _first_gpus(spec: ClusterSpec) -> NDArray[np.int64]:
    """First GPU of every node."""
    sizes = np.repeat([node.gpus_per_node for node in spec.nodes], [node.count for node in spec.nodes])
    return np.asarray(np.cumsum(sizes) - sizes, dtype=np.int64)
