"""Kubernetes: node lists (`kubectl get nodes -o json|yaml`), Kueue's levels, kind clusters, label tables."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from topology.base.decode import lines_of
from topology.base.errors import InputError, shortened
from topology.discover.fabric import FabricFacts, fabric_facts
from topology.discover.formats.labels import HOST, label_keys, place_of_labels
from topology.discover.places import MOST_NAMED, Figure, Place
from topology.discover.trees import Tree, small_whole, table_in, tables_in, word, yes_no

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_CONTROL = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")


def objects_of(documents: Sequence[Tree]) -> list[Mapping[str, Tree]]:
    """Return the Kubernetes objects of documents; lists are opened."""
    objects: list[Mapping[str, Tree]] = []
    for document in documents:
        for item in document if isinstance(document, list) else [document]:
            inside = table_in(item)
            if "items" in inside and word(inside.get("kind")) in ("List", "NodeList", ""):
                objects += tables_in(inside["items"])
            elif "kind" in inside:
                objects.append(inside)
    return objects


def from_objects(objects: Sequence[Mapping[str, Tree]]) -> FabricFacts:
    """Return the facts of nodes, with the levels of a Kueue topology where one is among the objects."""
    levels = next((_levels(item) for item in objects if word(item.get("kind")) == "Topology"), ())
    nodes = [
        item for item in objects if word(item.get("kind")) in ("Node", "") and table_in(item.get("metadata"))
    ]
    workers = [
        entry
        for item in objects
        if word(item.get("kind")) == "Cluster"
        for entry in tables_in(item.get("nodes"))
    ]
    places, notes = _nodes(nodes, levels)
    for number, entry in enumerate(workers):
        if word(entry.get("role")) != "control-plane":
            places.append(place_of_labels(f"worker-{number}", _labels(entry), levels=levels))
    if not places:
        raise InputError(
            "these Kubernetes objects name no GPU nodes",
            _without_nodes(objects, notes),
            "give `kubectl get nodes -o json`",
        )
    keys = levels or label_keys(_labels(table_in(nodes[0].get("metadata"))) if nodes else _labels(workers[0]))
    figures = [Figure(name="nodes", value=f"{len(places):,}", source="kubectl get nodes")]
    if keys:
        figures.append(
            Figure(name="levels", value=" > ".join(key for key in keys if key != HOST), source="node labels")
        )
    if any(place.gpus for place in places):
        counts = sorted({place.gpus or 0 for place in places})
        figures.append(
            Figure(name="GPUs per node", value=", ".join(map(str, counts)), source="allocatable GPUs")
        )
    notes += _repeated(places)
    return fabric_facts(
        source="Kubernetes nodes",
        places=places,
        figures=figures,
        notes=notes,
        domain_word="NVLink domain label",
    )


def _nodes(nodes: Sequence[Mapping[str, Tree]], levels: Sequence[str]) -> tuple[list[Place], list[str]]:
    """Return the places of nodes that have GPUs; says which are left out."""
    places: list[Place] = []
    without, away = [], []
    listed = any(_gpu_count(node) for node in nodes)
    for node in nodes:
        metadata = table_in(node.get("metadata"))
        name, labels, gpus = word(metadata.get("name")), _labels(metadata), _gpu_count(node)
        if not name:
            raise InputError(
                "this list of nodes is not understood", "a node has no name", "give it unchanged"
            )
        if (listed and not gpus) or any(role in labels for role in _CONTROL):
            without.append(name)
        elif yes_no(table_in(node.get("spec")).get("unschedulable", "false")) or _not_ready(node):
            away.append(name)
        else:
            places.append(place_of_labels(name, labels, levels=levels, gpus=gpus))
    notes = []
    for names, why in ((without, "have no GPUs"), (away, "are not ready, or cordoned")):
        if names:
            notes.append(
                f"{len(names)} nodes {why} and are left out: {', '.join(map(shortened, names[:MOST_NAMED]))}"
            )
    return places, notes


def _labels(item: Mapping[str, Tree]) -> dict[str, str]:
    return {key: word(value) for key, value in table_in(item.get("labels")).items()}


def _gpu_count(node: Mapping[str, Tree]) -> int | None:
    """Return the GPUs that a node can give to jobs."""
    status = table_in(node.get("status"))
    for key in ("allocatable", "capacity"):
        counts = [small_whole(table_in(status.get(key)).get(resource)) for resource in GPU_RESOURCES]
        known = [count for count in counts if count is not None]
        if known:
            return sum(known)
    return None


def _not_ready(node: Mapping[str, Tree]) -> bool:
    conditions = tables_in(table_in(node.get("status")).get("conditions"))
    return any(word(c.get("type")) == "Ready" and word(c.get("status")).lower() != "true" for c in conditions)


def _levels(item: Mapping[str, Tree]) -> tuple[str, ...]:
    """Return the levels of a Kueue topology, from the outermost in."""
    return tuple(
        word(level.get("nodeLabel")) for level in tables_in(table_in(item.get("spec")).get("levels"))
    )


def _without_nodes(objects: Sequence[Mapping[str, Tree]], notes: Sequence[str]) -> str:
    """Say what the objects are instead."""
    kinds = list(dict.fromkeys(word(item.get("kind")) for item in objects))[:MOST_NAMED]
    levels = next((_levels(item) for item in objects if word(item.get("kind")) == "Topology"), ())
    without_nodes = (
        f"; its levels are {' > '.join(key.rpartition('/')[2] for key in levels)}" if levels else ""
    )
    return "; ".join(notes) or f"they are {', '.join(kinds) or 'empty'}{without_nodes}"


def _repeated(places: Sequence[Place]) -> list[str]:
    """Say where one rack's name occurs in several blocks."""
    units = {place.path for place in places}
    names = [path[-1] for path in units if path]
    repeated = (
        sorted({name for name in names if names.count(name) > 1})[:MOST_NAMED] if len(names) <= 10_000 else []
    )
    return (
        [f"racks {', '.join(repeated)} occur in several blocks: they are told apart by their block"]
        if repeated
        else []
    )


