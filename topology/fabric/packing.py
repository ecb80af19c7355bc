"""Which host stands where, so that as few groups as can be span several units of the fabric.

Hosts of a unit are alike, so a placement is how many hosts of each unit a group gets. Groups of a layout are
runs of consecutive hosts, `b` of them, and of two sizes one divides the other. Runs are then built from the
smallest up, below every switch before above it: what is left over below a switch is less than one run of each
size, so each unit of `n` hosts holds its ⌊n/b⌋ whole runs at every level and for every size at once. No
placement of all hosts holds more: it is the optimum of each (tests/oracle/topology/fabric/test_packing.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from topology.spec import ClusterSpec, SwitchSpec

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive hosts that stay together, and how many levels of units they span, from the inside."""

    hosts: tuple[int, ...]
    spanned: int


def units_of_hosts(spec: ClusterSpec) -> tuple[Counts, ...]:
    """Return the unit of every host at each level, inner to outer: scale-up domains, then below switches."""
    sizes = np.array([node.count for node in spec.nodes])
    of_entry = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(of_entry)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    inside = place // np.array([node.nodes_per_domain for node in spec.nodes])[of_entry]
    levels = [_numbered(of_entry * (len(of_entry) + 1) + inside)]
    if spec.switches:
        above = _switches_above([node.switch for node in spec.nodes], spec.switches)
        levels += [_numbered(np.array(switch)[of_entry]) for switch in above]
    for tier in spec.tiers:
        ends = np.cumsum(tier.units) if tier.units else None
        host = np.arange(len(of_entry))
        levels.append(host // tier.nodes_per_unit if ends is None else np.searchsorted(ends, host, "right"))
    return tuple(level for level in levels if level.max() > 0)


def packed(units: Sequence[Counts], sizes: Sequence[int], wanted: int) -> Counts:
    """Return so many hosts in an order in which the fewest runs span units.

    >>> packed([np.array([0, 0, 0, 1, 1, 1, 1, 1])], [2], 8).tolist()
    [0, 1, 2, 7, 3, 4, 5, 6]
    >>> packed([np.array([0, 0, 0, 1, 1, 1, 1, 1])], [2], 6).tolist()
    [0, 1, 3, 4, 5, 6]

    Args:
        units: unit of every host at each level, inner to outer.
        sizes: hosts of a run, rising, each a multiple of the one before.
        wanted: hosts to use, at most all of them; whole runs of the last size.
    """
    chain = [1, *sizes]
    runs = _runs([Run((host,), 0) for host in range(len(units[0]))], units, len(units), chain)
    whole = [run for run in runs if len(run.hosts) == chain[-1]]
    crowd = [np.bincount(level[[run.hosts[0] for run in whole]]) for level in units] if whole else []
    outer_first = range(len(units) - 1, -1, -1)

    def worth(run: Run) -> tuple[int, ...]:
        """Whole runs first, those of the fullest units before others, earlier ones before later ones."""
        at = [int(units[level][run.hosts[0]]) for level in outer_first]
        full = [int(crowd[level][unit]) for level, unit in zip(outer_first, at, strict=True)]
        return (run.spanned, *(n for pair in zip([-f for f in full], at, strict=True) for n in pair))

    chosen = sorted(whole, key=worth)[: -(-wanted // chain[-1])]
    order = [host for run in sorted(chosen, key=lambda run: run.hosts) for host in run.hosts]
    return np.array(order, dtype=np.int64)


def spanning(order: Counts, units: Counts, size: int) -> int:
    """Return how many runs of consecutive hosts are in more than one unit."""
    values = units[order[: len(order) // size * size]].reshape(-1, size)
    return int((values != values[:, :1]).any(1).sum())


def least_spanning(units: Counts, size: int, wanted: int) -> int:
    """Return how many runs span units at least, wherever hosts stand: those that no unit has room for."""
    return max(0, wanted // size - int((np.bincount(units) // size).sum()))


def _runs(hosts: list[Run], units: Sequence[Counts], level: int, sizes: Sequence[int]) -> list[Run]:
    """Build runs below every unit of a level before those that span it; what is left stays smaller runs."""
    pieces = hosts
    if level:
        below: dict[int, list[Run]] = {}
        for host in hosts:
            below.setdefault(int(units[level - 1][host.hosts[0]]), []).append(host)
        pieces = [run for part in below.values() for run in _runs(part, units, level - 1, sizes)]
    by_size: dict[int, list[Run]] = {size: [] for size in sizes}
    for run in pieces:
        by_size[len(run.hosts)].append(run)
    for small, large in pairwise(sizes):
        parts, number = by_size[small], large // small
        for start in range(0, len(parts) // number * number, number):
            joined = tuple(host for run in parts[start : start + number] for host in run.hosts)
            by_size[large].append(Run(joined, level))
        by_size[small] = parts[len(parts) // number * number :]
    return [run for size in reversed(sizes) for run in by_size[size]]


def _switches_above(leaves: Sequence[str], switches: Sequence[SwitchSpec]) -> list[list[str]]:
    """Return the switch above every entry, then the one above that, up to the root."""
    parent = {switch.name: switch.parent for switch in switches}
    levels, at = list[list[str]](), list(leaves)
    while len(set(at)) > 1:
        levels.append(at)
        at = [parent[name] or name for name in at]
    return levels


def _numbered(names: NDArray[np.generic]) -> Counts:
    """Return units as numbers from 0, in the order in which they are met."""
    _, first, which = np.unique(names, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[which], dtype=np.int64)
