"""Slurm's topologies (tree, block, ring, torus3d, flat) as places; both files of Slurm's are read into these.

A leaf may have several parents (a flattened Clos): the first is the path, the others are said.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topology.base.errors import InputError, shown
from topology.discover.hostlist import hosts_in
from topology.discover.places import MOST_NAMED, Place, require_places, sizes
from topology.spec_rules import MOST_TIERS

WITHOUT_GPUS = "none"
"""Name of the switch under which Oracle's and other writers put hosts that no accelerator network reaches."""
MOST_BLOCK_LEVELS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One line of a tree: switches and hosts below a switch, as host expressions."""

    name: str
    switches: str = ""
    nodes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One topology of a file: its hosts, what an expert reads of its shape, and what is irregular."""

    name: str
    kind: str
    places: tuple[Place, ...]
    shape: str
    levels: int = 1
    notes: tuple[str, ...] = ()


def wrong(cause: str) -> InputError:
    """Say that Slurm would refuse this file."""
    return InputError("this Slurm topology is refused", cause, "correct the file; Slurm refuses it too")


def named_once(names: Sequence[str], what: str) -> None:
    """Refuse a name that is left out or written twice."""
    seen: set[str] = set()
    for name in names:
        if not name:
            raise wrong(f"a {what} has no name")
        if name in seen:
            raise wrong(f"{what} {shown(name)} is defined twice")
        seen.add(name)


def tree(name: str, switches: Sequence[Switch]) -> Topology:
    """Return the tree that switches make."""
    named_once([switch.name for switch in switches], "switch")
    by_name = {switch.name: switch for switch in switches}
    parents: dict[str, list[str]] = {}
    for switch in switches:
        for child in hosts_in(switch.switches, f"switch {shown(switch.name)}"):
            if child not in by_name:
                raise wrong(f"switch {shown(switch.name)} has a child {shown(child)} that is not defined")
            parents.setdefault(child, []).append(switch.name)
    paths = _paths(by_name, parents)
    hosts: dict[str, list[str]] = {
        switch.name: hosts_in(switch.nodes, f"switch {shown(switch.name)}")
        for switch in switches
        if switch.nodes
    }
    notes = _tree_notes(by_name, parents, hosts)
    placed: dict[str, Place] = {}
    value = 0
    for leaf, names in hosts.items():
        if leaf.lower() == WITHOUT_GPUS:
            notes.append(
                f"{len(names)} hosts below switch {leaf!r} have no accelerator network and are left out"
            )
            continue
        for host in names:
            value += host in placed
            placed.setdefault(host, Place(name=host, path=paths[leaf]))
    if value:
        notes.append(f"{value} hosts are on more than one leaf; the first is taken")
    count: dict[tuple[str, ...], int] = {}
    for place in placed.values():
        count[place.path] = count.get(place.path, 0) + 1
    return Topology(
        name=name,
        kind="tree",
        places=tuple(placed.values()),
        shape=f"{sizes(count.values())} hosts a leaf",
        levels=max((len(path) for path in paths.values()), default=0),
        notes=tuple(notes),
    )


