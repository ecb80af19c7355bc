"""NetQ and NMX: compute nodes with their NVLink domain, and the graph of switches and hosts."""

from collections import Counter
from collections.abc import Iterator, Mapping

from topology.base.errors import InputError
from topology.discover.fabric import FabricFacts, fabric_facts
from topology.discover.places import Figure, Place
from topology.discover.trees import Tree, table_in, tables_in, word


def is_compute_nodes(document: Tree) -> bool:
    """Return whether a document lists compute nodes."""
    return any("DomainUUID" in item or "GpuIDList" in item for item in tables_in(document))


def from_compute_nodes(document: Tree) -> FabricFacts:
    """Return the facts of compute nodes: trays of one domain share its NVSwitches."""
    places, notes = [], []
    for item in tables_in(document):
        gpus = item.get("GpuIDList")
        health = word(item.get("Health"))
        if health and health.upper() != "HEALTHY":
            notes.append(f"{word(item.get('Name'))} is {health}")
        places.append(
            Place(
                name=word(item.get("Name")),
                domain=word(item.get("DomainUUID")),
                gpus=len(gpus) if isinstance(gpus, list) else None,
            )
        )
    counts = sorted({place.gpus for place in places if place.gpus})
    figures = [Figure(name="nodes", value=f"{len(places):,}", source="NMX compute nodes")]
    figures += (
        [Figure(name="GPUs per node", value=", ".join(map(str, counts)), source="GpuIDList")]
        if counts
        else []
    )
    return fabric_facts(
        source="NMX compute nodes", places=places, figures=figures, notes=notes[:20], domain_word="DomainUUID"
    )


def is_graph(document: Tree) -> bool:
    """Return whether a document is a graph of links and nodes."""
    return any("links" in item and "nodes" in item for item in _graphs(document))


def _graphs(document: Tree) -> list[Mapping[str, Tree]]:
    return list(tables_in(document)) or ([document] if isinstance(document, dict) else [])


def from_graph(document: Tree) -> FabricFacts:
    """Return the facts of a graph: a host's leaf is the switch it has most cables to."""
    nodes: dict[str, Mapping[str, Tree]] = {}
    cables: dict[str, Counter[str]] = {}
    for graph in _graphs(document):
        for node in _devices(graph.get("nodes"), 0):
            nodes[word(node.get("id"))] = node
        for link in tables_in(graph.get("links")):
            for a, b, count in _cables(link):
                cables.setdefault(a, Counter())[b] += count
                cables.setdefault(b, Counter())[a] += count
    switches = {name for name, node in nodes.items() if word(node.get("device_type")).lower() == "switch"}
    hosts = [
        name
        for name in nodes
        if name not in switches and any(peer in switches for peer in cables.get(name, ()))
    ]
    if not hosts:
        cause = f"it is a graph of {len(switches)} switches, none of its nodes is a host"
        raise InputError(
            "this NetQ graph names no hosts", cause, "give the graph with hosts, and a list of nodes"
        )
    below = {name for host in hosts for name in cables[host] if name in switches}
    places = []
    for host in hosts:
        leaves = [name for name, _ in cables.get(host, Counter()).most_common() if name in switches]
        above = [
            name for leaf in leaves[:1] for name, _ in cables[leaf].most_common() if name in switches - below
        ]
        places.append(
            Place(
                name=_name(nodes[host]), path=tuple(_name(nodes[name]) for name in (*above[:1], *leaves[:1]))
            )
        )
    figures = (
        Figure(name="nodes", value=f"{len(hosts):,}", source="NetQ graph"),
        Figure(name="switches", value=f"{len(switches):,}", source="NetQ graph"),
    )
    return fabric_facts(source="NetQ graph", places=places, figures=figures)


def _name(node: Mapping[str, Tree]) -> str:
    return word(node.get("name")) or word(node.get("id"))


def _devices(value: Tree, depth: int) -> Iterator[Mapping[str, Tree]]:
    """Yield devices, which are folded into groups and tiers."""
    for node in tables_in(value):
        inside = tables_in(node.get("compounded_nodes")) or tables_in(
            table_in(node.get("id")).get("compounded_nodes")
        )
        if inside and depth < 8:
            yield from _devices(inside, depth + 1)
        elif word(node.get("device_type")) and word(node.get("id")):
            yield node


def _cables(link: Mapping[str, Tree]) -> Iterator[tuple[str, str, int]]:
    """Yield the cables of a link: both ends, and how many."""
    for cable in tables_in(link.get("compounded_links")) or [link]:
        ends = [word(end.get("node")) for end in tables_in(cable.get("interfaces"))]
        if len(ends) == 2 and all(ends):
            yield ends[0], ends[1], 1
