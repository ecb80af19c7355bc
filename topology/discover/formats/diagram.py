"""A Mermaid tree of a cluster, as schedulers' documents draw it: boxes with their GPUs, arrows downwards."""

import re

from topology.base.errors import InputError, shown
from topology.discover.fabric import FabricFacts, fabric_facts
from topology.discover.places import MOST_HOSTS, Figure, Place
from topology.spec_rules import MOST_TIERS

_DIAGRAM = re.compile(
    r"^[ \t]*(?:graph|flowchart) (?:TD|TB|BT|LR|RL)[ \t]*$(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL
)
_BOX = re.compile(r"^[ \t]*([\w.-]{1,100})\[([^\]\n]{1,200})\][ \t]*$", re.MULTILINE)
_ARROW = re.compile(r"^[ \t]*([\w.-]{1,100})[ \t]+-->[ \t]+([\w.-]{1,100})[ \t]*$", re.MULTILINE)
_GPUS = re.compile(r"\b(\d{1,6}) GPUs?\b")
_SOURCE = "Mermaid diagram"


def is_diagram(text: str) -> bool:
    """Return whether a text draws a tree of boxes, some of which say how many GPUs they have."""
    match = _DIAGRAM.search(text)
    return match is not None and _GPUS.search(match[1]) is not None and _ARROW.search(match[1]) is not None


def from_diagram(text: str) -> FabricFacts:
    """Return the hosts of a diagram: its leaves, each with the boxes above it from the outermost in."""
    match = _DIAGRAM.search(text)
    drawn = match[1] if match else ""
    gpus = {box: int(count[1]) for box, label in _BOX.findall(drawn) if (count := _GPUS.search(label))}
    parent: dict[str, str] = {}
    children: dict[str, list[str]] = {}
    for above, below in _ARROW.findall(drawn):
        if parent.setdefault(below, above) != above:
            raise _contradicts(f"{shown(below)} is below {parent[below]} and below {above}")
        children.setdefault(above, []).append(below)
    leaves = [box for box in parent if box not in children]
    if len(leaves) > MOST_HOSTS:
        raise _contradicts(f"it has {len(leaves):,} boxes at its ends")
    unknown = next((leaf for leaf in leaves if leaf not in gpus), None)
    if unknown is not None:
        raise InputError(
            f"this {_SOURCE} is incomplete", f"{shown(unknown)} does not say its GPUs", "write [… 8 GPUs]"
        )
    for box, below in children.items():
        inside = [gpus.get(child) for child in dict.fromkeys(below)]
        total = sum(count for count in inside if count is not None)
        if box in gpus and None not in inside and total != gpus[box]:
            raise _contradicts(f"{shown(box)} says {gpus[box]} GPUs, and those below it have {total}")
    places = [Place(name=leaf, path=_above(leaf, parent), gpus=gpus[leaf], is_host=False) for leaf in leaves]
    return fabric_facts(
        source=_SOURCE,
        places=places,
        figures=[Figure(name="nodes", value=f"{len(places):,}", source=_SOURCE)],
        rooted=True,
    )


def _above(box: str, parent: dict[str, str]) -> tuple[str, ...]:
    """Return the boxes above one, from the outermost in."""
    path: list[str] = []
    while box in parent:
        box = parent[box]
        if len(path) >= MOST_TIERS or box in path:
            raise _contradicts(f"{shown(box)} is below itself, or below more than {MOST_TIERS} others")
        path.append(box)
    return tuple(reversed(path))


def _contradicts(cause: str) -> InputError:
    return InputError(f"this {_SOURCE} contradicts itself", cause, "draw every box once, below one other")
