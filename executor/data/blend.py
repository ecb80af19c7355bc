"""Several sources as one, in exact proportions: which source gives sample i is a pure function of i.

In every period of Σw samples source k, of whole weight ``w``, is used exactly w times, spread evenly: its
j-th use is due at (2j + 1) / 2w of the period. Each source is read in its own order, no sample left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Protocol

import numpy as np
import numpy.typing as npt

from topology.base.errors import InputError

LONGEST_PERIOD = 100_000
_PART = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)=(.+)", re.DOTALL)
_BETWEEN = re.compile(r",(?=\d+(?:\.\d+)?=)")


class TokenSource(Protocol):
    """Where sequences come from."""

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """Give the S + 1 tokens of sample `index` of the run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """Sources that take turns: `turns` names the source of each place of a period, `used` earlier uses."""

    sources: tuple[TokenSource, ...]
    weights: tuple[int, ...]
    turns: npt.NDArray[np.int64]
    used: npt.NDArray[np.int64]

    def place(self, index: int) -> tuple[int, int]:
        """Source of sample `index`, and which of that source's samples it is."""
        period, at = divmod(index, len(self.turns))
        source = int(self.turns[at])
        return source, period * self.weights[source] + int(self.used[at])

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """Give the tokens of one sample."""
        source, its_index = self.place(index)
        return self.sources[source].sample(its_index)


def blend(sources: Sequence[TokenSource], weights: Sequence[int]) -> Blend:
    """Let sources take turns by whole weights."""
    due = np.concatenate([(2 * np.arange(weight) + 1) / weight for weight in weights])
    which = np.repeat(np.arange(len(weights)), weights)
    used = np.concatenate([np.arange(weight) for weight in weights])
    order = np.lexsort((which, due))
    return Blend(sources=tuple(sources), weights=tuple(weights), turns=which[order], used=used[order])


def blend_parts(text: str) -> tuple[tuple[int, str], ...] | None:
    """Whole weights and names of ``0.7=a.bin,0.3=b.bin``, None for the name of one source.

    >>> blend_parts("0.7=a.bin,0.3=b,c.txt")
    ((7, 'a.bin'), (3, 'b,c.txt'))
    >>> blend_parts("a.bin") is None
    True
    """
    if not re.match(r"\d+(\.\d+)?=", text):
        return None
    matches = [_PART.fullmatch(part) for part in _BETWEEN.split(text)]
    shares = [Fraction(match[1]) for match in matches if match]
    if len(shares) < len(matches) or not all(shares):
        raise _wrong(text, "a weight is a positive number with at most six digits after the point")
    denominator = lcm(*(share.denominator for share in shares))
    whole = [int(share * denominator) for share in shares]
    whole = [weight // gcd(*whole) for weight in whole]
    if sum(whole) > LONGEST_PERIOD:
        raise _wrong(text, f"proportions {':'.join(map(str, whole))} repeat after {sum(whole)} samples only")
    return tuple((weight, match[2]) for weight, match in zip(whole, matches, strict=True) if match)


def _wrong(text: str, cause: str) -> InputError:
    """Build the error for a blend that cannot be made."""
    return InputError(
        what=f"{text[:200]} is no blend of data",
        cause=cause,
        fix=f"write WEIGHT=FILE,WEIGHT=FILE, in proportions of at most {LONGEST_PERIOD} together",
    )
