"""Pools whose nodes differ: their kinds of node, and the clusters that some of the kinds make.

A kind is everything a node entry says, its price included, but how many, its name and its switch.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, combinations, groupby

from topology.spec import ClusterSpec, NodeSpec, TierSpec

MOST_KINDS = 6
"""Kinds of which every choice is looked at: 63 clusters."""


def kinds_of(spec: ClusterSpec) -> tuple[NodeSpec, ...]:
    """The kinds of node of a pool, in the order in which they come, each with its number of nodes."""
    counts: dict[NodeSpec, int] = {}
    for node in spec.nodes:
        counts[_kind(node)] = counts.get(_kind(node), 0) + node.count
    return tuple(replace(kind, count=count) for kind, count in counts.items())


def parts_of_pool(spec: ClusterSpec) -> Iterator[ClusterSpec]:
    """Every cluster that some kinds of a pool make, with all nodes of each, the pool itself first.

    Of more than `MOST_KINDS` kinds only the pool, those that remain when each is left out, and each alone.
    """
    kinds = [_kind(kind) for kind in kinds_of(spec)]
    sizes = range(len(kinds), 0, -1)
    if len(kinds) > MOST_KINDS:
        sizes = range(0)
        yield from (part_of(spec, kept) for kept in _few(kinds))
    for size in sizes:
        for kept in combinations(kinds, size):
            yield part_of(spec, kept)


def part_of(spec: ClusterSpec, kinds: tuple[NodeSpec, ...]) -> ClusterSpec:
    """The cluster that the nodes of these kinds make where they stand.

    Units of a tier count nodes in order. Where nodes before others are left out, a unit becomes the largest
    that still tells nodes of different units apart, so no group is taken to be nearer than it is. A tier that
    says the nodes of each unit keeps those that are left of them.
    """
    kept = {_kind(kind) for kind in kinds}
    if len(kept) == len(kinds_of(spec)):
        return spec
    offset, offsets, nodes = 0, [], []
    for node in spec.nodes:
        if _kind(node) in kept:
            nodes.append(node)
            offsets.append(offset)
        offset += node.count
    name = f"{spec.name}: {nodes_in_words(tuple(nodes))}"
    if any(tier.units for tier in spec.tiers):
        places = [start + i for node, start in zip(nodes, offsets, strict=True) for i in range(node.count)]
        tiers = tuple(_with_places(tier, places, spec.num_nodes) for tier in spec.tiers)
        return replace(spec, nodes=tuple(nodes), tiers=tiers, name=name)
    moved, domain = _moved(nodes, offsets), max(node.nodes_per_domain for node in nodes)
    tiers = tuple(
        replace(tier, nodes_per_unit=_unit(tier.nodes_per_unit, moved, domain))
        if tier.nodes_per_unit < spec.num_nodes
        else tier
        for tier in spec.tiers
    )
    return replace(spec, nodes=tuple(nodes), tiers=tiers, name=name)


def kind_places(used: ClusterSpec, offered: ClusterSpec) -> tuple[int, ...]:
    """The kinds of a pool that a part of it takes, by their places in `kinds_of` of the pool."""
    kept = {_kind(node) for node in used.nodes}
    return tuple(place for place, kind in enumerate(kinds_of(offered)) if _kind(kind) in kept)


def each_kind(spec: ClusterSpec) -> tuple[ClusterSpec, ...]:
    """The cluster that the nodes of each kind of a pool make where they stand."""
    return tuple(part_of(spec, (kind,)) for kind in kinds_of(spec))


def gpus_of_stages(
    spec: ClusterSpec, kind_of_stage: tuple[int, ...], stage_gpus: int
) -> tuple[int, ...] | None:
    """GPUs of every rank where each stage takes the next ones of its kind; None where a kind has too few.

    Args:
        spec: the pool.
        kind_of_stage: kind of every stage, by its place in `kinds_of`.
        stage_gpus: GPUs of a stage.
    """
    kinds = [_kind(kind) for kind in kinds_of(spec)]
    free: list[list[int]] = [[] for _ in kinds]
    first = 0
    for node in spec.nodes:
        number = node.count * node.gpus_per_node
        free[kinds.index(_kind(node))].extend(range(first, first + number))
        first += number
    gpus: list[int] = []
    for kind in kind_of_stage:
        gpus += free[kind][:stage_gpus]
        del free[kind][:stage_gpus]
    return tuple(gpus) if len(gpus) == stage_gpus * len(kind_of_stage) else None


def stages_on(spec: ClusterSpec, kind_of_stage: tuple[int, ...]) -> Iterator[str]:
    """Which stages run on which kind of node of a pool, one phrase for each run of stages."""
    names, first = [f"{kind.gpus_per_node} {kind.gpu}" for kind in kinds_of(spec)], 0
    for kind, same in groupby(kind_of_stage):
        count = len(list(same))
        stages = f"stage {first}" if count == 1 else f"stages {first}–{first + count - 1}"
        yield f"{stages} on nodes of {names[kind]}"
        first += count


def nodes_in_words(nodes: tuple[NodeSpec, ...]) -> str:
    """Nodes in a few words.

    >>> from topology.builders import default_cluster
    >>> nodes_in_words(default_cluster("h100-sxm", 32).spec.nodes)
    '4 × 8 h100-sxm'
    """
    counts: dict[str, int] = {}
    for node in nodes:
        words = f"{node.gpus_per_node} {node.gpu}"
        counts[words] = counts.get(words, 0) + node.count
    return " + ".join(f"{count} × {words}" for words, count in counts.items())


def island_parts(spec: ClusterSpec) -> Iterator[ClusterSpec]:
    """Equal islands of a cluster whose scale-up domains span nodes, largest first: as many nodes of each.

    Groups of ranks fill an island of a size that suits them: of racks of 18 and 17 nodes, two islands of 17
    or of 16. A part is left out where another has islands of a multiple of its size and no fewer nodes.
    """
    if not _is_of_islands(spec):
        return
    domains, start = [], 0
    for node in spec.nodes:
        firsts = range(0, node.count, node.nodes_per_domain)
        domains += [(start + first, min(node.nodes_per_domain, node.count - first)) for first in firsts]
        start += node.count
    taken: list[tuple[int, int]] = []
    for size in range(max(count for _, count in domains), 0, -1):
        nodes = size * sum(count // size for _, count in domains)
        if any(other % size == 0 and total >= nodes for other, total in taken):
            continue
        taken.append((size, nodes))
        places = [first + i for first, count in domains for i in range(count // size * size)]
        part = _islands(spec, size, places)
        if part is not None and _unpriced(part) != _unpriced(replace(spec, name="")):
            yield part


def _is_of_islands(spec: ClusterSpec) -> bool:
    """Whether nodes are alike but for how many share a scale-up domain, and some do."""
    alike = {replace(_kind(node), nodes_per_domain=1) for node in spec.nodes}
    return len(alike) == 1 and not spec.switches and any(node.nodes_per_domain > 1 for node in spec.nodes)


def _islands(spec: ClusterSpec, size: int, places: list[int]) -> ClusterSpec | None:
    """The cluster of these nodes in islands of one size; None where a tier would cut an island."""
    names = spec.hosts
    hosts = tuple(names[place] for place in places) if names else ()
    node = replace(spec.nodes[0], count=len(places), nodes_per_domain=size, hosts=hosts, name="")
    tiers = []
    for tier in spec.tiers:
        if tier.nodes_per_unit >= spec.num_nodes:
            tiers.append(replace(tier, nodes_per_unit=len(places)))
            continue
        units = _with_places(tier, places, spec.num_nodes).units or ()
        if any(count % size for count in units):
            return None
        even = len(set(units[:-1])) <= 1 and units[-1] <= units[0]
        tiers.append(replace(tier, nodes_per_unit=max(units), units=None if even else units))
    name = f"{spec.name}: {len(places) // size} × {size} nodes"
    return replace(spec, nodes=(node,), tiers=tuple(tiers), name=name)


def is_part(used: ClusterSpec, offered: ClusterSpec) -> bool:
    """Whether a cluster is a pool, or what some of its kinds make of it; names and prices aside."""
    parts = (*parts_of_pool(offered), *island_parts(offered))
    return any(_unpriced(used) == _unpriced(part) for part in parts)


def nodes_left_out(offered: ClusterSpec, used: ClusterSpec) -> tuple[NodeSpec, ...]:
    """Nodes of a pool that a part of it does without."""
    if _is_of_islands(offered) and used.num_nodes < offered.num_nodes:
        return (offered.nodes[0].times(offered.num_nodes - used.num_nodes),)
    kept = {_kind(node) for node in used.nodes}
    return tuple(node for node in offered.nodes if _kind(node) not in kept)


def _kind(node: NodeSpec) -> NodeSpec:
    return replace(node, count=1, name="", switch="", hosts=())


def _unpriced(spec: ClusterSpec) -> ClusterSpec:
    nodes = tuple(replace(node, usd_per_gpu_hour=None) for node in spec.nodes)
    return replace(spec, name="", nodes=nodes, usd_per_gpu_hour=None, price_source="", idle_usd_per_hour=0.0)


def _few(kinds: list[NodeSpec]) -> Iterator[tuple[NodeSpec, ...]]:
    yield tuple(kinds)
    yield from combinations(kinds, len(kinds) - 1)
    yield from ((kind,) for kind in kinds)


def _with_places(tier: TierSpec, places: list[int], num_nodes: int) -> TierSpec:
    """A tier with the nodes that are left in each of its units."""
    if tier.nodes_per_unit >= num_nodes:
        return tier
    ends = list(accumulate(tier.units or ()))
    unit_of = (bisect_right(ends, place) if ends else place // tier.nodes_per_unit for place in places)
    counts = tuple(Counter(unit_of).values())
    return replace(tier, nodes_per_unit=max(counts), units=counts)


def _unit(nodes_per_unit: int, moved: list[int], domain: int) -> int:
    """Nodes of the largest unit that holds no two nodes of different units; whole scale-up domains."""
    unit = math.gcd(nodes_per_unit, *moved)
    return unit if unit % domain == 0 else domain


def _moved(nodes: list[NodeSpec], offsets: list[int]) -> list[int]:
    """By how many places the nodes of each entry move up when those before them are left out."""
    places, moved = 0, []
    for node, offset in zip(nodes, offsets, strict=True):
        moved.append(offset - places)
        places += node.count
    return moved
