"""A cluster: an immutable facade over its graph, its hierarchy and the words that describe it."""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from topology.gpu import Gpu
from topology.hierarchy import Hierarchy
from topology.spec import ClusterSpec


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
