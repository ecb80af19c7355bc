"""Numbers as people read them: `3.21 T`, `$1,230`, `41.2 %`."""

from __future__ import annotations

import math

from topology.base.units import BILLION, DAY, KILO, MEGA, TERA, format_seconds, three_digits, time_unit


def format_count(value: float) -> str:
    """Write a large count with a suffix.

    >>> format_count(4194304), format_count(70_553_706_496), format_count(419430.4), format_count(8192)
    ('4.19 M', '70.6 B', '419 k', '8,192')
    """
    for factor, suffix in ((TERA, " T"), (BILLION, " B"), (MEGA, " M"), (100 * KILO, " k")):
        if abs(value) >= factor:
            return f"{three_digits(value / (KILO if suffix == ' k' else factor))}{suffix}"
    return f"{value:,.0f}"


def format_usd(value: float | None) -> str:
    """Write money; nothing is said without a price.

    >>> format_usd(1234567.0), format_usd(0.0213), format_usd(None)
    ('$1,230,000', '$0.0213', 'no price')
    """
    if value is None:
        return "no price"
    return f"${format_number(value)}"


def format_sum(usd: float) -> str:
    """Write the money of a whole run, short enough for a tile.

    >>> format_sum(9_402_000.0), format_sum(4_120.0)
    ('$9.4 M', '$4,120')
    """
    return f"${format_count(usd)}" if usd >= MEGA else format_usd(usd)


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


def format_over_best(fraction: float) -> str:
    """Write by how much a step is longer than the best; beyond twice as long as a factor.

    >>> format_over_best(0.307), format_over_best(-0.02), format_over_best(3.54)
    ('+30.7 % over the best', '-2.0 % over the best', '4.54 times the best')
    """
    if fraction > 1:
        return f"{three_digits(1 + fraction)} times the best"
    return f"{format_share(fraction, signed=True)} over the best"


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