_DESCRIBED = re.compile(r"^Name:\s+\S+\s*$", re.MULTILINE)
_GIVES = re.compile(r"^(?:Allocatable|Capacity):", re.MULTILINE)
_LABEL = re.compile(r"([\w.-]+(?:/[\w.-]+)?)=(\S*)")


def is_description(text: str) -> bool:
    """Return whether a text is what `kubectl describe node` prints."""
    return bool(_DESCRIBED.search(text)) and bool(
        re.search(r"^(?:Allocatable|Capacity):", text, re.MULTILINE)
    )


def from_description(text: str) -> FabricFacts:
    """Return the facts of `kubectl describe node`, read as the objects that it describes."""
    objects: list[Mapping[str, Tree]] = []
    for number, line in enumerate(lines_of(text, "the description")):
        head, _, rest = line.partition(":")
        value = rest.strip()
        if head == "Name" and value:
            node: dict[str, dict[str, Tree]] = {"metadata": {"name": value}, "status": {}, "spec": {}}
            objects.append({"kind": "Node", **node})
            labels: dict[str, Tree] = {}
            part = ""
            node["metadata"]["labels"] = labels
            conditions: list[Tree] = []
            node["status"]["conditions"] = conditions
        if not objects or number > MOST_LINES:
            continue
        if head and not head[0].isspace():
            part = head
        if part == "Labels" and (label := _LABEL.search(line)):
            labels[label[1]] = label[2]
        elif part == "Unschedulable" and value:
            node["spec"]["unschedulable"] = value
        elif part in ("Capacity", "Allocatable") and head[:1].isspace():
            counts = node["status"].setdefault(part.lower(), {})
            assert isinstance(counts, dict)  # noqa: S101 - made here
            counts[head.strip()] = value
        elif part == "Conditions" and (words := line.split())[:1] == ["Ready"] and len(words) > 1:
            conditions.append({"type": "Ready", "status": words[1]})
    facts = from_objects(objects)
    return replace(facts, source="kubectl describe node", notes=(*_short_of_capacity(objects), *facts.notes))


def _short_of_capacity(objects: Sequence[Mapping[str, Tree]]) -> list[str]:
    """Nodes that give fewer GPUs to jobs than they have: a device is unhealthy there."""
    short = []
    for node in objects:
        status, metadata = table_in(node.get("status")), table_in(node.get("metadata"))
        for resource in GPU_RESOURCES:
            given, has = (
                small_whole(table_in(status.get(key)).get(resource)) for key in ("allocatable", "capacity")
            )
            if given is not None and has is not None and given < has:
                short.append(f"{word(metadata.get('name'))} offers {given} of its {has} GPUs")
    named = ", ".join(map(shortened, short[:MOST_NAMED]))
    return [f"{named}: the others are unhealthy, and not planned with"] if short else []


MOST_LINES = 400_000
"""Of a description that are read."""


def is_label_table(text: str) -> bool:
    """Return whether a text holds a table of nodes and labels, as Markdown or as kubectl prints it."""
    header = next(_table_rows(text), [])
    return (
        len(header) > 1
        and header[0].lower() in ("node", "name")
        and any("/" in cell or "topology" in cell.lower() for cell in header[1:])
    )


def from_label_table(text: str) -> FabricFacts:
    """Return the facts of a table whose columns are labels."""
    header, *lines = list(_table_rows(text))
    places = [
        place_of_labels(cells[0], dict(zip(header[1:], cells[1:], strict=True)))
        for cells in lines
        if len(cells) == len(header) and not set("".join(cells)) <= set(":-")
    ]
    figures = (Figure(name="nodes", value=f"{len(places):,}", source="table of labels"),)
    return fabric_facts(
        source="table of node labels", places=places, figures=figures, notes=_repeated(places)
    )


def _table_rows(text: str) -> Iterator[list[str]]:
    for line in lines_of(text, "the table"):
        if line.strip().startswith("|"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]
        elif line.startswith("NAME "):
            yield ["node", *line.split()[1:]]


def is_cliques(document: Tree) -> bool:
    """Return whether a document lists NVLink domains with cliques of nodes."""
    return any(
        "cliques" in domain
        for domain in tables_in(table_in(table_in(document).get("topology")).get("domains"))
    )


def from_cliques(document: Tree) -> FabricFacts:
    """Return the facts of domains and cliques: the clique is the NVLink partition, not its domain."""
    places = []
    domains = tables_in(table_in(document["topology"]).get("domains"))
    for domain in domains:
        uuid = word(domain.get("uuid")) or word(domain.get("name"))
        for clique in tables_in(domain.get("cliques")):
            nodes = clique.get("nodes")
            names = [word(node) for node in nodes if word(node)] if isinstance(nodes, list) else []
            places += [Place(name=name, domain=f"{uuid}.{word(clique.get('id'))}") for name in names]
    figures = (
        Figure(name="nodes", value=f"{len(places):,}", source="compute domains"),
        Figure(
            name="parent domains",
            value=f"{len(domains)}; a clique of it is an NVLink partition",
            source="compute domains",
        ),
    )
    return fabric_facts(source="NVLink cliques", places=places, figures=figures, domain_word="clique")
