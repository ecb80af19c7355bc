"""From hosts with places to node entries and tiers: ordered as the tree is walked, domains kept whole."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, islice, pairwise

from topology.base.errors import InputError, shown
from topology.discover.fabric import TierFacts, tier_name
from topology.discover.places import Place, domains_of, sizes
from topology.hardware.datasheets import machines
from topology.spec import NodeSpec, TierSpec
from topology.spec_rules import HOST_NAME, MOST_TIERS


def one_fabric_of(places: Sequence[Place]) -> tuple[tuple[Place, ...], tuple[str, ...]]:
    """Return the hosts below the root with most of them, and what is left out: roots are separate fabrics."""
    roots: dict[str, int] = {}
    for place in places:
        root = place.path[0] if place.path else ""
        roots[root] = roots.get(root, 0) + 1
    if len(roots) < 2:
        return tuple(places), ()
    largest = max(roots, key=lambda root: roots[root])
    note = (
        f"{len(roots)} fabrics that nothing joins, of {sizes(roots.values())} nodes: the one below "
        f"{shown(largest)} is planned on; name the others' nodes in a list to plan on them"
    )
    return tuple(place for place in places if (place.path[0] if place.path else "") == largest), (note,)


def hosts_in_order(places: Sequence[Place]) -> tuple[Place, ...]:
    """Return hosts as a walk of their tree meets them, those of a domain beside each other."""
    rank: dict[tuple[str, ...], int] = {}
    for number, place in enumerate(places):
        for depth in range(1, len(place.path) + 1):
            rank.setdefault(place.path[:depth], number)
        rank.setdefault((*place.path, "", place.domain), number)
    return tuple(
        sorted(
            places,
            key=lambda place: [
                *(rank[place.path[:depth]] for depth in range(1, len(place.path) + 1)),
                rank[(*place.path, "", place.domain)],
            ],
        )
    )


LEAST_OF_DOMAIN = 7 / 8
"""Share of the largest scale-up domain that equal ones use at least: 16 of 18 nodes hold groups of 64."""


def taken(places: Sequence[Place], hosts: int | None) -> tuple[Place, ...]:
    """Return so many of the hosts in order: of scale-up domains as many of each, else the first.

    One domain holds them if it can. Else domains give equally many, where that leaves at most an eighth of
    the largest, and what is still wanted follows as it comes: 32 nodes of two racks of 18 are 16 and 16.
    """
    if hosts is None or hosts >= len(places) or not any(place.domain for place in places):
        return tuple(places[:hosts])
    members: dict[str, list[int]] = {}
    for number, place in enumerate(places):
        members.setdefault(place.domain or f"alone {number}", []).append(number)
    counts = sorted((len(numbers) for numbers in members.values()), reverse=True)
    size, domains = _equal(counts, hosts)
    largest = sorted(members, key=lambda name: -len(members[name]))[:domains]
    chosen = {number for name in largest for number in members[name][:size]}
    rest = sorted(
        (number for number in range(len(places)) if number not in chosen),
        key=lambda number: (places[number].domain not in largest, number),
    )
    kept = sorted(chosen.union(rest[: hosts - len(chosen)]))
    return tuple(places[number] for number in kept)


def _equal(counts: Sequence[int], hosts: int) -> tuple[int, int]:
    """Return the size of equal islands and how many there are, that hold most of some hosts, largest first.

    >>> _equal((18, 18), 32), _equal((18, 18), 35), _equal((18, 14), 18)
    ((16, 2), (17, 2), (18, 1))

    Args:
        counts: hosts of each domain, most first.
        hosts: how many are wanted.
    """
    sizes = [
        (size, min(hosts // size, sum(count >= size for count in counts)))
        for size in range(min(counts[0], hosts), 0, -1)
    ]
    least = LEAST_OF_DOMAIN * counts[0]
    return max(sizes, key=lambda pair: (pair[0] * pair[1] if pair[0] >= least else 0, pair[0]))


def most_hosts_per_domain(gpu: str) -> int:
    """Return how many hosts of a GPU's products share a scale-up domain at most."""
    return max((machine.nodes_per_domain for machine in machines().values() if machine.gpu == gpu), default=1)


