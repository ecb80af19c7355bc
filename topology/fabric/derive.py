"""From the graph to the hierarchy: units are what stays connected when outer switches are taken away.

Level by level: removing every switch leaves nodes, removing spines and cores leaves leaf groups, and so
on; the links that were cut are a unit's uplinks. A folded unit stands for one that is drawn in full, so
the same code reads the full graph and the folded one, and a test holds them equal.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topology.base.errors import InputError
from topology.fabric import graph as g
from topology.fabric.hierarchy import Hierarchy, Level
from topology.fabric.link import Link
from topology.hardware.gpu import Gpu

if TYPE_CHECKING:
    import networkx as nx

SAME = 1e-9
"""Relative difference below which two bandwidths are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelUnit:
    """One unit of a level: which GPUs, and the bytes/s and slowest latency of the links that leave it."""

    first_gpu: int
    gpus: int
    uplink_bytes_per_s: float
    latency_s: float


def derive(graph: "g.Graph | nx.Graph", gpu: Gpu) -> Hierarchy:
    """Return the hierarchy of a topology graph whose GPUs are all planned for as `gpu`."""
    if not graph or not g.is_connected(graph):
        fix = "link every node to a switch that reaches the others"
        raise InputError("the topology is disconnected", _islands(graph), fix)
    inside = [device for device in graph if g.tier(graph, device) == 0 and g.kind(graph, device) != "unit"]
    domains = g.components(graph, inside)
    hosts = g.components(graph, inside, scaleup=False)
    scaleup, island_gpus = _scaleup(graph, domains)
    inner = _inner_level(graph, island_gpus, domains, hosts)
    outer, notes = _network_levels(graph)
    return Hierarchy(
        gpu=gpu,
        num_gpus=g.gpu_count(graph, graph),
        gpus_per_node=outer[0].unit_gpus if outer else max(g.gpu_count(graph, part) for part in domains),
        gpus_per_host=_common(g.gpu_count(graph, host) for host in hosts),
        scaleup=scaleup,
        nic=_nic(graph),
        nics_per_node=min(sum(g.kind(graph, device) == "nic" for device in host) for host in hosts),
        rails=min(_rails(graph, host) for host in hosts),
        levels=inner + outer,
        symmetric=not notes,
        notes=notes,
    )


def units_at(graph: "g.Graph | nx.Graph", tier: int) -> list[LevelUnit]:
    """Return the units that remain when switches of `tier` and above are removed, by their first GPU."""
    kept = [device for device in graph if g.tier(graph, device) < tier]
    units = [_unit(graph, part) for part in g.components(graph, kept)]
    return sorted(units, key=lambda unit: unit.first_gpu)


def unit_of_gpu(graph: "g.Graph | nx.Graph", tier: int) -> tuple[int, ...]:
    """Return, for each GPU of a full graph, the number of its unit; for placements that are not regular."""
    kept = [device for device in graph if g.tier(graph, device) < tier]
    owner: dict[int, int] = {}
    for number, part in enumerate(
        sorted(g.components(graph, kept), key=lambda part: g.first_gpu(graph, part))
    ):
        owner.update((g.first_gpu(graph, [d]), number) for d in part if g.kind(graph, d) == "gpu")
    return tuple(owner[index] for index in sorted(owner))


def _unit(graph: "g.Graph | nx.Graph", part: set[str]) -> LevelUnit:
    """Return one unit; what leaves a node is also limited by its GPUs' own links to their host."""
    leaving = g.links_leaving(graph, part)
    uplink = sum(link.bandwidth_bytes_per_s for link in leaving)
    if not any(g.kind(graph, device) in ("switch", "unit") for device in part):
        gpus = [device for device in part if g.kind(graph, device) == "gpu"]
        uplink = min(uplink, sum(_host_link(graph, gpu).bandwidth_bytes_per_s for gpu in gpus))
    return LevelUnit(
        first_gpu=g.first_gpu(graph, part),
        gpus=g.gpu_count(graph, part),
        uplink_bytes_per_s=uplink,
        latency_s=max((link.latency_s for link in leaving), default=0.0),
    )


def _network_levels(graph: "g.Graph | nx.Graph") -> tuple[tuple[Level, ...], tuple[str, ...]]:
    """Return the levels that switches make, and what is not symmetric about them."""
    levels: list[Level] = []
    notes: list[str] = []
    latency, total = 0.0, g.gpu_count(graph, graph)
    for tier in range(1, g.top_tier(graph) + 1):
        units = units_at(graph, tier)
        if units[0].gpus == total:
            break
        size, uplink, problem = _common_unit(units, total)
        latency += 2 * max(unit.latency_s for unit in units)
        name = "node" if tier == 1 else _role_below(graph, tier)
        levels.append(
            Level(
                name=name,
                unit_gpus=size,
                uplink_bytes_per_s=uplink,
                latency_s=latency,
                reduces=g.reduces(graph, tier),
            )
        )
        if problem:
            notes.append(f"{name} level: {problem}")
    return tuple(levels), tuple(notes)


