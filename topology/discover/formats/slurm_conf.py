"""Slurm's `topology.conf` (tree, block, ring) and what `scontrol show topology` prints of it."""

import re
from collections.abc import Iterator

from topology.base.decode import lines_of
from topology.base.errors import shown
from topology.discover.fabric import FabricFacts
from topology.discover.formats.slurm import Switch, Topology, nvlink_blocks, rings, tree, wrong
from topology.discover.formats.slurm_facts import facts_of_topologies

FIRST = ("switchname", "blockname", "ringname", "blocksizes")
_WORD = re.compile(r"([A-Za-z]\w*)\s*=\s*(\"[^\"]*\"|\S*)")
_PRINTED = frozenset(
    {"level", "linkspeed", "blockindex", "blocksize", "ringindex", "ringsize", "absoluteblocksize"}
)
_KNOWN = frozenset({"nodes", "switches", *FIRST, *_PRINTED})


def is_topology_conf(text: str) -> bool:
    """Return whether a line of a text begins as one of this file's."""
    return (
        re.search(r"^\s*(SwitchName|BlockName|RingName|BlockSizes)\s*=", text, re.IGNORECASE | re.MULTILINE)
        is not None
    )


def from_topology_conf(text: str) -> FabricFacts:
    """Return the facts of a `topology.conf`."""
    lines = list(_entries(text))
    kinds = {first.removesuffix("name") for first, _ in lines if first != "blocksizes"}
    if len(kinds) != 1:
        raise wrong(f"it mixes {' and '.join(sorted(kinds)) or 'no'} lines: one file has one kind")
    kind = kinds.pop()
    return facts_of_topologies([_topology(kind, lines)], source="Slurm topology.conf")


def _topology(kind: str, lines: list[tuple[str, dict[str, str]]]) -> Topology:
    if kind == "switch":
        if any(first == "blocksizes" for first, _ in lines):
            raise wrong("BlockSizes stands in a file of switches")
        return tree("", [_switch(words) for _, words in lines])
    named = [
        (words[f"{kind}name"], words.get("nodes", "")) for first, words in lines if first == f"{kind}name"
    ]
    if kind == "ring":
        return rings("", named)
    sizes = [words["blocksizes"] for first, words in lines if first == "blocksizes"]
    printed = [words["blocksize"] for _, words in lines if words.get("blocksize")]
    return nvlink_blocks("", named, _numbers(sizes[0] if sizes else printed[0] if printed else ""))


def _switch(words: dict[str, str]) -> Switch:
    """Return a line of a tree; `scontrol` prints the hosts of every level, which only leaves hold."""
    inner, nodes = words.get("switches", ""), words.get("nodes", "")
    if inner and nodes and "level" not in words:
        raise wrong(f"switch {shown(words['switchname'])} has both switches and nodes below it")
    return Switch(name=words["switchname"], switches=inner, nodes="" if inner else nodes)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if any(not part.isascii() or not part.isdecimal() or len(part) > 9 for part in parts):
        raise wrong(f"BlockSizes {shown(text)} are no numbers")
    return [int(part) for part in parts]


def _entries(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each line's first word and its words in small letters; a backslash continues a line."""
    for raw in lines_of(re.sub(r"\\\s*\n", " ", text), "the topology"):
        line = raw.split("#")[0].strip()
        if not line:
            continue
        words = {name.lower(): value.strip('"') for name, value in _WORD.findall(line)}
        first = next(iter(words), "")
        if first in ("aggregatedblock", "include"):
            continue
        rest = _WORD.sub("", line).strip()
        if first not in FIRST or rest:
            raise wrong(f"line {shown(line)} is none of SwitchName=, BlockName=, RingName=, BlockSizes=")
        unknown = [name for name in words if name not in _KNOWN]
        if unknown:
            raise wrong(f"line {shown(line)} has an unknown word {unknown[0]!r}")
        yield first, {key: "" if value in ("(null)", "N/A") else value for key, value in words.items()}
