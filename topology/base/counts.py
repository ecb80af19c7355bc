"""Counts and shares as people type them: `128k`, `15T`, `8..64`, `5%`."""

from __future__ import annotations

import math

from topology.base.errors import InputError
from topology.base.units import BILLION, KILO, MEGA, TERA

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


def counted(number: int, noun: str) -> str:
    """Write how many there are of something.

    >>> counted(1, "sequence"), counted(8192, "token")
    ('1 sequence', '8,192 tokens')
    """
    return f"{number:,} {noun}{'s' if number != 1 else ''}"
