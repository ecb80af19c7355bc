"""Units: the only file with conversion factors; everything else holds SI base values.

Legend: `KIB MIB GIB TIB` binary bytes, `KB MB GB TB` decimal bytes, `GBIT` one Gbit/s in bytes/s,
`NS US MS MINUTE HOUR` seconds, `KILO MEGA GIGA TERA PETA` plain multipliers, `KIBI MEBI` binary ones. Output
writes GiB for capacity, GB/s for bandwidth, Gbit/s for network cards, three significant digits.
"""

import math
import re
from collections.abc import Mapping

from topology.base.errors import LONGEST_SHOWN, InputError, shown

KILO, MEGA, GIGA, TERA, PETA = 1e3, 1e6, 1e9, 1e12, 1e15
KIBI, MEBI = 2**10, 2**20
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
GBIT = GIGA / 8
NS, US, MS = 1e-9, 1e-6, 1e-3
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
WATT_HOUR = HOUR
BILLION = 1e9

_BYTES: dict[str, float] = {
    "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB, "kb": KB, "mb": MB, "gb": GB, "tb": TB,
}  # fmt: skip
_SECONDS: dict[str, float] = {
    "ns": 1e-9, "us": US, "µs": US, "μs": US, "ms": MS, "s": 1.0, "sec": 1.0, "min": MINUTE,
    "h": HOUR, "d": DAY,
}  # fmt: skip
_BITS: dict[str, float] = {"bit": 1 / 8, "kbit": KILO / 8, "mbit": MEGA / 8, "gbit": GBIT, "tbit": TERA / 8}
_PER_SECOND: dict[str, float] = {f"{unit}/s": factor for unit, factor in (_BYTES | _BITS).items()}
_FLOP: dict[str, float] = {f"{p}flop/s": f for p, f in (("", 1.0), ("g", GIGA), ("t", TERA), ("p", PETA))}
_RATES: dict[str, float] = {"/s": 1.0, "/min": 1 / MINUTE, "/h": 1 / HOUR, "hz": 1.0}
_COUNTED = re.compile(
    r"(?:requests?|reqs?|queries|query|r|q) ?(?:/|per |p(?=[sm]$))(sec|second|s|minute|min|m|hour|h)"
)
"""How people write requests a second: 20 rps, 20 req/s, 20 requests per second."""
_QUANTITIES = _BYTES | _SECONDS | _PER_SECOND | _FLOP | _RATES
_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")


def _canonical_unit(unit: str) -> str:
    """Return a unit in lower case; `Gbps` are bits and `GBps` bytes, so case is read before it is dropped."""
    if unit.endswith("bps"):
        return unit[:-3].lower() + "bit/s"
    if unit.endswith(("Bps", "/sec")):
        return unit[: -2 if unit.endswith("ps") else -4].lower() + "/s"
    return unit.lower()


def _parse(text: str, factors: Mapping[str, float], kind: str, example: str) -> float:
    """Return the number in `text` times the factor of its unit; a bare number has factor one."""
    match = _NUMBER.match(text) if len(text) <= LONGEST_SHOWN else None
    unit = _canonical_unit(match.group(2)) if match else ""
    factor = factors.get(unit) if unit else 1.0
    fix = f"write it like {example!r}"
    if match is None or factor is None:
        raise InputError(f"{shown(text)} is not {kind}", f"known units: {', '.join(factors)}", fix)
    value = float(match.group(1).replace("_", "")) * factor
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{text!r} is not {kind}", "it must be finite and not negative", fix)
    return value


def parse_seconds(text: str, example: str = "30ms") -> float:
    """Return a time in seconds; `example` shows who mistyped it how it is written.

    >>> parse_seconds("30ms"), parse_seconds("2h")
    (0.03, 7200.0)
    """
    return _parse(text, _SECONDS, "a time", example)


def parse_rate(text: str) -> float:
    """Return a rate in events per second.

    >>> parse_rate("20/s"), parse_rate("120/min"), parse_rate("20 rps"), parse_rate("30 req/min")
    (20.0, 2.0, 20.0, 0.5)
    """
    match = _NUMBER.match(text) if len(text) <= LONGEST_SHOWN else None
    counted = _COUNTED.fullmatch(match.group(2).lower()) if match else None
    if match and counted:
        unit = "/min" if counted[1].startswith("m") else f"/{counted[1][0]}"
        return _parse(f"{match.group(1)}{unit}", _RATES, "a rate", "20/s")
    return _parse(text, _RATES, "a rate", "20/s")


def parse_quantity(text: str) -> float:
    """Return any quantity with a unit in SI base units (bytes, seconds, bytes/s, flop/s, 1/s).

    >>> parse_quantity("400 Gbit/s") / GB, parse_quantity("450 GB/s") / GB, parse_quantity("400Gbps") / GB
    (50.0, 450.0, 50.0)
    """
    return _parse(text, _QUANTITIES, "a quantity", "400 Gbit/s")


