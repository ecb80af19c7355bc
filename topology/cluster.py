"""A cluster: an immutable facade over its graph, its hierarchy and the words that describe it."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from topology.base.decode import unstructure
from topology.fabric.derive import derive
from topology.fabric.graph import as_networkx
from topology.fabric.hierarchy import Hierarchy
from topology.fabric.wiring import build_graph
from topology.hardware.gpu import Gpu
from topology.spec import ClusterSpec

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster of GPUs. Two clusters are equal when their specs and GPU types are.

    `gpu` is the GPU every node has; when nodes differ it is the slowest and smallest common one, and
    `notes` says so.
    """

    spec: ClusterSpec
    gpu: Gpu
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """Return the name of the cluster."""
        return self.spec.name

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs."""
        return self.spec.num_gpus

    @cached_property
    def graph(self) -> "nx.Graph":
        """Return the whole graph: one vertex per GPU, switch and NIC. Large clusters take a second."""
        return as_networkx(build_graph(self.spec))

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """Return the hierarchy, derived from the folded graph where the cluster is regular."""
        return derive(build_graph(self.spec, folded=True), self.gpu)

    def wired_as(self, hierarchy: Hierarchy) -> "Cluster":
        """Return the same cluster with the boundaries of another hierarchy, to price what that would cost."""
        other = replace(self)
        other.__dict__["hierarchy"] = hierarchy  # the place of the cached property
        return other

    def fingerprint(self) -> str:
        """Return 16 hex digits that change when anything that decides a plan changes."""
        facts = {"spec": unstructure(self.spec), "gpu": unstructure(self.gpu)}
        for name in (
            "left_out",
            "idle_usd_per_hour",
            "storage",
            "grid_g_co2_per_kwh",
        ):  # which decide no step
            del facts["spec"][name]
        for node in facts["spec"]["nodes"]:
            del node["hosts"]  # nor do they
            # which bound an offload alone, and that is the job's
            del node["host_memory_bytes"], node["host_memory_bandwidth_bytes_per_s"]
            if node["usd_per_gpu_hour"] is None:  # as it was before kinds of node could have prices
                del node["usd_per_gpu_hour"]
        for tier in facts["spec"]["tiers"]:
            if tier["units"] is None:  # as it was before units could differ
                del tier["units"]
        for switch in (*facts["spec"]["tiers"], *facts["spec"]["switches"]):
            if not switch["sharp"]:  # as it was before switches could reduce
                del switch["sharp"]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
