"""Switches of training engines: what decides time and memory beside a layout, each with its values.

What a job runs is not an engine's name but its release and its switches. A switch is a record of
``data/switches.toml``: its name, what its values set of a `SoftwareStack`, and what columns of measured runs
call them. Profiles of ``data/stacks.toml`` are dated presets: values of switches, and what was measured.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from topology.base.decode import read_toml, structure
from topology.base.errors import InputError, shown
from topology.base.names import suggest

SWITCHES_FILE: Final = Path(__file__).parents[1] / "data" / "switches.toml"
MASTER_BYTES: Final = "master_bytes"
"""What an optimizer keeps of a weight beside its moments: a part of ``optimizer_bytes`` of a profile."""
MOST_CHUNKS: Final = 65_536
Switches: TypeAlias = Mapping[str, str]
"""Values by the name of their switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchValue:
    """One value of a switch.

    Attributes:
        sets: Fields of a profile's groups timing and memory, and what they become.
        at_least: Shares that become at least so large; what a profile was measured at may be more.
        at_most: Bytes that become at most so many; a profile may need fewer.
        cells: What columns of measured runs call it, in small letters.
        number: Whether ``value:N`` is one too, and N is what the switch's `EngineSwitch.number` becomes.
        narrow_products: Whether it is of jobs alone whose products have fewer than sixteen bits.
        what: What it is, where its word does not say.
    """

    sets: Mapping[str, Any] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)
    cells: tuple[str, ...] = ()
    number: bool = False
    narrow_products: bool = False
    what: str = ""

    @property
    def is_priced(self) -> bool:
        """Whether a term of the cost model answers to it."""
        return bool(self.sets or self.at_least or self.at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleList:
    """Values of a switch that are lists of modules of a layer.

    Attributes:
        held_in: The field of a profile that holds them.
        of: The modules.
        beside: What such a list sets else.
    """

    held_in: str
    of: tuple[str, ...]
    beside: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSwitch:
    """One switch.

    Attributes:
        name: The word for it on every surface.
        title: What it is of, in words.
        of: What a job must have for it to matter: experts, an axis, sharded parameters, products whose
            operands are cast by kernels of their own; "" of all jobs.
        changes: What it moves.
        values: Its values by name; none of a switch that a layout or a job says (`home`).
        columns: Columns of measured runs that state it, the first that does so first.
        number: The field that a number behind a value sets.
        modules: Lists of modules that are values too.
        home: Where it stands instead: a field of a layout or a job.
        what: What it decides.
        source: Where its values come from.
        as_of: Date of that source.
    """

    name: str
    title: str
    of: Literal["", "experts", "tp", "cp", "pp", "dp", "fsdp", "casts"] = ""
    changes: tuple[Literal["time", "memory", "legality"], ...]
    values: Mapping[str, SwitchValue] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    number: str = ""
    modules: ModuleList | None = None
    home: str = ""
    what: str = ""
    source: str = ""
    as_of: str = ""

    def value_of(self, text: str) -> SwitchValue:
        """What a text means; raises `InputError` with the values where it means nothing.

        >>> switches()["loss"].value_of("chunked:16").sets["loss_chunks"]
        16
        """
        name, colon, number = text.strip().lower().partition(":")
        value = self.values.get(name)
        if value is not None and not colon:
            return value
        if value is not None and value.number and number.isdigit() and 0 < int(number) <= MOST_CHUNKS:
            return replace(value, sets={**value.sets, self.number: int(number)})
        modules = tuple(word.strip() for word in name.replace(",", ";").split(";") if word.strip())
        if self.modules is not None and not colon and modules and set(modules) <= set(self.modules.of):
            return SwitchValue(
                sets={**self.modules.beside, self.modules.held_in: tuple(dict.fromkeys(modules))}
            )
        raise self._unknown(text)

    def _unknown(self, text: str) -> InputError:
        """A value that this switch has not."""
        known = [name + (" or " + name + ":N" if value.number else "") for name, value in self.values.items()]
        if self.modules is not None:
            known.append("a list of " + ", ".join(self.modules.of))
        close = suggest(text, tuple(self.values), count=1)
        return InputError(
            what=f"{self.name} = {shown(text)} is no value of this switch",
            cause=f"{self.title} has {'; '.join(known)}",
            fix=f"did you mean {close[0]}?" if close else "use one of those",
        )

    def of_cell(self, cell: str) -> str:
        """The value that a cell of a table of measured runs states; "" where it is no word of this switch.

        >>> switches()["attention_kernel"].of_cell("TE fused (cuDNN)")
        'cudnn'
        """
        text = cell.strip().lower()
        for name, value in self.values.items():
            if text in (name, *value.cells):
                return name
        try:
            self.value_of(text)
        except InputError:
            return ""
        return text


@functools.cache
def switches() -> Mapping[str, EngineSwitch]:
    """Every switch by name."""
    return {
        name: structure({"name": name, **entry}, EngineSwitch, f"{SWITCHES_FILE.name}: {name}")
        for name, entry in read_toml(SWITCHES_FILE).items()
    }


def switch(name: str) -> EngineSwitch:
    """The switch of this name; raises `InputError` with those that there are."""
    known = switches()
    if name in known:
        return known[name]
    close = suggest(name, tuple(known), count=3)
    raise InputError(
        what=f"there is no switch {shown(name)}",
        cause=f"switches are {', '.join(known)}",
        fix=f"did you mean {' or '.join(close)}?" if close else "use one of those; `plan engines` lists them",
    )


def sets_of(name: str) -> frozenset[str]:
    """Fields of a profile that any value of a switch sets; both states of the optimizer are in one.

    >>> sorted(sets_of("exchange_overlap")), sorted(sets_of("moment_dtype"))
    (['pairs_expert_passes'], ['moment_bytes', 'optimizer_bytes'])
    """
    each = switches()[name]
    fields = {
        field for value in each.values.values() for field in (*value.sets, *value.at_least, *value.at_most)
    }
    fields |= {each.modules.held_in} if each.modules is not None else set()
    fields |= {"optimizer_bytes"} if fields & {MASTER_BYTES, "moment_bytes"} else set()
    return frozenset(fields)
