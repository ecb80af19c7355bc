"""`rocm-smi --showtopo`: matrices of weight, hops and kind of the links between AMD GPUs."""

import re

from topology.base.decode import lines_of
from topology.base.errors import InputError
from topology.discover.node import MOST_NODE_TEXT, NodeFacts, require_few
from topology.discover.places import Figure

_GPU = re.compile(r"GPU\d{1,4}")
_TITLE = re.compile(r"(Weight|Hops|Link Type) between two GPUs")


def is_topology(text: str) -> bool:
    """Return whether a text holds this tool's matrices."""
    return _TITLE.search(text) is not None


def from_topology(text: str) -> NodeFacts:
    """Return the facts of one machine."""
    if len(text) > MOST_NODE_TEXT:
        raise InputError(
            "this is no dump of one machine",
            f"it has more than {MOST_NODE_TEXT:,} characters",
            "give it unchanged",
        )
    kinds, hops = _matrix(text, "Link Type"), _matrix(text, "Hops")
    gpus = list(kinds)
    require_few(len(gpus))
    if not gpus or any(len(row) != len(gpus) for row in kinds.values()):
        cause = "its matrix of link types is not whole"
        raise InputError("this is no `rocm-smi --showtopo` output", cause, "give the tool's whole output")
    pairs = [(a, b) for a in range(len(gpus)) for b in range(len(gpus)) if a != b]
    joined = [pair for pair in pairs if kinds[gpus[pair[0]]][pair[1]].upper() == "XGMI"]
    notes = []
    scaleup = "nvlink-mesh" if pairs and len(joined) == len(pairs) else "pcie"
    if joined and scaleup == "pcie":
        notes.append("xGMI joins some GPUs only: the slowest path, PCIe, is planned for")
    far = [
        pair
        for pair in joined
        if hops and hops.get(gpus[pair[0]], [])[pair[1] : pair[1] + 1] not in ([], ["1"])
    ]
    if far and scaleup != "pcie":
        notes.append(f"{len(far)} of {len(pairs)} pairs of GPUs are more than one xGMI hop apart")
    source = "rocm-smi --showtopo"
    figure = Figure(name="GPUs per node", value=str(len(gpus)), source=source)
    return NodeFacts(
        source=source, gpus=len(gpus), nics=0, scaleup=scaleup, notes=tuple(notes), figures=(figure,)
    )


def _matrix(text: str, title: str) -> dict[str, list[str]]:
    """Return the rows of the matrix below a title."""
    rows: dict[str, list[str]] = {}
    inside = False
    for line in lines_of(text, "the dump"):
        match = _TITLE.search(line)
        if match or line.startswith("=="):
            inside = bool(match) and match[1] == title if match else False
            continue
        words = line.split()
        if (
            inside
            and len(words) > 1
            and _GPU.fullmatch(words[0])
            and not all(_GPU.fullmatch(word) for word in words)
        ):
            rows[words[0]] = words[1:]
    return rows
