"""Counts and shares as people type them: `16k`, `15T`, `1,024`, `8..64`, `5%`.

A suffix means one thing for each kind of count. *Sizes* are what one step, request or machine has (GPUs,
tokens of a sequence, sequences and tokens of a batch): the field counts them in powers of two, so `16k` GPUs
are 16,384 and a sequence of `8k` has 8,192 tokens. *Totals* are what a whole run adds up to (tokens,
dollars): the field counts them in powers of ten, so `15T` tokens are 15 · 10¹².
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Final

from topology.base.errors import InputError, shown
from topology.base.units import BILLION, KIBI, KILO, MEBI, MEGA, TERA

Suffixes = Mapping[str, float]

SIZES: Final[Suffixes] = {"k": KIBI, "m": MEBI}
"""Suffixes of sizes: GPUs, lengths, batches, requests."""
TOTALS: Final[Suffixes] = {"k": KILO, "m": MEGA, "b": BILLION, "g": BILLION, "t": TERA}
"""Suffixes of totals: tokens of a run, dollars."""
SUFFIXES: Final = {
    "GPUs, tokens of a sequence, sequences or tokens of a step, requests": SIZES,
    "tokens of a run, dollars": TOTALS,
}
"""Every kind of count and what its suffixes multiply by, as help and documents write it."""
LARGEST_COUNT = 10**18

_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\+?\d{1,2})?) ?([a-z]?)", re.ASCII)
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:(?:,\d{3})+|(?:_\d{3})+)", re.ASCII)
_GROUP_BEHIND = re.compile(r"0\d{2}", re.ASCII)
_COMMA_FOR_POINT = re.compile(r"\d+,\d{1,2}[a-z]", re.ASCII)
_GROUPED_BY_POINTS = re.compile(r"\d{1,3}\.0{3}")
_NUMERIC = re.compile(r"[-+]?\d[\d.,_]*[kKmM]?", re.ASCII)
_DASHED = re.compile(r"(\d+) ?[-–] ?(\d+)")
_SEPARATOR = re.compile(r"\s*[,;]\s*|\s+(?=\d)")


def parse_count(text: str, flag: str, *, largest: int = LARGEST_COUNT, suffixes: Suffixes = SIZES) -> int:
    """Read a positive whole number; `1,024` is one, `32,64` is a list and refused.

    >>> parse_count("15T", "--tokens", suffixes=TOTALS), parse_count("16k", "--gpus")
    (15000000000000, 16384)
    >>> parse_count("1,024", "--gpus"), parse_count("16,384", "--gpus")
    (1024, 16384)

    Args:
        text: What was written.
        flag: What it is the count of, for messages.
        largest: The most that it may be.
        suffixes: What a letter behind the number multiplies by: `SIZES` or `TOTALS`.

    Raises:
        InputError: it is a list, no whole number above zero, or more than the largest.
    """
    cleaned = text.strip().lower()
    if _COMMA_FOR_POINT.fullmatch(cleaned):
        raise InputError(
            what=f"{flag} {text.strip()} is a list, or has a comma for a point",
            cause=f"{flag} takes one number, and commas stand between its groups of three digits",
            fix=f"for one number give {flag} {text.strip().replace(',', '.')}",
        )
    if len(listed := listed_counts(text)) > 1:
        raise InputError(
            what=f"{flag} {text.strip()} is a list",
            cause=f"{flag} takes one number, and {' and '.join(map(shown, listed))} are {len(listed)}",
            fix=f"give one of them: {flag} {next((each for each in listed if each.strip('0')), listed[0])}",
        )
    if low_high := _DASHED.fullmatch(cleaned):
        raise InputError(
            what=f"{flag} {text.strip()} is a range, or two numbers",
            cause="a range is written with two points",
            fix=f"give {flag} {low_high[1]}..{low_high[2]} where a range is taken, or one number",
        )
    if ".." in cleaned:
        end = next((each for each in reversed(cleaned.split("..")) if each), "one number")
        raise InputError(
            what=f"{flag} {text.strip()} is a range",
            cause=f"{flag} takes one number here",
            fix=f"give {flag} {end}, or leave {flag} out",
        )
    if _GROUPED.fullmatch(cleaned):
        cleaned = cleaned.replace(",", "").replace("_", "")
    match = None if _GROUPED_BY_POINTS.fullmatch(cleaned) else _COUNT.fullmatch(cleaned)
    number, suffix = match.groups() if match else ("nan", "")
    value = float(number) * {**suffixes, "": 1.0}.get(suffix, math.nan)
    if not math.isfinite(value) or value != int(value) or value < 1:
        raise _not_a_count(text, flag, suffixes)
    if value > largest:
        raise InputError(
            what=f"{flag} {text} is out of reach",
            cause=f"the largest is {largest:,}",
            fix=f"give {flag} at most that",
        )
    return int(value)


def listed_counts(text: str) -> tuple[str, ...]:
    """The parts of a text that lists several counts; the text alone where it is one.

    Groups of three digits are one number. Where each is the one before times a power of two, as counts that
    people compare are (`256,512`), they may be a list as well: neither is guessed, and `parse_count` refuses.
    No number of a list begins with a zero, so such a group belongs to the number before it.

    >>> listed_counts("32,64"), listed_counts("256,512"), listed_counts("16,384"), listed_counts("8")
    (('32', '64'), ('256', '512'), ('16,384',), ('8',))
    >>> listed_counts("32 64"), listed_counts("1,024,2,048")
    (('32', '64'), ('1024', '2048'))
    """
    cleaned = text.strip().strip("[]()").strip()
    parts = tuple(part for part in _SEPARATOR.split(cleaned) if part)
    result = len(parts) == 1 or (_GROUPED.fullmatch(cleaned) and not _doubles(parts))
    if result or not parts:
        return (cleaned,)
    joined = _rejoined(parts)
    return joined if len(joined) > 1 else parts


def _rejoined(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Numbers with the groups that belong to them: those of three digits that begin with a zero."""
    numbers: list[str] = []
    for part in parts:
        if numbers and _GROUP_BEHIND.fullmatch(part) and numbers[-1].isdecimal() and numbers[-1][0] != "0":
            numbers[-1] += part
        else:
            numbers.append(part)
    return tuple(numbers)


