"""Which parts of the catalog a name of a GPU can mean: by family, form, memory and edition.

People, drivers, schedulers and clouds write one name in many ways (``H100 80GB``, ``NVIDIA H100 80GB HBM3``,
``h100-sxm5-80gb``, ``GB200NVL72``). All of them say a family, most a form or a memory as well. A word that is
none of these makes another part: ``4090 Laptop GPU`` is no 4090, and ``3090 Ti`` no 3090.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from topology.base.names import words

NAME_TOLERANCE = 0.1
"""Share by which nominal memory and that of a sheet may differ (an L40S of 48 GB has 45 GiB); no two parts of
a family and form are so near."""
ROUNDING = 0.01
"""Share by which two ways to write one memory differ: 141 GB and 140.4 GiB."""
LONGEST_NAME = 100
"""Characters of the longest name that is read; a longer text is none."""
_MAKERS = frozenset({"nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "gpu", "gpus", "corporation"})
_ASIDE = frozenset({"oam", "ac", "vf", "gcd", "shared"})
"""The module of an AMD board, its cooling by air, a whole board in a virtual machine, a die, a shared device,
as drivers and labels show them. A word of one part alone is a `driver_words` of it."""
_FORM = re.compile(r"(sxm|pcie|nvl)\d?")
_MEMORY = re.compile(r"(\d{1,4})(?:g|gb|gib)")
_KIND_OF_MEMORY = re.compile(r"(?:hbm|gddr)\d\w{0,2}")
_GLUED = re.compile(r"(?<=[a-z0-9])(?=(?:sxm|pcie|nvl)\d{0,3}(?![a-z]))|(?<=sxm)(?=\d{2})|(?<=pcie)(?=\d{2})")
_BRACKETS = re.compile(r"\(([^()]*)\)")
_SPACED_MEMORY = re.compile(r"(?<=\d) (?=(?:g|gb|gib)(?![a-z0-9]))")


class NamedPart(Protocol):
    """What of a part its name is compared with."""

    @property
    def name(self) -> str:
        """Its name in the catalog."""

    @property
    def memory_gib(self) -> float:
        """Its memory in GiB."""

    @property
    def driver_words(self) -> tuple[str, ...]:
        """Words of its driver's name that its own lacks."""


@dataclass(frozen=True, slots=True)
class PartName:
    """What a name says: the family without spaces, the form ("" where unsaid), memory in GB (all it says)."""

    family: str
    form: str
    memory_gb: tuple[float, ...]


@lru_cache(maxsize=1024)
def part_name(text: str, aside: tuple[str, ...] = ()) -> PartName:
    """Read a name.

    >>> part_name("NVIDIA H100 80GB HBM3"), part_name("rtx4090").family
    (PartName(family='h100', form='', memory_gb=(80.0,)), 'rtx4090')

    Args:
        text: as anybody writes it.
        aside: words that are of no account for the part it is compared with.
    """
    family: list[str] = []
    form, memory = "", []
    for word in words(_SPACED_MEMORY.sub("", _GLUED.sub("-", text.lower()))):
        if word in _MAKERS or word in _ASIDE or word in aside or _KIND_OF_MEMORY.fullmatch(word):
            continue
        if match := _FORM.fullmatch(word):
            form = match[1]
        elif match := _MEMORY.fullmatch(word):
            memory.append(float(match[1]))
        else:
            family.append(word)
    return PartName("".join(family), form, tuple(memory))


def parts_named(text: str, parts: Iterable[NamedPart], memory_gib: float | None = None) -> list[str]:
    """Return the parts that a name can mean, none where it is no name of one.

    A name without a form is that of an SXM board or of a part of one form, where there is one: drivers and
    people name PCIe boards so.

    Args:
        text: as anybody writes it.
        parts: those of the catalog.
        memory_gib: what the device reports, in place of the memory that its name says.
    """
    if len(text) > LONGEST_NAME:
        return []
    spellings = dict.fromkeys((text, _BRACKETS.sub(" ", text), *_BRACKETS.findall(text)))
    for spelling in spellings:
        alike = [part for part in parts if _is_alike(spelling, part, memory_gib)]
        exact = [part.name for part in alike if part_name(part.name) == part_name(spelling)]
        if exact and not memory_gib:
            return exact
        whole = [part for part in alike if _fits(part_name(spelling).form, part)]
        if not memory_gib and (not whole or _off(spelling, alike) < _off(spelling, whole) - ROUNDING):
            whole = alike  # a memory that is rather that of another form is no word of this one
        if whole or alike:
            return [part.name for part in whole]
    return []


def _off(text: str, parts: Iterable[NamedPart]) -> float:
    """Share by which the memory that a name says is off the nearest of some parts, 0 where it says none."""
    return min(
        (
            max(
                (abs(size / part.memory_gib - 1) for size in part_name(text, part.driver_words).memory_gb),
                default=0.0,
            )
            for part in parts
        ),
        default=math.inf,
    )


def _is_alike(text: str, part: NamedPart, memory_gib: float | None) -> bool:
    """Whether a name is of a part's family, and contradicts neither its form nor its memory."""
    listed, stated = part_name(part.name), part_name(text, part.driver_words)
    sizes = stated.memory_gb
    if stated.family != listed.family:
        bare = re.fullmatch(rf"{re.escape(listed.family)}(\d{{2,3}})", stated.family)  # v100-16, a100-80
        if bare is None or memory_gib:
            return False
        sizes = (*sizes, float(bare[1]))
    if stated.form and listed.form != stated.form:
        return False
    return bool(memory_gib) or all(abs(size / part.memory_gib - 1) < NAME_TOLERANCE for size in sizes)


def _fits(form: str, part: NamedPart) -> bool:
    """Whether a name of this form is that of a part; one that does not say is of no PCIe board."""
    listed = part_name(part.name).form
    return listed in ({form} if form else {"", "sxm"})


def aliased(text: str, aliases: Mapping[str, str]) -> str:
    """Return what a short name means, "" where it is none: by its words alone.

    >>> aliased("NVIDIA A100", {"a100": "a100-sxm-80gb"}), aliased("A100 PCIe", {"a100": "a100-sxm-80gb"})
    ('a100-sxm-80gb', '')
    """
    key = part_name(text[:LONGEST_NAME])
    return next((full for short, full in aliases.items() if part_name(short) == key), "")
