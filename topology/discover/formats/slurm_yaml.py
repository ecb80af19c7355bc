"""Slurm's `topology.yaml`: a list of topologies, each of exactly one kind."""

from collections.abc import Mapping

from topology.base.errors import shown
from topology.discover.fabric import FabricFacts
from topology.discover.formats.slurm import (
    Switch,
    Topology,
    named_once,
    nvlink_blocks,
    rings,
    torus,
    tree,
    wrong,
)
from topology.discover.formats.slurm_facts import facts_of_topologies
from topology.discover.hostlist import hosts_in
from topology.discover.trees import Tree, small_whole, table_in, word, yes_no

KINDS = ("tree", "block", "flat", "ring", "torus3d")
_XYZ = ("x", "y", "z")


def is_topology_yaml(document: Tree) -> bool:
    """Return whether a document looks like a list of topologies."""
    if isinstance(document, dict):
        return "topology" in document and any(kind in document for kind in KINDS)
    return isinstance(document, list) and any(
        "topology" in table_in(item) or "cluster_default" in table_in(item) for item in document
    )


def from_topology_yaml(document: Tree) -> FabricFacts:
    """Return the facts of a `topology.yaml`."""
    if not isinstance(document, list) or not all(isinstance(item, dict) for item in document):
        raise wrong("it is no list of topologies")
    result, defaults = [], []
    for item in document:
        topology = _topology(item)
        result.append(topology)
        default = yes_no(item.get("cluster_default", "false"))
        if default is None:
            raise wrong(f"cluster_default of {shown(topology.name)} is neither true nor false")
        defaults += [topology.name] if default else []
    named_once([topology.name for topology in result], "topology")
    return facts_of_topologies(result, "Slurm topology.yaml", defaults[0] if defaults else "")


def _topology(item: Mapping[str, Tree]) -> Topology:
    """Return one topology."""
    name = word(item.get("topology"))
    if not name:
        raise wrong("a topology has no name")
    if next(iter(item)) != "topology":
        raise wrong(f"the name of topology {shown(name)} is not its first attribute")
    _only(item, f"topology {shown(name)}", "topology", "cluster_default", *KINDS)
    flat = item.get("flat")
    kinds = [
        kind for kind in KINDS if kind in item and (kind != "flat" or isinstance(flat, dict) or yes_no(flat))
    ]
    if "flat" in item and not isinstance(flat, dict) and yes_no(flat) is None:
        raise wrong(f"flat of {shown(name)} is neither true nor false")
    if len(kinds) != 1:
        raise wrong(
            f"topology {shown(name)} has {len(kinds)} kinds ({', '.join(kinds) or 'none'}), it must have one"
        )
    (kind,) = kinds
    if kind == "flat":
        return Topology(name=name, kind="flat", places=(), shape="")
    inside = item[kind]
    if not isinstance(inside, dict):
        raise wrong(f"{kind} of {shown(name)} is not a table")
    where = f"{kind} of {shown(name)}"
    if kind == "tree":
        _only(inside, where, "switches")
        listed = _tables(inside, "switches", where)
        return tree(name, [_switch(entry) for entry in listed])
    if kind == "block":
        _only(inside, where, "block_sizes", "blocks")
        return nvlink_blocks(
            name, _named(inside, "blocks", "block", where), _sizes(inside.get("block_sizes"), where)
        )
    if kind == "ring":
        _only(inside, where, "rings")
        return rings(name, _named(inside, "rings", "ring", where))
    return torus(name, [_torus(entry, where) for entry in _tori(inside, where)])


def _only(item: Mapping[str, Tree], where: str, *known: str) -> None:
    """Refuse a key that Slurm does not know."""
    unknown = [key for key in item if key not in known]
    if unknown:
        raise wrong(f"{where} has an unknown key {shown(unknown[0])}")


def _text(item: Mapping[str, Tree], key: str, where: str) -> str:
    """Return a host expression, "" where it is left out."""
    value = item.get(key)
    if isinstance(value, dict | list):
        raise wrong(f"{key} of {where} is not text")
    return word(value)


def _tables(inside: Mapping[str, Tree], key: str, where: str) -> list[Mapping[str, Tree]]:
    """Return the entries of a list that must be there."""
    listed = inside.get(key)
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, dict) for entry in listed):
        raise wrong(f"{key} of {where} is no list of tables")
    return listed


def _switch(entry: Mapping[str, Tree]) -> Switch:
    where = f"switch {shown(word(entry.get('switch')))}"
    _only(entry, where, "switch", "children", "nodes")
    switch = Switch(
        name=_text(entry, "switch", where),
        switches=_text(entry, "children", where),
        nodes=_text(entry, "nodes", where),
    )
    if switch.switches and switch.nodes:
        raise wrong(f"{where} has both children and nodes")
    if len(switch.name) > 64:
        raise wrong(f"{where} has a name of more than 64 letters")
    return switch