def is_numeral(text: str) -> bool:
    """Whether a text is made of numbers alone, a count or several, right or wrong; a name is not.

    >>> is_numeral("4k"), is_numeral("300,500"), is_numeral("-5"), is_numeral("plan.json")
    (True, True, True, False)
    """
    return bool(_NUMERIC.fullmatch(text.strip()))


def _doubles(parts: tuple[str, ...]) -> bool:
    """Whether each of several numbers is the one before times a power of two.

    >>> _doubles(("256", "512")), _doubles(("16", "384")), _doubles(("1", "024"))
    (True, False, False)
    """
    if any(part.startswith("0") for part in parts):
        return False
    pairs = itertools.pairwise(map(int, parts))
    return all(b % a == 0 and (b // a).bit_count() == 1 < b // a for a, b in pairs)


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
    text: str, flag: str, *, largest: int = LARGEST_COUNT, suffixes: Suffixes = SIZES
) -> tuple[int, ...]:
    """Read a comma-separated list of counts; `8..64` doubles from 8 to 64.

    >>> parse_counts("8..64", "--gpus"), parse_counts("4k,8k", "--sequence-length")
    ((8, 16, 32, 64), (4096, 8192))

    Raises:
        InputError: a part is no count, or a group of digits such as the last of `1,024`.
    """
    counts: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        if first.strip().startswith("0") and "," in text:
            raise InputError(
                what=f"{flag} {text} lists no numbers",
                cause=f"commas separate the numbers of a list, and {shown(first.strip())} is none",
                fix=f"write {flag} {text.replace(',', '')} for one number",
            )
        start = parse_count(first, flag, largest=largest, suffixes=suffixes)
        end = parse_count(last, flag, largest=largest, suffixes=suffixes) if dots else start
        while start <= end:
            counts.append(start)
            start *= 2
    return tuple(dict.fromkeys(counts))


def suffix_note(text: str | None, value: int, flag: str, noun: str) -> tuple[str, ...]:
    """What a count with a suffix was read as; nothing where its digits say it.

    >>> suffix_note("16k", 16384, "--gpus", "GPU"), suffix_note("32", 32, "--gpus", "GPU")
    (('--gpus 16k is 16,384 GPUs',), ())
    """
    written = (text or "").strip()
    return (f"{flag} {written} is {counted(value, noun)}",) if written[-1:].isalpha() else ()


def _not_a_count(text: str, flag: str, suffixes: Suffixes) -> InputError:
    """Say what a count looks like."""
    known = ", ".join(name if name == "k" else name.upper() for name in suffixes)
    return InputError(
        what=f"{flag} {text} is not a possible number",
        cause=f"{flag} counts things: 1, 2, 3 …, or 1,024, or with {known} behind the number",
        fix=f"give {flag} a positive whole number",
    )


def counted(number: int, noun: str) -> str:
    """Write how many there are of something.

    >>> counted(1, "sequence"), counted(8192, "token")
    ('1 sequence', '8,192 tokens')
    """
    return f"{number:,} {noun}{'s' if number != 1 else ''}"
