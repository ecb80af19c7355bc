"""The graph of a cluster: one vertex per device, one edge per link; the only file that knows attribute names.

Kinds of devices: `gpu`, `nvswitch`, `pcie` (a PCIe switch), `host` (the root of a machine), `nic`,
`switch` (leaf, spine, core: tiers 1, 2, 3), and `unit`, a whole unit folded into one vertex because it
equals a sibling that is drawn in full.
"""

from collections.abc import ItemsView, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from topology.fabric.link import Link

if TYPE_CHECKING:
    import networkx as nx

SCALEUP_KINDS = ("nvlink", "xgmi")


@dataclass(slots=True)
class Graph:
    """Devices and links in plain dicts, read as a `networkx.Graph` is.

    To import networkx takes as long as many a search; what is said of a graph here holds of either.
    """

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    adj: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def adjacency(self) -> ItemsView[str, dict[str, dict[str, Any]]]:
        """Return each device with its links by neighbour."""
        return self.adj.items()


def as_networkx(graph: Graph) -> "nx.Graph":
    """Return the same graph for the algorithms of networkx."""
    import networkx as nx

    value = nx.Graph()
    value.add_nodes_from(graph.nodes.items())
    value.add_edges_from((a, b, link) for a, links in graph.adj.items() for b, link in links.items())
    return value


def add_device(
    graph: Graph,
    name: str,
    kind: str,
    *,
    tier: int = 0,
    gpus: int = 0,
    index: int = -1,
    role: str = "",
    sharp: bool = False,
) -> str:
    """Add a device: the `gpus` it stands for, `index` of the first; a switch has `role` and `sharp`."""
    data = {"kind": kind, "tier": tier, "gpus": gpus, "index": index, "role": role, "sharp": sharp}
    graph.nodes[name] = data
    graph.adj.setdefault(name, {})
    return name


def add_link(graph: Graph, a: str, b: str, link: Link) -> None:
    """Add a link; parallel links between two devices add their bandwidth."""
    known = graph.adj[a].get(b)
    bandwidth = link.bandwidth_bytes_per_s + (known["bandwidth_bytes_per_s"] if known else 0.0)
    data = {"kind": link.kind, "bandwidth_bytes_per_s": bandwidth, "latency_s": link.latency_s}
    graph.adj[a][b] = graph.adj[b][a] = data


def kind(graph: "Graph | nx.Graph", device: str) -> str:
    """Return the kind of a device."""
    return str(graph.nodes[device]["kind"])


def tier(graph: "Graph | nx.Graph", device: str) -> int:
    """Return the tier of a switch or folded unit, 0 for devices inside a node."""
    return int(graph.nodes[device]["tier"])


def role(graph: "Graph | nx.Graph", device: str) -> str:
    """Return the name of a switch's tier."""
    return str(graph.nodes[device]["role"])


def reduces(graph: "Graph | nx.Graph", tier_number: int) -> bool:
    """Return whether every switch of a tier adds up what is all-reduced through it."""
    return all(graph.nodes[d]["sharp"] for d in devices_of(graph, "switch") if tier(graph, d) == tier_number)


def gpu_count(graph: "Graph | nx.Graph", devices: Iterable[str]) -> int:
    """Return the GPUs that devices are or stand for."""
    return sum(int(graph.nodes[device]["gpus"]) for device in devices)


def first_gpu(graph: "Graph | nx.Graph", devices: Iterable[str]) -> int:
    """Return the smallest GPU number among devices that have one."""
    return min(int(graph.nodes[d]["index"]) for d in devices if graph.nodes[d]["gpus"])


def link_between(graph: "Graph | nx.Graph", a: str, b: str) -> Link:
    """Return the link between two devices."""
    data = graph.adj[a][b]
    return Link(
        kind=data["kind"], bandwidth_bytes_per_s=data["bandwidth_bytes_per_s"], latency_s=data["latency_s"]
    )


def links_of(graph: "Graph | nx.Graph", device: str) -> Iterator[tuple[str, Link]]:
    """Yield each neighbour of a device with the link to it."""
    for other in graph.adj[device]:
        yield other, link_between(graph, device, other)


def devices_of(graph: "Graph | nx.Graph", *kinds: str) -> list[str]:
    """Return the devices of some kinds, in the order they were added."""
    return [device for device, data in graph.nodes.items() if data["kind"] in kinds]


def top_tier(graph: "Graph | nx.Graph") -> int:
    """Return the highest tier of any switch."""
    return max((tier(graph, device) for device in devices_of(graph, "switch")), default=0)


def components(
    graph: "Graph | nx.Graph", devices: Iterable[str], *, scaleup: bool | None = None
) -> list[set[str]]:
    """Return the connected parts that hold GPUs when only `devices` remain.

    Args:
        graph: the topology.
        devices: the vertices kept.
        scaleup: True keeps only scale-up links, False drops them, None keeps all.
    """
    kept = list(devices)
    adjacency, left = dict(graph.adjacency()), set(kept)
    result = []
    for start in kept:
        if start in left:
            part, stack = {start}, [start]
            left.remove(start)
            while stack:
                links = adjacency[stack.pop()].items()
                neighbours = [
                    other
                    for other, link in links
                    if other in left and (scaleup is None or (link["kind"] in SCALEUP_KINDS) == scaleup)
                ]
                left.difference_update(neighbours)
                part.update(neighbours)
                stack.extend(neighbours)
            result.append(part)
    return [part for part in result if gpu_count(graph, part)]


def links_leaving(graph: "Graph | nx.Graph", part: set[str]) -> list[Link]:
    """Return the links between a part of the graph and the rest."""
    leaving = ((device, other) for device in part for other in graph.adj[device] if other not in part)
    return [link_between(graph, device, other) for device, other in leaving]


def is_connected(graph: "Graph | nx.Graph") -> bool:
    """Return whether every device reaches every other."""
    reached, left = {next(iter(graph))}, [next(iter(graph))]
    while left:
        neighbours = set(graph.adj[left.pop()]) - reached
        reached |= neighbours
        left.extend(neighbours)
    return len(reached) == len(graph)
