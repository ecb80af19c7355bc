"""Numbers as people type them (`128k`, `15T`, `30d`) and as people read them (`3.21 T`, `$1,230`)."""

from __future__ import annotations

import math

from topology.base.errors import InputError
from topology.base.units import BILLION, DAY, KILO, MEGA, TERA, format_seconds, three_digits, time_unit

_DECIMAL = {"": 1.0, "k": KILO, "m": MEGA, "b": BILLION, "g": BILLION, "t": TERA}
_BINARY = {**_DECIMAL, "k": 1024.0, "m": 1024.0 * 1024.0}
LARGEST_COUNT = 10**18


def parse_count(text: str, flag: str, *, largest: int = LARGEST_COUNT, binary: bool = False) -> int:
    """Read a positive whole number; a suffix k, M, B or T multiplies (k is 1024 for sequence lengths).

    >>> parse_count("15T", "--tokens"), parse_count("128k", "--sequence-length", binary=True)
    (15000000000000, 131072)
    """
    cleaned = text.strip().replace("_", "").replace(",", "").lower()
    suffix = cleaned[-1:] if cleaned[-1:].isalpha() else ""
    factor = (_BINARY if binary else _DECIMAL).get(suffix)
    try:
        value = float(cleaned.removesuffix(suffix)) * (factor or math.nan)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value != int(value) or value < 1:
        raise _not_a_count(text, flag)
    if value > largest:
        raise InputError(
            what=f"{flag} {text} is out of reach",
            cause=f"the largest is {largest:,}",
            fix=f"give {flag} at most that",
        )
    return int(value)


def parse_share(text: str, flag: str) -> float:
    """Read a share below one, as a number or in percent.

    >>> parse_share("5%", "--memory-headroom"), parse_share("0.05", "--memory-headroom")
    (0.05, 0.05)
    """
    cleaned = text.strip()
    try:
        value = float(cleaned.removesuffix("%")) / (100 if cleaned.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise InputError(
            what=f"{flag} is not a share", cause=f"{text!r} is not from 0 up to, but without, 1",
            fix=f"write for example {flag} 0.05 or {flag} 5%",
        )  # fmt: skip
    return value


def parse_counts(
    text: str, flag: str, *, largest: int = LARGEST_COUNT, binary: bool = False
) -> tuple[int, ...]:
    """Read a comma-separated list of counts; `8..64` doubles from 8 to 64.

    >>> parse_counts("8..64", "--gpus"), parse_counts("4k,8k", "--sequence-length", binary=True)
    ((8, 16, 32, 64), (4096, 8192))
    """
    counts: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        start = parse_count(first, flag, largest=largest, binary=binary)
        end = parse_count(last, flag, largest=largest, binary=binary) if dots else start
        while start <= end:
            counts.append(start)
            start *= 2
    return tuple(dict.fromkeys(counts))


def _not_a_count(text: str, flag: str) -> InputError:
    """Say what a count looks like."""
    return InputError(
        what=f"{flag} {text} is not a possible number", cause=f"{flag} counts things: 1, 2, 3 …",
        fix=f"give {flag} a positive whole number",
    )  # fmt: skip


def format_count(value: float) -> str:
    """Write a large count with a suffix.

    >>> format_count(4194304), format_count(70_553_706_496), format_count(419430.4), format_count(8192)
    ('4.19 M', '70.6 B', '419 k', '8,192')
    """
    for factor, suffix in ((TERA, " T"), (BILLION, " B"), (MEGA, " M"), (100 * KILO, " k")):
        if abs(value) >= factor:
            return f"{three_digits(value / (KILO if suffix == ' k' else factor))}{suffix}"
    return f"{value:,.0f}"


def counted(number: int, noun: str) -> str:
    """Write how many there are of something.

    >>> counted(1, "sequence"), counted(8192, "token")
    ('1 sequence', '8,192 tokens')
    """
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def format_usd(value: float | None) -> str:
    """Write money; nothing is said without a price.

    >>> format_usd(1234567.0), format_usd(0.0213), format_usd(None)
    ('$1,230,000', '$0.0213', 'no price')
    """
    if value is None:
        return "no price"
    return f"${format_number(value)}"


def format_percent(fraction: float, *, signed: bool = False) -> str:
    """Write a fraction as percent.

    >>> format_percent(0.4123), format_percent(0.05, signed=True)
    ('41.2 %', '+5 %')
    """
    sign = "+" if signed and fraction > 0 else ""
    return f"{sign}{three_digits(100 * fraction)} %"


def format_number(value: float) -> str:
    """Write a number with three significant digits, thousands apart.

    >>> format_number(4988.2), format_number(0.0213)
    ('4,990', '0.0213')
    """
    if abs(value) < 1000:
        return three_digits(value)
    return f"{round(value, 2 - math.floor(math.log10(abs(value)))):,.0f}"


def format_ratio(ratio: float) -> str:
    """Write how something stands to what was expected: in percent up to twice, then as a factor.

    >>> format_ratio(1.1), format_ratio(0.5), format_ratio(22.42)
    ('+10 %', '-50 %', '×22.4')
    """
    return f"×{three_digits(ratio)}" if ratio > 2 else format_percent(ratio - 1, signed=True)


def format_share(fraction: float, *, signed: bool = False) -> str:
    """Write a share of a whole as percent with one decimal, so that a column of shares lines up.

    >>> format_share(0.4123), format_share(0.005), format_share(0.2, signed=True), format_share(-1e-5)
    ('41.2 %', '0.5 %', '+20.0 %', '0.0 %')
    """
    rounded = round(100 * fraction, 1) + 0.0  # no minus sign before nothing
    return f"{rounded:{'+' if signed else ''}.1f} %"


def format_duration(seconds: float) -> str:
    """Write a wall-clock time; days when it takes more than two.

    >>> format_duration(864000.0), format_duration(90.0)
    ('10 days', '90 s')
    """
    return f"{three_digits(seconds / DAY)} days" if seconds >= 2 * DAY else format_seconds(seconds)


def format_like(seconds: float, whole: float) -> str:
    """Write a part of a time in the unit and decimals of the whole, so that a column of parts lines up.

    >>> format_like(0.4, 10.0), format_like(0.0004, 0.02), format_like(110.21, 119.0), format_like(36, 9000.0)
    ('0.40 s', '0.40 ms', '110.2 s', '0.010 h')
    """
    factor, unit = time_unit(whole)
    decimals = max(0, 4 - len(str(int(whole / factor))))
    return f"{seconds / factor:.{decimals}f} {unit}"
