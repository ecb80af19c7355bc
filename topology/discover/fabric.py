"""What is known of a fabric and of the hosts on it, whichever tool said it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from topology.discover.places import Figure, Place, domains_of, hosts_of_units, require_places, sizes

TIERS = ("leaf", "spine", "core")


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFacts:
    """A tier of switches: hosts below one group of them, and bandwidth in over out where known."""

    name: str
    hosts_per_unit: int
    oversubscription: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFacts:
    """What is known of a fabric; None where its description does not say.

    `places` are its hosts; `known` those that other topologies of the file name too. `of_job` says that they
    are the job's and no others. `domain_word` is what the source calls a scale-up domain.
    """

    source: str
    hosts: int
    tiers: tuple[TierFacts, ...]
    rails: int | None = None
    nics_per_host: int | None = None
    nic_bandwidth_bytes_per_s: float | None = None
    hosts_per_domain: int = 1
    notes: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    known: Mapping[str, Place] = field(default_factory=dict, hash=False)
    figures: tuple[Figure, ...] = ()
    of_job: bool = False
    domain_word: str = ""


def fabric_facts(
    *,
    source: str,
    places: Sequence[Place],
    known: Mapping[str, Place] | None = None,
    figures: Sequence[Figure] = (),
    notes: Sequence[str] = (),
    of_job: bool = False,
    domain_word: str = "accelerator domain",
    rooted: bool = False,
) -> FabricFacts:
    """Return the facts of hosts with places: tiers from the paths, domains as they are named.

    `rooted` says that paths begin at a root switch: two roots are two fabrics, labels name units of one.
    """
    require_places(places, f"this {source}")
    if not rooted and any(place.path for place in places):
        places = [replace(place, path=("fabric", *place.path)) for place in places]
    total = len(places)
    depth = max(len(place.path) for place in places)
    tiers = []
    for number, level in enumerate(range(depth, 0, -1)):
        largest = max(hosts_of_units(places, level).values())
        if largest < total:
            tiers.append(TierFacts(name=tier_name(number), hosts_per_unit=largest))
    domains = domains_of(places)
    fabric = list(figures) or [Figure(name="nodes", value=f"{total:,}", source=source)]
    if depth:
        fabric += _unit_figures(places, depth, source)
    if domains:
        word = domain_word or "domain"
        fabric.append(
            Figure(
                name="scale-up domains",
                value=f"{len(domains)}: {sizes(domains.values())} nodes, by its {word}",
                source=source,
            )
        )
    return FabricFacts(
        source=source,
        hosts=total,
        tiers=tuple(tiers) or (TierFacts(name="leaf", hosts_per_unit=total),),
        hosts_per_domain=max(domains.values(), default=1),
        notes=tuple(notes),
        places=tuple(places),
        known=known or {},
        figures=tuple(fabric),
        of_job=of_job,
        domain_word=domain_word,
    )


def _unit_figures(places: Sequence[Place], depth: int, source: str) -> list[Figure]:
    """Return the racks, the closest units that hosts share, and whether they differ."""
    units = hosts_of_units(places, depth)
    figures = [Figure(name="racks", value=f"{len(units)}: {sizes(units.values())} nodes", source=source)]
    if len(set(units.values())) > 1:
        figures.append(Figure(name="irregular", value="racks differ in size", source=source))
    return figures


def tier_name(number: int) -> str:
    """Return the name of a tier, 0 the closest to the hosts.

    >>> tier_name(0), tier_name(3)
    ('leaf', 'core-2')
    """
    return TIERS[number] if number < len(TIERS) else f"core-{number - len(TIERS) + 2}"