def require_possible_domain(places: Sequence[Place], gpu: str, word: str, gpus_per_node: int) -> None:
    """Refuse a scale-up domain that is larger than the product's: no switch of that size is made."""
    most = most_hosts_per_domain(gpu)
    domains = domains_of(places)
    large = {name: count for name, count in domains.items() if count > most}
    if most == 1 or not large:
        return
    name = max(large, key=lambda key: large[key])
    cause = (
        f"{word} {shown(name)} has {large[name]} nodes of {gpus_per_node} GPUs "
        f"= {large[name] * gpus_per_node}, "
        f"and the scale-up domain of {gpu} has at most {most} nodes ({most * gpus_per_node} GPUs)"
    )
    fix = "name the sub-domains (NVLink racks) inside it, or give labels of the NVLink clique"
    raise InputError(f"{len(large)} scale-up domains are larger than {gpu} allows", cause, fix)


def node_entries(
    places: Sequence[Place], base: Callable[[Place], NodeSpec], *, spans: bool
) -> tuple[NodeSpec, ...]:
    """Return entries of equal nodes in order; `spans` keeps domains of several hosts, else a host is one."""
    entries: list[NodeSpec] = []
    for (domain, _, _, _), run in groupby(
        places, key=lambda place: (place.domain, place.gpu, place.gpus, place.machine)
    ):
        hosts = list(run)
        node = base(hosts[0])
        per_domain = len(hosts) if spans and domain else 1
        node = replace(node, count=len(hosts), nodes_per_domain=per_domain)
        last = entries[-1] if entries else None
        if last is not None and replace(last, count=node.count) == node and last.count % per_domain == 0:
            entries[-1] = replace(last, count=last.count + node.count)
        else:
            entries.append(node)
    if not all(place.is_host and HOST_NAME.fullmatch(place.name) for place in places):
        return tuple(entries)
    names = iter([place.name for place in places])
    return tuple(replace(entry, hosts=tuple(islice(names, entry.count))) for entry in entries)


def tiers_of(
    places: Sequence[Place], facts: Sequence[TierFacts], latency_s: float
) -> tuple[list[TierSpec], list[str]]:
    """Return the tiers of hosts in order, from the closest: units of one size, or the size of each."""
    depth = max((len(place.path) for place in places), default=0)
    tiers: list[TierSpec] = []
    notes: list[str] = []
    domain_ends = _run_bounds(places, lambda place: place.domain or place.name)
    previous: tuple[int, ...] = domain_ends
    for level in range(depth, 0, -1):
        bounds = _run_bounds(places, lambda place, level=level: "/".join(place.path[:level]))  # type: ignore[misc]
        if len(bounds) in (1, len(places)) or bounds == previous:
            continue
        if not set(bounds) <= set(previous):
            notes.append("scale-up domains reach over racks: the racks are left out of the fabric")
            continue
        counts = [b - a for a, b in pairwise((0, *bounds))]
        even = len(set(counts[:-1])) <= 1 and counts[-1] <= counts[0]
        ratio = facts[len(tiers)].oversubscription if len(tiers) < len(facts) else 1.0
        tiers.append(
            TierSpec(
                name=tier_name(len(tiers)), nodes_per_unit=max(counts), units=None if even else tuple(counts),
                oversubscription=ratio, latency_s=latency_s,
            )
        )  # fmt: skip
        previous = bounds
    return tiers[:MOST_TIERS], notes


def _run_bounds(places: Sequence[Place], key: Callable[[Place], str]) -> tuple[int, ...]:
    """Return after how many hosts each run of one key ends."""
    return tuple(accumulate(len(list(run)) for _, run in groupby(places, key=key)))


def known_gpu(places: Sequence[Place]) -> str:
    """Return the GPU most hosts have, "" where none is told."""
    counts: Mapping[str, int] = {
        gpu: sum(place.gpu == gpu for place in places) for gpu in {place.gpu for place in places} - {""}
    }
    return max(sorted(counts), key=lambda gpu: counts[gpu], default="")
