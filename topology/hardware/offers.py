"""Machines one can rent: whole ones, of a provider, at a dated price."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from topology.base.names import resolve
from topology.hardware.datasheets import Machine, machines
from topology.hardware.prices import PRICE_ORDER


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A machine as a provider rents it: its GPUs, and dollars an hour on demand with date and source."""

    machine: str
    provider: str
    gpus: int
    usd_per_hour: float
    region: str
    source: str
    as_of: str

    @property
    def usd_per_gpu_hour(self) -> float:
        """Return the price of one of its GPUs for an hour."""
        return self.usd_per_hour / self.gpus

    def machines_for(self, num_gpus: int) -> int:
        """Return the whole machines that hold so many GPUs."""
        return -(-num_gpus // self.gpus)


def providers() -> tuple[str, ...]:
    """Return whose machines have prices, in the order in which they are quoted."""
    values = {machine.provider for machine in machines().values() if machine.usd_per_hour is not None}
    return tuple(sorted(values, key=lambda name: (_place(name), name)))


def provider_named(text: str) -> str:
    """Return a provider by a lenient name.

    >>> provider_named("aws"), provider_named("Lambda")
    ('AWS', 'Lambda')
    """
    known = {name.lower(): name for name in providers()}
    return known[resolve(text.strip().lower(), known, "provider")]


def offer_of(gpu: str, gpus_per_host: int, among: Collection[str] | None = None) -> Offer | None:
    """Return the machine of a GPU that is rented, or None where no provider lists one of this size.

    The machine holds as many GPUs as the host that is planned for, since replicas are laid out on it. Of the
    providers named the cheapest; of all of them the first of `PRICE_ORDER` that lists one.

    Args:
        gpu: the full name of a GPU of the catalog.
        gpus_per_host: GPUs of the host that is planned for.
        among: providers; None is any.
    """
    offer = [
        machine
        for machine in machines().values()
        if machine.gpu == gpu and machine.usd_per_hour is not None and machine.gpus_per_node == gpus_per_host
        if among is None or machine.provider in among
    ]
    first = min((_place(machine.provider) for machine in offer), default=0)
    if among is None:
        offer = [machine for machine in offer if _place(machine.provider) == first]
    return (
        _offer(min(offer, key=lambda machine: (machine.usd_per_hour or 0.0, machine.name))) if offer else None
    )


def sizes_offered(gpu: str, among: Collection[str] | None = None) -> tuple[int, ...]:
    """Return the GPUs of the machines of a kind that are rented, smallest first; None is by any provider.

    >>> sizes_offered("l40s", ("AWS",))
    (1, 4, 8)
    """
    values = {
        machine.gpus_per_node
        for machine in machines().values()
        if machine.gpu == gpu and machine.usd_per_hour is not None
        if among is None or machine.provider in among
    }
    return tuple(sorted(values))


def _place(provider: str) -> int:
    """Return where a provider stands among those quoted."""
    return PRICE_ORDER.index(provider) if provider in PRICE_ORDER else len(PRICE_ORDER)


def _offer(machine: Machine) -> Offer:
    """Return a machine that has a price as an offer."""
    return Offer(
        machine=machine.name,
        provider=machine.provider,
        gpus=machine.gpus_per_node,
        usd_per_hour=machine.usd_per_hour or 0.0,
        region=machine.region,
        source=machine.source,
        as_of=machine.price_as_of,
    )
