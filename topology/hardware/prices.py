"""What an hour of a GPU costs on demand, from the dated prices of the machines that hold it."""

from dataclasses import dataclass

from topology.hardware.datasheets import Machine, machines

PRICE_ORDER = ("AWS", "Azure", "GCP", "OCI", "Lambda", "Nebius", "RunPod")
"""Whose on-demand price is quoted for a GPU: the first provider here that lists it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """An on-demand price and where it was seen."""

    usd_per_gpu_hour: float
    machine: str
    region: str
    source: str
    as_of: str


def price_of(gpu: str) -> Price | None:
    """Return the price of a GPU at the first provider that lists one, or None.

    Of one provider the machine with most GPUs is taken, and of those the cheapest.

    Args:
        gpu: the full name of a GPU of the catalog.
    """
    priced = [
        machine for machine in machines().values() if machine.gpu == gpu and machine.usd_per_hour is not None
    ]
    return price_at(min(priced, key=_rank)) if priced else None


def price_of_machine(machine: Machine) -> Price | None:
    """Return the price of one GPU of a machine, or else of its GPU wherever one is listed."""
    return price_at(machine) if machine.usd_per_hour is not None else price_of(machine.gpu)


def price_at(machine: Machine) -> Price:
    """Return the price of one GPU of a machine that has one."""
    return Price(
        usd_per_gpu_hour=machine.usd_per_gpu_hour or 0.0,
        machine=machine.name,
        region=machine.region,
        source=machine.source,
        as_of=machine.price_as_of,
    )


def _rank(machine: Machine) -> tuple[int, int, float, str]:
    """Return where a machine stands among those whose price could be quoted; smallest first."""
    provider = PRICE_ORDER.index(machine.provider) if machine.provider in PRICE_ORDER else len(PRICE_ORDER)
    return provider, -machine.gpus_per_node, machine.usd_per_gpu_hour or 0.0, machine.name
