"""What an allocation is: hosts with names, and where each stands; the form that every reader fills.

A place keeps what its source said and nothing else; what is left open is `None` or "".
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from topology.base.errors import InputError, shown

MOST_HOSTS = 2**17
"""Hosts of one allocation; a million GPUs, eight of each host."""
MOST_NAMED = 8
"""Hosts or units that a note names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One host. `path` names the units it is in from the outermost in; a unit is known by its whole path.

    `domain` is the scale-up domain (one NVSwitch); `machine` the type its source names; `is_host` whether
    `name` is what the host answers to, and not an instance's id or our own number.
    """

    name: str
    path: tuple[str, ...] = ()
    domain: str = ""
    gpus: int | None = None
    gpu: str = ""
    machine: str = ""
    is_host: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure as it was read, and the tool or key it is from."""

    name: str
    value: str
    source: str


def require_places(places: Sequence[Place], what: str, fix: str = "give the tool's whole output") -> None:
    """Refuse an allocation without hosts, with more than can be, or with one host in two places."""
    if not places:
        raise InputError(f"{what} names no hosts", "there is nothing to plan on in it", fix)
    if len(places) > MOST_HOSTS:
        raise InputError(
            f"{what} is not possible", f"it names {len(places):,} hosts, more than {MOST_HOSTS:,}", fix
        )
    twice = [name for name, count in Counter(place.name for place in places).items() if count > 1]
    if twice:
        cause = f"host {shown(twice[0])} is in two places" + (
            f", and {len(twice) - 1} more" if len(twice) > 1 else ""
        )
        raise InputError(f"{what} contradicts itself", cause, "name every host once")


def hosts_of_units(places: Iterable[Place], depth: int) -> dict[tuple[str, ...], int]:
    """Return how many hosts each unit of a depth holds, in the order they are met."""
    return dict(Counter(place.path[:depth] for place in places if len(place.path) >= depth))


def domains_of(places: Iterable[Place]) -> dict[str, int]:
    """Return how many hosts each scale-up domain holds."""
    return dict(Counter(place.domain for place in places if place.domain))


def sizes(counts: Iterable[int]) -> str:
    """Return how many units of each size there are.

    >>> sizes([9, 9, 7, 5])
    '2x9 1x7 1x5'
    """
    result = Counter(counts)
    return " ".join(f"{result[size]}x{size}" for size in sorted(result, reverse=True))
