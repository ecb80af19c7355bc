"""Whose machines a fleet is made of: rented whole from named providers, or one's own GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from planner.questions.flags import ServeFlags
from topology.base.errors import InputError
from topology.builders import default_cluster
from topology.catalog import machine_cluster
from topology.fabric.hierarchy import Hierarchy
from topology.hardware.offers import Offer, offer_of, provider_named, sizes_offered

PROVIDER_OWN = "own"
Fabrics = list[tuple[str, Hierarchy]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Renting:
    """From whom machines are rented: from `among`, None being whoever is quoted first, or from nobody."""

    owned: bool
    among: tuple[str, ...] | None = None

    def offer(self, gpu: str, hierarchy: Hierarchy) -> Offer | None:
        """The machine that is rented for a GPU kind, None where GPUs are had one by one."""
        return None if self.owned else offer_of(gpu, hierarchy.gpus_per_host, self.among)

    def sizes(self, gpu: str) -> tuple[Offer, ...]:
        """The machines that are rented for a GPU kind, one of each size, the smallest first."""
        sizes = () if self.owned else sizes_offered(gpu, self.among)
        offers = (offer_of(gpu, size, self.among) for size in sizes)
        return tuple(offer for offer in offers if offer is not None)


def renting(flags: ServeFlags) -> Renting:
    """Read `--provider`; a price of one's own or a cluster is of GPUs one has."""
    owned = [
        name
        for name, value in (("--usd-per-gpu-hour", flags.usd_per_gpu_hour), ("--cluster", flags.cluster))
        if value
    ]
    named = [name.strip().lower() for name in (flags.provider or "").split(",") if name.strip()]
    if not named:
        return Renting(owned=bool(owned))
    if PROVIDER_OWN in named or owned:
        if set(named) != {PROVIDER_OWN}:
            raise InputError(
                what="machines are rented, or they are one's own",
                cause=" and ".join([f"--provider {flags.provider}", *owned]),
                fix="give --provider own with a price or a cluster, or providers alone",
            )
        return Renting(owned=True)
    return Renting(owned=False, among=tuple(provider_named(name) for name in named))


def offered(result: Renting, fabrics: Fabrics, *, sized: bool) -> tuple[Fabrics, list[str]]:
    """The GPU kinds that the named providers rent, and what is said of the others.

    Where the number of GPUs is given (`sized`), in machines of any size.
    """
    if result.among is None:
        return fabrics, []
    kept = [
        (gpu, fabric)
        for gpu, fabric in fabrics
        if result.offer(gpu, fabric) is not None or (sized and result.sizes(gpu))
    ]
    missing = [gpu for gpu, fabric in fabrics if (gpu, fabric) not in kept]
    whom = " or ".join(result.among)
    if not kept:
        raise InputError(
            what=f"no machine of {' or '.join(missing)} is rented by {whom}",
            cause="the catalog (topology/data/machines.toml) has no dated price of one",
            fix="name another --provider, or give --usd-per-gpu-hour for GPUs of your own",
        )
    return kept, [f"not rented by {whom}, left out: {', '.join(missing)}"] if missing else []


def in_smaller_machines(result: Renting, fabrics: Fabrics) -> Fabrics:
    """The same kinds in each smaller machine that is rented of them, where small loads are cheapest.

    Each is one machine, so no replica reaches beyond its own.
    """
    more: Fabrics = []
    for gpu, fabric in fabrics if not result.owned else ():
        for size in sizes_offered(gpu, result.among):
            offer = offer_of(gpu, size, result.among)
            if size < fabric.gpus_per_host and offer is not None:
                more.append((gpu, machine_cluster(offer.machine, size).hierarchy))
    return more


def nodes_for(kind: str, size: int, *, of: int) -> Hierarchy:
    """Nodes that have so many GPUs, as `of` of them are joined: a fleet may leave some of the last node's."""
    whole = default_cluster(kind, of).hierarchy.gpus_per_host
    full = size if size <= whole and whole % size == 0 else -(-size // whole) * whole
    return default_cluster(kind, full).hierarchy