def _paths(switches: Mapping[str, Switch], parents: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    """Return the path of every switch from its root; refuses a circle and a tree that is too deep."""
    paths: dict[str, tuple[str, ...]] = {}
    for name in switches:
        path = [name]
        while path[-1] not in paths and path[-1] in parents:
            above = parents[path[-1]][0]
            if above in path or len(path) > MOST_TIERS:
                raise wrong(f"switch {shown(name)} is below itself, or more than {MOST_TIERS} switches deep")
            path.append(above)
        top = paths.get(path[-1], (path[-1],))
        for depth, switch in enumerate(reversed(path[:-1]), 1):
            paths[switch] = (*top, *reversed(path[-1 - depth : -1]))
        paths.setdefault(path[-1], top)
        if len(paths[name]) > MOST_TIERS:
            raise wrong(f"switch {shown(name)} is more than {MOST_TIERS} switches deep")
    return paths


def _tree_notes(
    switches: Mapping[str, Switch], parents: Mapping[str, list[str]], hosts: Mapping[str, list[str]]
) -> list[str]:
    """Return what an expert would say of a tree."""
    notes = []
    roots = [name for name in switches if name not in parents and name.lower() != WITHOUT_GPUS]
    if len(roots) > 1:
        notes.append(
            f"{len(roots)} roots ({', '.join(roots[:MOST_NAMED])}): separate fabrics, no job spans them"
        )
    several = [name for name, above in parents.items() if len(above) > 1]
    if several:
        notes.append(f"{len(several)} switches have several parents: a flattened Clos, the first is the path")
    idle = [name for name, switch in switches.items() if not switch.switches and not hosts.get(name)]
    if idle:
        notes.append(f"switches without nodes: {' '.join(idle[:MOST_NAMED])}")
    return notes


def nvlink_blocks(name: str, values: Sequence[tuple[str, str]], block_sizes: Sequence[int]) -> Topology:
    """Return the blocks of a topology; a block is meant to be an NVLink domain."""
    named_once([block for block, _ in values], "block")
    _checksizes(block_sizes)
    inside = {block: hosts_in(nodes, f"block {shown(block)}") for block, nodes in values}
    notes = []
    empty = [block for block, hosts in inside.items() if not hosts]
    if empty:
        notes.append(f"empty blocks (failed racks kept in place): {' '.join(empty[:MOST_NAMED])}")
    left_out = sum(len(hosts) for block, hosts in inside.items() if block.lower() == WITHOUT_GPUS)
    if left_out:
        notes.append(f"{left_out} hosts in block {WITHOUT_GPUS!r} are left out")
    counts = {block: len(hosts) for block, hosts in inside.items() if block.lower() != WITHOUT_GPUS}
    base = block_sizes[0] if block_sizes else 0
    if any(0 < count < base for count in counts.values()):
        notes.append(f"some blocks have fewer than the planned {base} hosts")
    if base and any(count > base for count in counts.values()):
        notes.append(f"some blocks have more than {base} hosts: {max(counts.values()) - base} spares")
    places = tuple(
        Place(name=host, path=("blocks", block), domain=block)
        for block, hosts in inside.items()
        if block.lower() != WITHOUT_GPUS
        for host in hosts
    )
    shape = f"{sizes(counts.values())} hosts a block" + (
        f", BlockSizes {','.join(map(str, block_sizes))}" if block_sizes else ""
    )
    if places:
        require_places(places, "this Slurm topology")
    return Topology(name=name, kind="block", places=places, shape=shape, notes=tuple(notes))


def _checksizes(block_sizes: Sequence[int]) -> None:
    """Each size is a power of two times the first."""
    for size in block_sizes:
        times = (
            size // block_sizes[0] if size > 0 and block_sizes[0] > 0 and size % block_sizes[0] == 0 else 0
        )
        if times < 1 or times & (times - 1) or times >= 2**MOST_BLOCK_LEVELS:
            raise wrong(f"block size {size} is no power of two times {block_sizes[0]}")
    if list(block_sizes) != sorted(set(block_sizes)):
        raise wrong(f"block sizes {','.join(map(str, block_sizes))} do not grow")


def rings(name: str, values: Sequence[tuple[str, str]]) -> Topology:
    """Return rings of hosts: each host has two neighbours."""
    named_once([ring for ring, _ in values], "ring")
    if not values:
        raise wrong("it has no rings")
    inside = {ring: hosts_in(nodes, f"ring {shown(ring)}") for ring, nodes in values}
    places = tuple(Place(name=host, path=("rings", ring)) for ring, hosts in inside.items() for host in hosts)
    if places:
        require_places(places, "this Slurm topology")
    shape = f"{sizes(len(hosts) for hosts in inside.values())} hosts a ring"
    note = "rings of hosts: bandwidth between hosts that are no neighbours is less than planned for"
    return Topology(name=name, kind="ring", places=places, shape=shape, notes=(note,))


def torus(name: str, values: Sequence[tuple[str, tuple[int, int, int], Sequence[str]]]) -> Topology:
    """Return three-dimensional tori: name, size of each dimension, hosts in the order x, y, z."""
    named_once([text for text, _, _ in values], "torus")
    for text, dims, hosts in values:
        if min(dims) < 1:
            raise wrong(f"torus {shown(text)} has dimensions {dims}, each must be at least 1")
        if hosts and math.prod(dims) < len(hosts):
            raise wrong(f"torus {shown(text)} has {len(hosts)} nodes, more than {'x'.join(map(str, dims))}")
    places = tuple(Place(name=host, path=("tori", text)) for text, _, hosts in values for host in hosts)
    if places:
        require_places(places, "this Slurm topology")
    shape = "; ".join("x".join(map(str, dims)) for _, dims, _ in values)
    note = "a torus: bandwidth between hosts that are no neighbours is less than planned for"
    return Topology(name=name, kind="torus3d", places=places, shape=shape, notes=(note,))