def _common_unit(units: list[LevelUnit], num_gpus: int) -> tuple[int, float, str]:
    """Return unit size, uplink per GPU and, when units differ, what was assumed instead.

    A smaller last unit is no asymmetry: blocks are aligned from the first GPU on.
    """
    size = max(unit.gpus for unit in units)
    shares = [unit.uplink_bytes_per_s / unit.gpus for unit in units]
    uplink = min(shares)
    aligned = all(
        unit.first_gpu % size == 0 and (unit.gpus == size or unit.first_gpu + unit.gpus == num_gpus)
        for unit in units
    )
    problems = []
    if not aligned:
        sizes = sorted({unit.gpus for unit in units})
        size = math.gcd(*(unit.gpus for unit in units), *(unit.first_gpu for unit in units))
        problems.append(f"units of {', '.join(map(str, sizes))} GPUs, planned for as units of {size}")
    if max(shares) > uplink * (1 + SAME):
        problems.append("uplinks differ, planned for with the slowest")
    return size, uplink, "; ".join(problems)


def _scaleup(graph: "g.Graph | nx.Graph", domains: list[set[str]]) -> tuple[Link, int]:
    """Return the slowest scale-up link of a GPU, and how many GPUs it joins (1 when there is none)."""
    kept = [device for part in domains for device in part if g.kind(graph, device) in ("gpu", "nvswitch")]
    islands = g.components(graph, kept, scaleup=True)
    gpus = [device for device in kept if g.kind(graph, device) == "gpu"]
    size = _common(g.gpu_count(graph, island) for island in islands)
    if size == 1:
        alone = min(
            (_host_link(graph, device) for device in gpus), key=lambda link: link.bandwidth_bytes_per_s
        )
        return Link(
            kind="pcie", bandwidth_bytes_per_s=alone.bandwidth_bytes_per_s, latency_s=alone.latency_s
        ), 1
    has_switch = any(g.kind(graph, device) == "nvswitch" for device in kept)
    pairs = size == 2 and size < max(g.gpu_count(graph, part) for part in domains)
    name = "nvswitch" if has_switch else "nvlink-pairs" if pairs else "nvlink-mesh"
    bandwidths, latencies = zip(*(_scaleup_of_gpu(graph, device) for device in gpus), strict=True)
    return Link(kind=name, bandwidth_bytes_per_s=min(bandwidths), latency_s=max(latencies)), size


def _scaleup_of_gpu(graph: "g.Graph | nx.Graph", device: str) -> tuple[float, float]:
    links = [link for _, link in g.links_of(graph, device) if link.kind in g.SCALEUP_KINDS]
    bandwidth = sum(link.bandwidth_bytes_per_s for link in links)
    return bandwidth, max((link.latency_s for link in links), default=0.0)


def _inner_level(
    graph: "g.Graph | nx.Graph", island_gpus: int, domains: list[set[str]], hosts: list[set[str]]
) -> tuple[Level, ...]:
    """Return the level of NVLink islands inside a node, when the node is larger than one island."""
    if island_gpus == 1 or island_gpus == max(g.gpu_count(graph, part) for part in domains):
        return ()
    gpus = [device for host in hosts for device in host if g.kind(graph, device) == "gpu"]
    slowest = min((_host_link(graph, device) for device in gpus), key=lambda link: link.bandwidth_bytes_per_s)
    uplink, latency = slowest.bandwidth_bytes_per_s, slowest.latency_s
    return (Level(name="island", unit_gpus=island_gpus, uplink_bytes_per_s=uplink, latency_s=latency),)


def _host_link(graph: "g.Graph | nx.Graph", gpu: str) -> Link:
    """Return a GPU's own link to its host."""
    links = [link for _, link in g.links_of(graph, gpu) if link.kind not in g.SCALEUP_KINDS]
    return links[0] if links else Link(kind="none", bandwidth_bytes_per_s=0.0)


def _nic(graph: "g.Graph | nx.Graph") -> Link | None:
    """Return the slowest NIC: its bandwidth, and the latency from one NIC to another through a leaf."""
    nics = [
        link for nic in g.devices_of(graph, "nic") for other, link in g.links_of(graph, nic)
        if g.kind(graph, other) == "switch"
    ]  # fmt: skip
    inside = [link for nic in g.devices_of(graph, "nic") for _, link in g.links_of(graph, nic)]
    if not inside:
        return None
    slowest = min(nics or inside, key=lambda link: link.bandwidth_bytes_per_s)
    return Link(
        kind="nic",
        bandwidth_bytes_per_s=slowest.bandwidth_bytes_per_s,
        latency_s=2 * slowest.latency_s if nics else 0,
    )


def _rails(graph: "g.Graph | nx.Graph", host: set[str]) -> int:
    """Return how many separate leaves a host's NICs reach, at least 1."""
    leaves = {
        other
        for device in host
        if g.kind(graph, device) == "nic"
        for other in graph.adj[device]
        if other not in host
    }
    return max(1, len(leaves))


def _role_below(graph: "g.Graph | nx.Graph", tier: int) -> str:
    return next(g.role(graph, d) for d in g.devices_of(graph, "switch") if g.tier(graph, d) == tier - 1)


def _common(sizes: Iterable[int]) -> int:
    return math.gcd(*sizes)


def _islands(graph: "g.Graph | nx.Graph") -> str:
    islands = g.components(graph, graph)
    named = ", ".join(f"{g.gpu_count(graph, part)} GPUs around {min(part)}" for part in islands[:4])
    return f"it falls into {len(islands)} islands: {named}" if islands else "it has no GPUs"
