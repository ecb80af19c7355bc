"""NVIDIA topograph's cluster models: a tree of switches, blocks of hosts below them, and accelerator domains.

An accelerator domain may have sub-domains: each is one NVLink rack, and the domain above them is no NVSwitch.
"""

from collections import Counter
from collections.abc import Mapping

from topology.base.errors import InputError, shown
from topology.discover.fabric import FabricFacts, fabric_facts
from topology.discover.hostlist import count_hosts, hosts_in
from topology.discover.places import MOST_HOSTS, MOST_NAMED, Figure, Place, sizes
from topology.discover.trees import Tree, table_in, tables_in, word
from topology.spec_rules import MOST_TIERS

BLOCKS = ("blocks", "capacity_blocks", "capacityBlocks")


def is_model(document: Tree) -> bool:
    """Return whether a document is a model."""
    return isinstance(document, dict) and any(key in document for key in BLOCKS)


def from_model(document: Tree) -> FabricFacts:
    """Return the facts of a model."""
    blocks = next((document[key] for key in BLOCKS if key in document), None)
    if not isinstance(blocks, list) or not tables_in(blocks):
        fix = "give a model with `switches:` and `blocks:`"
        raise InputError("this is no topograph model", "no blocks of nodes were found in it", fix)
    children = _children(document.get("switches"))
    parent = _parents(children)
    places: list[Place] = []
    total = sum(sum(count_hosts(text, "the model") for text in _hosts(block)) for block in tables_in(blocks))
    if not 0 < total <= MOST_HOSTS:
        cause = f"its blocks have {total:,} nodes, not between 1 and {MOST_HOSTS:,}"
        raise InputError("this topograph model is not possible", cause, "correct the ranges of nodes")
    named = any(_domain(block)[0] for block in tables_in(blocks))
    for number, block in enumerate(tables_in(blocks)):
        switch = word(block.get("switch")) or parent.get(word(block.get("name")), "") or f"block-{number}"
        domain, sub = _domain(block)
        domain = domain or (switch if named else "")  # a block beside accelerator domains is one itself
        path = _path(switch, parent)
        places += [
            Place(name=name, path=path, domain=f"{domain}/{sub}" if sub else domain)
            for text in _hosts(block)
            for name in hosts_in(text, "the model")
        ]
    return fabric_facts(
        source="topograph",
        places=places,
        rooted=True,
        figures=_figures(places, blocks),
        notes=(
            *_idle(children, places),
            "the model gives no bandwidths: NICs are the reference machine's, fabrics not oversubscribed",
        ),
    )


def _hosts(block: Mapping[str, Tree]) -> list[str]:
    """Return the host expressions of a block."""
    nodes = block.get("nodes")
    return (
        [word(item) for item in nodes if word(item)]
        if isinstance(nodes, list)
        else [word(nodes)]
        if word(nodes)
        else []
    )


def _domain(block: Mapping[str, Tree]) -> tuple[str, str]:
    """Return the accelerator domain of a block and, where it has one, the sub-domain."""
    domain, sub = word(block.get("nvlink")), ""
    for key, value in {**table_in(block.get("labels")), **table_in(block.get("annotations"))}.items():
        name = key.rpartition("/")[2].lower()
        if name == "domain":
            domain = word(value)
        elif name in ("sub-domain", "subdomain"):
            sub = word(value)
    return domain, sub


def _children(switches: Tree) -> dict[str, list[str]]:
    """Return the switches and blocks below each switch, from a table or from a list of named ones."""
    named = {word(entry.get("name")): entry for entry in tables_in(switches)} or table_in(switches)
    children: dict[str, list[str]] = {}
    for name, entry in named.items():
        if isinstance(entry, list):
            raise _no_tree(f"{shown(name)} is listed before any switch is named")
        inside = table_in(entry)
        below = [inside.get(key) for key in ("switches", *BLOCKS)]
        children[name] = [word(item) for listed in below if isinstance(listed, list) for item in listed]
    return children


def _parents(children: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the switch above each switch; refuses one that is below two."""
    counts = Counter(switch for switches in children.values() for switch in switches)
    twice = [switch for switch, count in counts.items() if count > 1]
    if twice:
        raise _no_tree(f"switch {shown(twice[0])} is below two switches, or twice below one")
    return {switch: parent for parent, switches in children.items() for switch in switches}


def _path(switch: str, parent: Mapping[str, str]) -> tuple[str, ...]:
    """Return the path of a switch from the root."""
    path = [switch]
    while path[-1] in parent:
        if len(path) > MOST_TIERS:
            raise _no_tree(f"switch {shown(switch)} is below itself, or more than {MOST_TIERS} switches")
        path.append(parent[path[-1]])
    return tuple(reversed(path))


def _figures(places: list[Place], blocks: Tree) -> tuple[Figure, ...]:
    """Return what an expert reads: hosts, levels of switches, and the domains above sub-domains."""
    source = "topograph"
    figures = [Figure(name="nodes", value=f"{len(places):,}", source=source)]
    figures.append(
        Figure(
            name="switch levels",
            value=str(max((len(place.path) for place in places), default=0)),
            source=source,
        )
    )
    above = Counter[str]()
    for block in tables_in(blocks):
        domain, sub = _domain(block)
        if domain and sub:
            above[domain] += sum(count_hosts(text) for text in _hosts(block))
    if above:
        value = f"{len(above)}: {sizes(above.values())} nodes; parents of sub-domains, no NVSwitch joins them"
        figures.append(Figure(name="parent domains", value=value, source=source))
    return tuple(figures)


def _idle(children: Mapping[str, list[str]], places: list[Place]) -> list[str]:
    """Say which leaves hold no hosts."""
    used = {name for place in places for name in place.path}
    every = {switch for switches in children.values() for switch in switches} | set(children)
    idle = sorted(switch for switch in every - used if not children.get(switch))
    return [f"switches without nodes: {' '.join(idle[:MOST_NAMED])}"] if idle else []


def _no_tree(cause: str) -> InputError:
    """Say that the switches of a model are no tree."""
    return InputError("this topograph model is no tree of switches", cause, "correct its lists of switches")
