"""Where ranks sit: host and GPU of the host of each, and the hosts by the rank of their node."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topology.base.errors import InputError
from topology.fabric.mesh import Mesh
from topology.spec import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One rank: node of the cluster, from 0, its name where the cluster has one, and GPU of that node."""

    rank: int
    node: int
    host: str
    gpu: int


def seats(mesh: Mesh, spec: ClusterSpec) -> tuple[Seat, ...]:
    """Return the seat of every rank on a cluster as it was built."""
    first, gpus, names = _first_gpus(spec), np.asarray(mesh.gpu_of_rank), spec.hosts
    nodes = np.searchsorted(first, gpus, side="right") - 1
    return tuple(
        Seat(rank=rank, node=int(node), host=names[node] if names else "", gpu=int(gpu - first[node]))
        for rank, (node, gpu) in enumerate(zip(nodes, gpus, strict=True))
    )


def idle_nodes(mesh: Mesh, spec: ClusterSpec) -> tuple[str, ...]:
    """Return the nodes on which no rank sits: by name, by number where they have none."""
    first, names = _first_gpus(spec), spec.hosts
    used = set(np.searchsorted(first, np.asarray(mesh.gpu_of_rank), side="right") - 1)
    return tuple(names[node] if names else f"node{node}" for node in range(len(first)) if node not in used)


def nodes_by_rank(mesh: Mesh, spec: ClusterSpec, per_node: int | Sequence[int]) -> tuple[int, ...]:
    """Return the node of the cluster by node rank; each has so many ranks, the first GPUs of one, in order.

    Args:
        mesh: the ranks.
        spec: the cluster as it was built.
        per_node: ranks of every node, or of each by node rank.
    """
    gpus, first = np.asarray(mesh.gpu_of_rank), _first_gpus(spec)
    sizes = [per_node] * (len(gpus) // per_node) if isinstance(per_node, int) else list(per_node)
    if sum(sizes) != len(gpus):
        raise InputError(
            "a launcher starts every rank on some node",
            f"{len(gpus)} ranks, nodes of {', '.join(map(str, sizes[:8]))}",
            "plan for whole nodes",
        )
    starts = np.cumsum(sizes) - sizes
    nodes = np.searchsorted(first, gpus[starts], side="right") - 1
    places = np.repeat(first[nodes] - starts, sizes) + np.arange(len(gpus))
    wrong = np.flatnonzero(gpus != places)
    if wrong.size:
        node = int(np.searchsorted(starts, wrong[0], side="right") - 1)
        there = gpus[starts[node] : starts[node] + sizes[node]][:8]
        what = "a launcher starts the ranks of a node on the GPUs of one host, in order"
        cause = f"node {node} of the plan has GPUs {', '.join(map(str, there))}"
        raise InputError(what, cause, "plan anew: the search places whole hosts")
    return tuple(map(int, nodes))


def hosts_by_rank(mesh: Mesh, spec: ClusterSpec, per_node: int | Sequence[int]) -> tuple[str, ...]:
    """Return the names of the hosts by node rank; none unless the cluster has one for each of its nodes."""
    names = spec.hosts
    return tuple(names[node] for node in nodes_by_rank(mesh, spec, per_node)) if names else ()


def _first_gpus(spec: ClusterSpec) -> NDArray[np.int64]:
    """Return the first GPU of every node."""
    sizes = np.repeat([node.gpus_per_node for node in spec.nodes], [node.count for node in spec.nodes])
    return np.asarray(np.cumsum(sizes) - sizes, dtype=np.int64)