def format_chance(chance: float) -> str:
    """Write a chance in percent, so that no digit contradicts a word that stands for 5 % or 90 %.

    Up to 90 % it is rounded down and beyond up, near both ends to a tenth of a percent.

    >>> [format_chance(chance) for chance in (0.0002, 0.04999, 0.1255, 0.8999, 0.9001, 0.9999)]
    ['< 0.1 %', '4.9 %', '12 %', '89 %', '90.1 %', '> 99.9 %']
    """
    almost_certain = chance < _ALMOST_CERTAIN or chance > 1 - _ALMOST_CERTAIN
    scale = 1000 if almost_certain else 100
    if chance > 1 - _ALMOST_CERTAIN:
        count = math.ceil(chance * scale)
        count -= (count - 1) / scale >= chance  # what a float adds to a product
    else:
        count = math.floor(chance * scale)
        count += (count + 1) / scale <= chance
    if count <= 0:
        return "< 0.1 %"
    return "> 99.9 %" if count >= scale else f"{100 * count / scale:.{int(almost_certain)}f} %"


_ALMOST_CERTAIN = 0.1
"""Chances below this, and as far below one, are written in tenths of a percent."""


def three_digits(value: float) -> str:
    """Return a number with three significant digits, without an exponent below a million.

    >>> three_digits(1234.5), three_digits(0.0123456), three_digits(7.0), three_digits(0.0)
    ('1234', '0.0123', '7', '0')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 12)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_bytes(value: float) -> str:
    """Return a capacity in GiB, as memory is spoken of.

    >>> format_bytes(80 * GIB)
    '80 GiB'
    """
    return f"{three_digits(value / GIB)} GiB"


def format_seconds(value: float) -> str:
    """Return a time in the unit that reads best.

    >>> format_seconds(7.96), format_seconds(0.0301), format_seconds(4.2e-6), format_seconds(7200)
    ('7.96 s', '30.1 ms', '4.2 µs', '2 h')
    >>> format_seconds(1199), format_seconds(1200)
    ('1199 s', '20 min')
    """
    factor, unit = time_unit(value)
    return f"{three_digits(value / factor)} {unit}"


def format_seconds_band(value: float, low: float, high: float) -> str:
    """Return both ends of a time's band in the unit of the time, seconds all three.

    >>> format_seconds_band(0.0301, 0.0271, 0.0334), format_seconds_band(114.0, 102.0, 129.0)
    ('27.1 – 33.4 ms', '102 – 129 s')
    """
    factor, unit = time_unit(value)
    return f"{three_digits(low / factor)} – {three_digits(high / factor)} {unit}"


def time_unit(value: float) -> tuple[float, str]:
    """Return the unit in which a time reads best, in seconds, and its name: minutes from 20, hours from 2.

    >>> time_unit(7.96), time_unit(0.0301), time_unit(7200), time_unit(0.0)
    ((1.0, 's'), (0.001, 'ms'), (3600.0, 'h'), (1.0, 's'))
    """
    scale = ((2 * HOUR, HOUR, "h"), (20 * MINUTE, MINUTE, "min"), (1.0, 1.0, "s"), (MS, MS, "ms"))
    pair = next(((factor, unit) for least, factor, unit in scale if abs(value) >= least), (US, "µs"))
    return pair if value else (1.0, "s")


_LARGE_BANDWIDTH = 10_000 * GB
"""From which a bandwidth has five digits before GB/s; those of links and of memory have fewer."""


def format_bandwidth(value: float) -> str:
    """Return a bandwidth in GB/s, below a tenth of one in MB/s, from ten thousand on in TB/s.

    >>> format_bandwidth(450e9), format_bandwidth(12.3e6), format_bandwidth(409.6e12)
    ('450 GB/s', '12.3 MB/s', '410 TB/s')
    """
    if value >= _LARGE_BANDWIDTH:
        return f"{three_digits(value / TERA)} TB/s"
    return f"{three_digits(value / GB)} GB/s" if value >= 0.1 * GB else f"{three_digits(value / MEGA)} MB/s"


def format_nic(value: float) -> str:
    """Return the speed of a network card in Gbit/s.

    >>> format_nic(50e9)
    '400 Gbit/s'
    """
    return f"{three_digits(value / GBIT)} Gbit/s"


def format_flop_per_s(value: float) -> str:
    """Return a compute rate in TFLOP/s.

    >>> format_flop_per_s(989e12)
    '989 TFLOP/s'
    """
    return f"{three_digits(value / TERA)} TFLOP/s"
