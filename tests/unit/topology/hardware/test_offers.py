"""Whole machines that one can rent."""

import pytest

from topology.base.errors import InputError
from topology.hardware.offers import offer_of, provider_named


@pytest.mark.parametrize(
    ("gpu", "among", "machine", "usd_per_hour"),
    [
        ("b200-sxm", None, "aws-p6-b200.48xlarge", 113.9328),
        ("h100-sxm", None, "aws-p5.48xlarge", 55.04),
        ("h100-sxm", ("GCP", "Lambda"), "lambda-8x-h100-sxm5", 31.92),
        ("h100-sxm", ("GCP",), "gcp-a3-highgpu-8g", 88.4899999),
    ],
)
def test_the_machine_rented_is_of_the_hosts_size_and_cheapest_of_those_named(
    gpu: str, among: tuple[str, ...] | None, machine: str, usd_per_hour: float
) -> None:
    """The provider quoted first where none is named; machines of one GPU hold no replica of eight."""
    offer = offer_of(gpu, 8, among)
    assert offer is not None
    assert (offer.machine, offer.usd_per_hour, offer.gpus) == (machine, usd_per_hour, 8)
    assert offer.as_of
    assert offer.source


def test_nothing_is_offered_where_no_provider_lists_a_machine_of_the_size() -> None:
    """Neither another size nor another provider stands in."""
    assert offer_of("h100-sxm", 4) is None
    assert offer_of("rtx-4090", 8) is None
    assert offer_of("b200-sxm", 8, ("Azure",)) is None


def test_machines_are_whole() -> None:
    """Twelve GPUs are two machines of eight."""
    offer = offer_of("b200-sxm", 8)
    assert offer is not None
    assert [offer.machines_for(gpus) for gpus in (1, 8, 9, 12, 16, 17)] == [1, 1, 2, 2, 2, 3]


def test_unknown_providers_are_refused_with_those_known() -> None:
    """In the three lines of every error."""
    with pytest.raises(InputError, match="provider"):
        provider_named("acme")
