"""Quantities as people write them become SI base units, and come back as people read them."""

import math

import pytest

from topology.base.errors import InputError
from topology.base.units import (
    GB,
    GBIT,
    GIB,
    format_bandwidth,
    format_bytes,
    format_flop_per_s,
    format_nic,
    format_seconds,
    parse_quantity,
    parse_rate,
    parse_seconds,
    three_digits,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("400 Gbit/s", 400 * GBIT),
        ("400Gbps", 400 * GBIT),
        ("50 GBps", 50 * GB),
        ("50 GB/s", 50 * GB),
        ("50e9", 50 * GB),
        ("1_000 B", 1000.0),
        ("80 GiB", 80 * GIB),
        (".5 ms", 5e-4),
        ("989 TFLOP/s", 989e12),
    ],
)
def test_quantities_are_read_with_their_unit(text: str, value: float) -> None:
    """Bits and bytes, binary and decimal, are told apart."""
    assert parse_quantity(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "GiB", "80 Gib bits", "nan", "inf", "-1 GiB", "1e999", "0x10", "8 8 GiB"]
)
def test_a_text_that_is_no_quantity_is_answered_in_three_lines(text: str) -> None:
    """The error says what, why and what to write."""
    with pytest.raises(InputError) as caught:
        parse_quantity(text)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["error", "cause", "help"]


@pytest.mark.parametrize(
    "unit",
    ["/s", " rps", "rps", " RPS", "qps", " req/s", " reqs/sec", " requests/s", " requests per second", " Hz"],
)
def test_a_rate_is_written_as_people_write_it(unit: str) -> None:
    """With what is counted before the second, or without."""
    assert parse_rate(f"20{unit}") == 20
    if "s" in unit and "Hz" not in unit:
        for minute in (unit.replace("second", "minute").replace("/sec", "/min").replace("/s", "/min"),):
            if minute != unit:
                assert parse_rate(f"120{minute}") == 2


@pytest.mark.parametrize("text", ["20 tps", "20 tokens/s", "20 r", "20 rp", "20 rpx", "20 per"])
def test_what_is_no_rate_of_requests_is_refused(text: str) -> None:
    """Tokens a second above all: a thousand of them may be one request."""
    with pytest.raises(InputError, match="is not a rate"):
        parse_rate(text)


def test_a_capacity_is_no_time_and_a_time_no_rate() -> None:
    """Each reader takes its own units only."""
    for read, text in ((parse_seconds, "3 GiB"), (parse_rate, "3 s")):
        with pytest.raises(InputError):
            read(text)


def test_three_significant_digits() -> None:
    """Output has three digits, in GiB, GB/s, Gbit/s and TFLOP/s."""
    written = [
        format_bytes(79.6489 * GIB),
        format_bandwidth(46.444 * GB),
        format_nic(50 * GB),
        format_flop_per_s(2614.9e12),
        format_seconds(0.0079612),
        format_seconds(0.0),
        format_seconds(3e-10),
        three_digits(-0.5),
        three_digits(math.inf),
    ]
    expected = [
        "79.6 GiB",
        "46.4 GB/s",
        "400 Gbit/s",
        "2615 TFLOP/s",
        "7.96 ms",
        "0 s",
        "0.0003 µs",
        "-0.5",
        "inf",
    ]
    assert written == expected
