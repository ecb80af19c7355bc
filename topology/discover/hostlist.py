"""Slurm's host expressions: `dgx[0001-0018,0037],login1`. They are counted before a name is written out."""

import itertools
import re
from collections.abc import Iterator

from topology.base.errors import InputError, shortened, shown
from topology.discover.places import MOST_HOSTS

LONGEST_HOST = 255
"""Letters of a host name that DNS allows."""
MOST_BRACKETS = 8
_PART = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*")
_PIECE = re.compile(r"\[([^\[\]]*)\]")
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_NAME = re.compile(r"[A-Za-z0-9_.:-]+")


def hosts_in(expression: str, where: str = "the host list") -> list[str]:
    """Return the names that an expression stands for, zeros kept.

    >>> hosts_in("xyz[8-10],n[01,03]")
    ['xyz8', 'xyz9', 'xyz10', 'n01', 'n03']
    """
    parts = list(_parts(expression, where))
    count = sum(_count(part, where) for part in parts)
    if count > MOST_HOSTS:
        raise _no_list(where, f"{shown(expression)} stands for {count:,} nodes, more than {MOST_HOSTS:,}")
    return [name for part in parts for name in _written_out(part, where)]


def count_hosts(expression: str, where: str = "the host list") -> int:
    """Return how many hosts an expression stands for.

    >>> count_hosts("dgx[0001-0018,0037-0054],dgx0127")
    37
    """
    return sum(_count(part, where) for part in _parts(expression, where))


def _parts(expression: str, where: str) -> Iterator[str]:
    """Yield the parts between commas that are outside brackets."""
    at, text = 0, expression.strip()
    while at < len(text):
        match = _PART.match(text, at)
        result = match.group() if match else ""
        if not result.strip() or (match and match.end() < len(text) and text[match.end()] != ","):
            raise _no_list(where, f"{shown(expression)} is no range of nodes")
        yield result.strip()
        at = at + len(result) + 1
        if at == len(text):
            raise _no_list(where, f"{shown(expression)} ends in a comma")


def _count(part: str, where: str) -> int:
    """Return how many names one part stands for."""
    inside = _PIECE.findall(part)
    if len(inside) > MOST_BRACKETS:
        raise _no_list(where, f"{shown(part)} has more than {MOST_BRACKETS} ranges")
    total = 1
    for spans in inside:
        total *= sum(last - first + 1 for first, last, _ in _spans(spans, part, where))
    return total


def _spans(text: str, part: str, where: str) -> Iterator[tuple[int, int, int]]:
    """Yield first, last and width of the ranges in one pair of brackets."""
    for piece in text.split(","):
        span = _SPAN.fullmatch(piece.strip())
        if not span or int(span[2] or span[1]) < int(span[1]):
            raise _no_list(where, f"{shown(part)} is no range of nodes")
        yield int(span[1]), int(span[2] or span[1]), len(span[1])


def _written_out(part: str, where: str) -> Iterator[str]:
    """Yield the names of one part."""
    pieces: list[list[str]] = []
    for number, text in enumerate(_PIECE.split(part)):
        if number % 2:
            spans = _spans(text, part, where)
            pieces.append(
                [str(i).zfill(width) for first, last, width in spans for i in range(first, last + 1)]
            )
        else:
            pieces.append([text])
    if not _NAME.fullmatch("".join(piece[0] for piece in pieces)) or len(part) > 20 * LONGEST_HOST:
        raise _no_list(where, f"{shortened(part)!r} is no name of a host")
    for name in itertools.product(*pieces):
        yield "".join(name)


def _no_list(where: str, cause: str) -> InputError:
    return InputError(f"{where} is not understood", cause, "write host names as node[01-16],node20")
