"""The hierarchy of a cluster: what the planner reads instead of the graph, in microseconds.

Legend: `N` GPUs; level ℓ has units of `C_ℓ` GPUs, each GPU owning `β_ℓ` bytes/s of the links that leave
its unit; a group of an axis has `g` members `s` GPUs apart and repeats every `L = g·s` GPUs.
"""

from dataclasses import dataclass

from topology.gpu import Gpu
from topology.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Units of `unit_gpus` GPUs; `uplink_bytes_per_s` is one GPU's share of what leaves its unit."""

    name: str
    unit_gpus: int
    uplink_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Levels inner to outer, each a boundary that traffic may cross; the whole cluster is not a level.

    `gpus_per_node` is the size of the scale-up domain: 8 in a DGX, 72 in an NVL72 rack, whose hosts
    have `gpus_per_host` = 4. `rails` is the number of separate leaf planes one node's NICs reach (1 when
    all of them share a leaf).
    """

    gpu: Gpu
    num_gpus: int
    gpus_per_node: int
    gpus_per_host: int
    scaleup: Link
    nic: Link | None
    nics_per_node: int
    rails: int
    levels: tuple[Level, ...]
    symmetric: bool = True
    notes: tuple[str, ...] = ()
