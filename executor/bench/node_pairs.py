"""Pairs of hosts: the rounds in which all are measured, the level each crosses, and which of them are slow.

Legend: ``n`` hosts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from topology.cluster import Cluster
from topology.fabric.packing import units_of_hosts

ACROSS = "across the cluster"
WITHIN_NODE = "node"
SLOW_SHARE = 0.5
"""Of its level's median bandwidth, below which a pair is slow: a link that lost half its lanes, or a port
that fell back one generation, has half, and pairs that share links in a round differ by less. A pair is only
named once it is as slow alone."""
LEAST_PAIRS = 3
"""Of a level, for their median to be that of good links where one of them is bad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two hosts by their place in the cluster, all their ranks at once: one-way seconds, bytes/s one way."""

    hosts: tuple[int, int]
    level: str
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLevel:
    """Hosts that share units of a level of the fabric: the unit of each, by its place in the cluster."""

    name: str
    unit_of_host: tuple[int, ...]


def boundaries_of(cluster: Cluster) -> tuple[PairLevel, ...]:
    """The boundaries around several hosts, inner to outer; all hosts together are the last."""
    h, spec = cluster.hierarchy, cluster.spec
    outer = [level.name for level in h.levels if level.unit_gpus >= h.gpus_per_node]
    levels = [
        PairLevel(name=name, unit_of_host=tuple(map(int, units)))
        for name, units in zip(outer, units_of_hosts(spec), strict=False)
    ]
    several = [level for level in levels if len(set(level.unit_of_host)) < spec.num_nodes]
    return (*several, PairLevel(name=ACROSS, unit_of_host=(0,) * spec.num_nodes))


def innermost_level(pair: tuple[int, int], levels: Sequence[PairLevel]) -> str:
    """The innermost level whose unit two hosts share."""
    a, b = pair
    return next(level.name for level in levels if level.unit_of_host[a] == level.unit_of_host[b])


def rounds(hosts: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Every pair once, in rounds in which each host is in one pair at most: n − 1 rounds, n if n is odd.

    >>> rounds([0, 1, 2, 3])
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    circle: list[int | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    result = []
    for _ in range(len(circle) - 1):
        facing = zip(circle[: len(circle) // 2], reversed(circle[len(circle) // 2 :]), strict=True)
        pairs = [(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None]
        result.append(sorted(pairs))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return result


def medians(pairs: Iterable[Pair]) -> dict[str, tuple[int, float, float]]:
    """By level: pairs, median latency in seconds, median bandwidth in bytes/s."""
    by_level: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_level.setdefault(pair.level, []).append(pair)
    return {
        level: (
            len(its),
            statistics.median(pair.latency_s for pair in its),
            statistics.median(pair.bytes_per_s for pair in its),
        )
        for level, its in by_level.items()
    }


def slow_pairs(
    pairs: Sequence[Pair], alone: Mapping[tuple[int, int], Pair] | None = None
) -> tuple[Pair, ...]:
    """Pairs below their share of the median of their level, as measured alone where they were."""
    usual = medians(pairs)
    result = [(alone or {}).get(pair.hosts, pair) for pair in pairs]
    return tuple(
        pair
        for pair in result
        if usual[pair.level][0] >= LEAST_PAIRS and pair.bytes_per_s < SLOW_SHARE * usual[pair.level][2]
    )


def slow_hosts(slow: Sequence[Pair], pairs: Sequence[Pair]) -> tuple[int, ...]:
    """Hosts of which most pairs are slow: what is at fault is theirs."""

    def count(host: int, among: Sequence[Pair]) -> int:
        return sum(host in pair.hosts for pair in among)

    hosts = sorted({host for pair in slow for host in pair.hosts})
    return tuple(host for host in hosts if 2 * count(host, slow) > count(host, pairs))
