"""Printed numbers as intervals: what a reader may conclude from the digits that stand there.

``24.5 s`` says 24.45 to 24.55 seconds. Two surfaces agree on a quantity where their intervals meet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_UNITS: Mapping[str, float] = {
    "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "hours": 3600.0, "hour": 3600.0,
    "day": 86400.0, "days": 86400.0, "year": 365.25 * 86400.0, "years": 365.25 * 86400.0,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "%": 0.01,
    "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "Wh": 1.0, "kWh": 1e3, "MWh": 1e6, "GWh": 1e9,
}  # fmt: skip
"""Value of a unit in SI, bytes or dollars."""
_NUMBER = r"[+-]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?"
_UNIT = r"(?:ns|µs|ms|min|hours?|h|days?|years?|[KMGT]iB|[kMG]?Wh|%|[kMBT]|s)(?![A-Za-z/])"
NUMBER = rf"(?:[<>] )?{_NUMBER}(?:\s?{_UNIT})?"
RANGE = rf"{_NUMBER}(?:\s?{_UNIT})?\s?(?:–|to|and)\s?{_NUMBER}(?:\s?{_UNIT})?"
_DIGITS_SHOWN = 3
"""Digits that are always meant: a last zero further right may be one of rounding."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The numbers that print as one text; the ends belong to it."""

    low: float
    high: float

    def meets(self, other: Interval) -> bool:
        """Whether one number can be both; equal to twelve digits is equal."""
        slack = 1e-12 * max(abs(self.low), abs(self.high), abs(other.low), abs(other.high))
        return self.low <= other.high + slack and other.low <= self.high + slack


def interval(text: str, unit: str = "", *, directed: bool = False) -> Interval:
    """Read one printed number with its unit (or the one that stands at its neighbour).

    Numbers that are rounded in one direction (``directed``: chances, so that none reads as a limit which it
    does not reach) mean a whole last place to both sides, others half of one.

    >>> interval("24.5 s")
    Interval(low=24.45, high=24.55)
    >>> interval("$17,800")
    Interval(low=17750.0, high=17850.0)
    """
    if text.strip().startswith("<"):
        return Interval(0.0, interval(text.strip().removeprefix("<"), unit).high)
    if text.strip().startswith(">"):
        return Interval(interval(text.strip().removeprefix(">"), unit).low, math.inf)
    match = re.fullmatch(rf"\s*({_NUMBER})\s?({_UNIT})?\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is no number")
    digits = match[1].replace(",", "").replace("$", "")
    scale = _UNITS[match[2] or unit] if match[2] or unit else 1.0
    value = float(digits)
    half = (1.0 if directed else 0.5) * _last_place(digits)
    return Interval((value - half) * scale, (value + half) * scale)


def exact(text: str, scale: float = 1.0) -> Interval:
    """Read a number that is printed with all its digits, as in JSON and CSV."""
    value = float(text) * scale
    return Interval(value, value)


def ends(text: str, bare_unit: str = "") -> tuple[Interval, Interval]:
    """Read a range, ``21.5 – 27.8 s`` or ``70.4 ms–159 ms``; the first number has the unit of the second."""
    first, second = re.split(r"(?:\s?–\s?|\s(?:to|and)\s)", text, maxsplit=1)
    match = re.search(rf"{_UNIT}\s*$", second)
    unit = match[0].strip() if match else bare_unit
    return interval(first, unit), interval(second, unit)


def _last_place(digits: str) -> float:
    """The size of the last digit that is meant."""
    mantissa, _, exponent = digits.lstrip("+-").partition("e")
    power = int(exponent or 0)
    if "." in mantissa:
        return 10.0 ** (power - len(mantissa.partition(".")[2]))
    zeros = len(mantissa) - len(mantissa.rstrip("0"))
    return (
        10.0 ** (power + max(0, min(zeros, len(mantissa) - _DIGITS_SHOWN)))
        if float(digits)
        else math.pow(10.0, power)
    )
