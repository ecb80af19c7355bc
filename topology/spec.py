"""What a cluster is, in words: the declarative form that TOML files hold and a plan stores.

A fabric is given either by `tiers` (regular leaf-spine-core, rail-optimised or not) or by `switches`
(a named tree, for fabrics that are not regular), never by both.
"""

from dataclasses import dataclass, replace
from itertools import chain

from topology.hardware.gpu import Gpu

SCALEUPS = ("nvswitch", "nvlink-mesh", "nvlink-pairs", "pcie")
"""How GPUs of one node reach each other: all through a switch, pairwise, bridged in pairs, or over PCIe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """`count` equal nodes (hosts). Bandwidths are per direction; scale-up bandwidth is per GPU.

    `nodes_per_domain` hosts share one scale-up domain (18 trays of 4 in an NVL72 rack, else 1).
    `host_bandwidth_bytes_per_s` is a GPU's own path to the host and its NIC (PCIe or C2C).
    `usd_per_gpu_hour` is their own price where it is not the cluster's: spot and reserved nodes of a machine
    are two kinds.
    `host_memory_bytes` and `host_memory_bandwidth_bytes_per_s` are of a whole node; 0 where nobody said.
    `switch` names the leaf the nodes hang on when the cluster lists `switches`. `hosts` are the names of the
    nodes in order, where they are known.
    """

    gpu: str
    count: int
    gpus_per_node: int
    scaleup: str
    scaleup_bandwidth_bytes_per_s: float
    scaleup_latency_s: float = 0.0
    nodes_per_domain: int = 1
    host_bandwidth_bytes_per_s: float
    nics_per_node: int
    nic_bandwidth_bytes_per_s: float
    nic_latency_s: float = 0.0
    name: str = ""
    switch: str = ""
    hosts: tuple[str, ...] = ()
    usd_per_gpu_hour: float | None = None
    host_memory_bytes: float = 0.0
    host_memory_bandwidth_bytes_per_s: float = 0.0

    def times(self, count: int) -> "NodeSpec":
        """Return so many of these nodes: the first of those that have names, no names for more of them."""
        return replace(self, count=count, hosts=self.hosts[:count] if count <= self.count else ())

    def part(self, num_gpus: int) -> "NodeSpec":
        """Return one of these nodes with some of its GPUs, whose other GPUs are somebody else's."""
        share = num_gpus / self.gpus_per_node
        return replace(
            self.times(1),
            gpus_per_node=num_gpus,
            nodes_per_domain=1,
            nics_per_node=-(-self.nics_per_node * num_gpus // self.gpus_per_node),
            host_memory_bytes=share * self.host_memory_bytes,
            host_memory_bandwidth_bytes_per_s=share * self.host_memory_bandwidth_bytes_per_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSpec:
    """A tier of switches: units of `nodes_per_unit` nodes, `oversubscription` = bandwidth in over out.

    `units` gives the nodes of each unit in order, where they differ; `nodes_per_unit` is then the most.
    `sharp`: its switches add up what is all-reduced through them (in-network reduction).
    """

    name: str
    nodes_per_unit: int
    oversubscription: float = 1.0
    latency_s: float = 0.0
    units: tuple[int, ...] | None = None
    sharp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSpec:
    """A switch of a fabric given as a tree; the root has no parent. `sharp` as of a tier."""

    name: str
    parent: str = ""
    uplink_bandwidth_bytes_per_s: float = 0.0
    latency_s: float = 0.0
    sharp: bool = False


STORAGE_KINDS = ("host", "peer", "nvme", "file-system", "object-store")
"""Where a checkpoint can go, nearest first: a node's own memory, another's, its disks, shared systems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec:
    """A place checkpoints can go to, of one of `STORAGE_KINDS`.

    Bandwidths of a shared system are of the whole of it, others of one node, `bytes` likewise; 0 of a
    `host` or `peer` is what the path to the host, and the NICs, carry. `survives` is the loss after which it
    can still be read where that is not what its kind survives: ``rack`` of a peer in another rack, ``node``
    of disks that are mirrored. `usd` is what it would cost to buy, for how soon it pays back.
    """

    kind: str
    name: str = ""
    write_bytes_per_s: float = 0.0
    read_bytes_per_s: float = 0.0
    bytes: float = 0.0
    survives: str = ""
    usd: float | None = None

    @property
    def title(self) -> str:
        """Its name, or that of its kind."""
        return self.name or self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A whole cluster. `gpus` defines GPU types the catalog lacks, or overrides them.

    `usd_per_gpu_hour` is the price of nodes that have none of their own (`topology.pools.rates`);
    `idle_usd_per_hour` that of nodes of its pool that are none of its own and are paid for all the same.

    `left_out` names hosts, and GPUs of hosts, that were taken out before; they are in none of the other
    fields (`topology.fabric.degraded`). `storage` are the places that checkpoints can go to, where known;
    `grid_g_co2_per_kwh` is what its electricity emits, where somebody said.
    """

    name: str
    nodes: tuple[NodeSpec, ...]
    tiers: tuple[TierSpec, ...] = ()
    switches: tuple[SwitchSpec, ...] = ()
    rail_optimized: bool = True
    fabric: str = ""
    usd_per_gpu_hour: float | None = None
    price_source: str = ""
    price_as_of: str = ""
    gpus: tuple[Gpu, ...] = ()
    left_out: tuple[str, ...] = ()
    storage: tuple[StorageSpec, ...] = ()
    idle_usd_per_hour: float = 0.0
    grid_g_co2_per_kwh: float | None = None

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs."""
        return sum(node.count * node.gpus_per_node for node in self.nodes)

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes (hosts)."""
        return sum(node.count for node in self.nodes)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the name of every host in order, none unless all of them have one.

        An entry of one node without a host of its own is known by its name.
        """
        names = [node.hosts or ((node.name,) if node.count == 1 and node.name else ()) for node in self.nodes]
        return tuple(chain.from_iterable(names)) if all(names) else ()