def _named(inside: Mapping[str, Tree], key: str, name: str, where: str) -> list[tuple[str, str]]:
    """Return names and host expressions of blocks or rings."""
    named = []
    for entry in _tables(inside, key, where):
        _only(entry, f"a {name} of {where}", name, "nodes")
        named.append((_text(entry, name, where), _text(entry, "nodes", where)))
    return named


def _sizes(value: Tree, where: str) -> list[int]:
    if value is None:
        return []
    listed = value if isinstance(value, list) else [value]
    sizes = [small_whole(size) for size in listed]
    if not sizes or any(not size for size in sizes):
        raise wrong(f"block_sizes of {where} are no positive numbers")
    return [size for size in sizes if size]


def _tori(inside: Mapping[str, Tree], where: str) -> list[Mapping[str, Tree]]:
    """Return the tori of a topology: a list of them, or one that is described itself."""
    lists = [
        key
        for key, value in inside.items()
        if isinstance(value, list) and key not in ("placements", "regions", "dims")
    ]
    if lists:
        _only(inside, where, lists[0])
        return _tables(inside, lists[0], where)
    return [inside]


def _torus(entry: Mapping[str, Tree], where: str) -> tuple[str, tuple[int, int, int], list[str]]:
    """Return name, dimensions and hosts of a torus; regions put their hosts at an anchor."""
    names = [key for key in ("torus", "name", "torus3d") if key in entry]
    _only(entry, where, "torus", "name", "torus3d", "dims", "x", "y", "z", "nodes", "regions", "placements")
    name = _text(entry, names[0], where) if names else "torus"
    dims = _dims(entry["dims"] if "dims" in entry else {axis: entry.get(axis) for axis in _XYZ}, where)
    cells = dims[0] * dims[1] * dims[2]
    if entry.get("nodes") and entry.get("regions"):
        raise wrong(f"{where} has both nodes and regions")
    hosts = hosts_in(_text(entry, "nodes", where), where)
    if hosts and len(hosts) != cells:
        raise wrong(f"{where} has {len(hosts)} nodes, and its dimensions hold {cells}")
    regions = _tables(entry, "regions", where) if entry.get("regions") else []
    taken: set[tuple[int, int, int]] = set()
    for region in regions:
        _only(region, f"a region of {where}", "anchor", "dims", "nodes")
        hosts += _region(region, dims, taken, where)
    for placement in _tables(entry, "placements", where) if entry.get("placements") else []:
        _only(placement, f"a placement of {where}", "dims", "anchor_seed", "anchor_spacing")
        _placement(placement, dims, where)
    return name, dims, hosts


def _dims(value: Tree, where: str, least: int = 1) -> tuple[int, int, int]:
    """Return three numbers, written as x, y, z, as a list, or as 4x4x4."""
    parts = [value.get(axis) for axis in _XYZ] if isinstance(value, dict) else value
    parts = word(parts).lower().replace(",", "x").split("x") if not isinstance(parts, list) else parts
    numbers = [small_whole(part) for part in parts]
    if len(numbers) != 3 or any(number is None or not least <= number <= 2**16 for number in numbers):
        raise wrong(f"{where} has dimensions or places that are not three numbers from {least}")
    x, y, z = (number or 0 for number in numbers)
    return x, y, z


def _region(
    region: Mapping[str, Tree], torus_dims: tuple[int, int, int], taken: set[tuple[int, int, int]], where: str
) -> list[str]:
    """Return the hosts of a region; it must lie inside its torus and beside the others."""
    anchor = _dims(region.get("anchor", dict.fromkeys(_XYZ, 0)), where, 0)
    dims = _dims(region.get("dims"), where)
    hosts = hosts_in(_text(region, "nodes", where), where)
    cells = dims[0] * dims[1] * dims[2]
    if len(hosts) != cells:
        raise wrong(f"a region of {where} has {len(hosts)} nodes, and its dimensions hold {cells}")
    if any(a + d > t for a, d, t in zip(anchor, dims, torus_dims, strict=True)):
        raise wrong(f"a region of {where} lies outside its dimensions")
    region_cells = {
        (anchor[0] + x, anchor[1] + y, anchor[2] + z)
        for x in range(dims[0])
        for y in range(dims[1])
        for z in range(dims[2])
    }
    if region_cells & taken:
        raise wrong(f"regions of {where} overlap")
    taken |= region_cells
    return hosts


def _placement(placement: Mapping[str, Tree], dims: tuple[int, int, int], where: str) -> None:
    """Refuse a shape of jobs that does not fit its torus."""
    shape = _dims(placement.get("dims"), where)
    seed = _dims(placement.get("anchor_seed", dict.fromkeys(_XYZ, 0)), where, 0)
    spacing = _dims(placement.get("anchor_spacing", placement.get("dims")), where, 0)
    fits = all(s <= d for s, d in zip(shape, dims, strict=True)) and all(
        s < d for s, d in zip(seed, dims, strict=True)
    )
    if not fits or (any(spacing) and any(not 0 < s <= d for s, d in zip(spacing, dims, strict=True))):
        raise wrong(f"a placement of {where} does not fit its dimensions")
