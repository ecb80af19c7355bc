"""From words to a graph: nodes, rails, leaves, spines, cores, in full or folded.

A folded graph draws the first unit of every kind and stands one vertex for each of its equal siblings;
16,384 GPUs are then a few hundred vertices, and the hierarchy derived from them is the same.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, groupby

from topology.fabric import graph as g
from topology.fabric.link import Link
from topology.spec import ClusterSpec, NodeSpec, SwitchSpec, TierSpec
from topology.spec_rules import is_even


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """An end that a unit offers to the switch above it."""

    device: str
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WiredUnit:
    """A built unit: its GPUs, and its ports by plane (rail r of every node is plane r)."""

    gpus: int
    planes: tuple[tuple[Port, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """One scale-up domain to build: `hosts` nodes of a kind, and where its numbers start."""

    node: NodeSpec
    hosts: int
    first_host: int
    first_gpu: int


def build_graph(spec: ClusterSpec, *, folded: bool = False) -> g.Graph:
    """Return the topology graph of a cluster.

    Args:
        spec: a valid spec (`topology.spec_rules`).
        folded: draw equal units once, where all scale-up domains have the same number of GPUs.
    """
    graph = g.Graph()
    fold = folded and is_even(spec)
    if spec.switches:
        _grow_tree(graph, spec, fold=fold)
        return graph
    domains = tuple(_domains(spec.nodes))
    tiers = _tiers_above(spec, len(domains))
    _grow(graph, spec, tiers, len(tiers) - 1, domains, fold=fold)
    return graph


def in_tree_order(spec: ClusterSpec) -> tuple[NodeSpec, ...]:
    """Return the nodes as a walk of the switch tree meets them: GPUs of a leaf become neighbours."""
    children: dict[str, list[SwitchSpec]] = {}
    for switch in spec.switches:
        children.setdefault(switch.parent, []).append(switch)
    below: dict[str, list[NodeSpec]] = {}
    for node in spec.nodes:
        below.setdefault(node.switch, []).append(node)
    order: list[NodeSpec] = []
    stack = list(reversed(children.get("", [])))
    while stack:
        switch = stack.pop()
        order.extend(below.get(switch.name, []))
        stack.extend(reversed(children.get(switch.name, [])))
    return tuple(order)


def _domains(nodes: Sequence[NodeSpec]) -> Iterator[Domain]:
    host = gpu = 0
    for named in nodes:
        node = replace(named, hosts=(), usd_per_gpu_hour=None)  # equal units are drawn once, whoever they are
        for start in range(0, node.count, node.nodes_per_domain):
            hosts = min(node.nodes_per_domain, node.count - start)
            yield Domain(node=node, hosts=hosts, first_host=host, first_gpu=gpu)
            host += hosts
            gpu += hosts * node.gpus_per_node


def _tiers_above(spec: ClusterSpec, num_domains: int) -> tuple[TierSpec, ...]:
    """Return the tiers that join all nodes: those smaller than the cluster, and one that spans it."""
    if num_domains == 1:
        return ()
    below = [tier for tier in spec.tiers if tier.nodes_per_unit < spec.num_nodes]
    spanning = [tier for tier in spec.tiers if tier.nodes_per_unit >= spec.num_nodes]
    latency_s = spec.tiers[-1].latency_s if spec.tiers else 0.0
    used = {tier.name for tier in below}
    names = ("core" if below else "leaf", *(f"core-{number}" for number in range(2, len(used) + 3)))
    name = next(name for name in names if name not in used)
    core = TierSpec(name=name, nodes_per_unit=spec.num_nodes, latency_s=latency_s)
    return (*below, spanning[0] if spanning else core)


def _grow(
    graph: g.Graph,
    spec: ClusterSpec,
    tiers: tuple[TierSpec, ...],
    level: int,
    domains: Sequence[Domain],
    *,
    fold: bool,
) -> WiredUnit:
    """Build what hangs below one group of switches of tier `level` (−1: one domain), then the switches."""
    if level < 0:
        return _add_domain(graph, domains[0])
    children: list[WiredUnit] = []
    drawn: dict[tuple[tuple[NodeSpec, int], ...], WiredUnit] = {}
    for chunk in _chunks(domains, tiers[level - 1] if level else None):
        content = tuple((domain.node, domain.hosts) for domain in chunk)
        if fold and content in drawn:
            children.append(_fold(graph, drawn[content], chunk[0], level))
        else:
            drawn[content] = _grow(graph, spec, tiers, level - 1, chunk, fold=fold)
            children.append(drawn[content])
    return _add_switches(graph, spec, tiers[level], level, children, domains[0].first_host)


def _chunks(domains: Sequence[Domain], tier: TierSpec | None) -> list[list[Domain]]:
    """Return runs of domains that share a unit of a tier; without one each is its own."""
    if tier is None:
        return [[domain] for domain in domains]
    ends = list(accumulate(tier.units or ()))

    def unit(domain: Domain) -> int:
        return bisect_right(ends, domain.first_host) if ends else domain.first_host // tier.nodes_per_unit

    return [list(run) for _, run in groupby(domains, key=unit)]


def _fold(graph: g.Graph, like: WiredUnit, first: Domain, level: int) -> WiredUnit:
    """Add one vertex that stands for a unit equal to `like`."""
    name = g.add_device(
        graph, f"unit{first.first_host}.{level}", "unit", tier=level, gpus=like.gpus, index=first.first_gpu
    )
    planes = tuple(tuple(replace(port, device=name) for port in plane) for plane in like.planes)
    return WiredUnit(gpus=like.gpus, planes=planes)


def _add_switches(
    graph: g.Graph,
    spec: ClusterSpec,
    tier: TierSpec,
    level: int,
    children: Sequence[WiredUnit],
    first_host: int,
) -> WiredUnit:
    """Add the switches of one unit: a leaf per rail, spines that meet all leaves, cores that meet a plane."""
    count = max(len(child.planes) for child in children) if spec.rail_optimized or level else 1
    meets_all = level == 1 or count == 1
    share = 1 / count if level == 1 else 1.0
    planes = []
    for number in range(count):
        apart = "-" if tier.name[-1:].isdigit() or tier.name == "unit" else ""  # leaf1 of host 0, leaf of 10
        name = f"{tier.name}{apart}{first_host}.{number}"
        g.add_device(graph, name, "switch", tier=level + 1, role=tier.name, sharp=tier.sharp)
        planes_met = (
            plane
            for child in children
            for i, plane in enumerate(child.planes)
            if meets_all or i % count == number
        )
        inward = _plug(graph, name, [port for plane in planes_met for port in plane], share)
        up = Port(device=name, bandwidth_bytes_per_s=inward / tier.oversubscription, latency_s=tier.latency_s)
        planes.append((up,))
    return WiredUnit(gpus=sum(child.gpus for child in children), planes=tuple(planes))


def _plug(graph: g.Graph, switch: str, ports: Sequence[Port], share: float = 1.0) -> float:
    """Link a share of every port to a switch; return the bandwidth that arrives there."""
    for port in ports:
        rate = port.bandwidth_bytes_per_s * share
        link = Link(kind="network", bandwidth_bytes_per_s=rate, latency_s=port.latency_s)
        g.add_link(graph, port.device, switch, link)
    return share * sum(port.bandwidth_bytes_per_s for port in ports)


def _add_domain(graph: g.Graph, domain: Domain) -> WiredUnit:
    """Add the hosts of one scale-up domain and the links between their GPUs."""
    node = domain.node
    hosts = []
    for number in range(domain.hosts):
        first_gpu = domain.first_gpu + number * node.gpus_per_node
        hosts.append(_add_host(graph, node, domain.first_host + number, first_gpu))
    num_gpus = domain.hosts * node.gpus_per_node
    _add_scaleup(graph, node, domain.first_host, range(domain.first_gpu, domain.first_gpu + num_gpus))
    planes = tuple(tuple(port for host in hosts for port in host[rail]) for rail in range(len(hosts[0])))
    return WiredUnit(gpus=num_gpus, planes=planes)


def _add_host(graph: g.Graph, node: NodeSpec, host: int, first_gpu: int) -> list[tuple[Port, ...]]:
    """Add one host: GPUs and NICs on PCIe switches below a root; return its NIC ports by rail."""
    root = g.add_device(graph, f"host{host}", "host")
    groups = rails_of(node)
    gpus, nics = node.gpus_per_node // groups, node.nics_per_node // groups
    to_host = Link(kind="pcie", bandwidth_bytes_per_s=node.host_bandwidth_bytes_per_s)
    to_root = replace(to_host, bandwidth_bytes_per_s=gpus * node.host_bandwidth_bytes_per_s)
    nic_rate = node.nic_bandwidth_bytes_per_s
    if nics:
        nic_rate = min(nic_rate, to_root.bandwidth_bytes_per_s / nics)
    planes: list[tuple[Port, ...]] = []
    for group in range(groups):
        switch = g.add_device(graph, f"host{host}.pcie{group}", "pcie")
        g.add_link(graph, switch, root, to_root)
        for gpu in range(first_gpu + group * gpus, first_gpu + (group + 1) * gpus):
            g.add_link(graph, g.add_device(graph, f"gpu{gpu}", "gpu", gpus=1, index=gpu), switch, to_host)
        ports = []
        for nic in range(group * nics, (group + 1) * nics):
            name = g.add_device(graph, f"host{host}.nic{nic}", "nic")
            g.add_link(graph, name, switch, Link(kind="pcie", bandwidth_bytes_per_s=nic_rate))
            ports.append(Port(device=name, bandwidth_bytes_per_s=nic_rate, latency_s=node.nic_latency_s / 2))
        planes.append(tuple(ports))
    return planes


def rails_of(node: NodeSpec) -> int:
    """Return how many equal groups of GPUs and NICs a host has, each a rail of its own."""
    groups = min(node.nics_per_node, node.gpus_per_node)
    even = groups and node.gpus_per_node % groups == 0 and node.nics_per_node % groups == 0
    return groups if even else 1


def _add_scaleup(graph: g.Graph, node: NodeSpec, first_host: int, gpus: range) -> None:
    """Add the links between the GPUs of a domain, as its kind of scale-up wires them."""
    if node.scaleup == "pcie" or len(gpus) == 1:
        return
    rate = node.scaleup_bandwidth_bytes_per_s
    link = Link(kind="nvlink", bandwidth_bytes_per_s=rate, latency_s=node.scaleup_latency_s)
    if node.scaleup == "nvswitch":
        switch = g.add_device(graph, f"host{first_host}.nvswitch", "nvswitch")
        for gpu in gpus:
            g.add_link(graph, f"gpu{gpu}", switch, link)
        return
    pairs: Iterator[tuple[int, int]] = combinations(gpus, 2)
    if node.scaleup == "nvlink-pairs":
        pairs = ((gpu, gpu + 1) for gpu in gpus[:-1:2])
    else:
        link = replace(link, bandwidth_bytes_per_s=rate / (len(gpus) - 1))
    for a, b in pairs:
        g.add_link(graph, f"gpu{a}", f"gpu{b}", link)


def _grow_tree(graph: g.Graph, spec: ClusterSpec, *, fold: bool) -> None:
    """Build a fabric given as a tree of named switches."""
    heights = tree_heights(spec.switches)
    for switch in spec.switches:
        g.add_device(
            graph,
            f"switch {switch.name}",
            "switch",
            tier=heights[switch.name],
            role=switch.name,
            sharp=switch.sharp,
        )
    for switch in spec.switches:
        if switch.parent:
            rate, latency = switch.uplink_bandwidth_bytes_per_s, switch.latency_s
            link = Link(kind="network", bandwidth_bytes_per_s=rate, latency_s=latency)
            g.add_link(graph, f"switch {switch.name}", f"switch {switch.parent}", link)
    drawn: dict[tuple[NodeSpec, int], WiredUnit] = {}
    for domain in _domains(spec.nodes):
        content = (domain.node, domain.hosts)
        like = drawn.get(content) if fold else None
        unit = _fold(graph, like, domain, 0) if like else _add_domain(graph, domain)
        drawn.setdefault(content, unit)
        for plane in unit.planes:
            _plug(graph, f"switch {domain.node.switch}", plane)


def tree_heights(switches: Sequence[SwitchSpec]) -> dict[str, int]:
    """Return the tier of each switch of a tree: one more than the highest switch below it, 1 for none."""
    heights = {switch.name: 1 for switch in switches}
    changed = True
    while changed:
        changed = False
        for switch in switches:
            if switch.parent and heights[switch.parent] <= heights[switch.name]:
                heights[switch.parent] = heights[switch.name] + 1
                changed = True
    return heights
