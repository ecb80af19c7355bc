"""Switches of training engines: what decides time and memory beside a layout, each with its values.

What a job runs is not an engine's name but its release and its switches. A switch is a record of
``data/switches.toml``: its name, what its values set of a `SoftwareStack`, and what columns of measured runs
call them. Profiles of ``data/stacks.toml`` are dated presets: values of switches, and what was measured.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from topology.base.decode import read_toml, structure
from topology.base.errors import InputError, shown
from topology.base.names import suggest

SWITCHES_FILE: Final = Path(__file__).parent / "data" / "switches.toml"
MASTER_BYTES: Final = "master_bytes"
"""What an optimizer keeps of a weight beside its moments: a part of ``optimizer_bytes`` of a profile."""
WIDE_BYTES: Final = 4.0
"""Of a master weight in fp32."""
MOST_CHUNKS: Final = 65_536
Switches: TypeAlias = Mapping[str, str]
"""Values by the name of their switch."""


class HasSwitches(Protocol):
    """What switches are set of: the groups of a `SoftwareStack` whose fields they name."""

    @property
    def timing(self) -> Any:
        """What it runs and overlaps."""

    @property
    def memory(self) -> Any:
        """What it keeps on a GPU."""


Profile = TypeVar("Profile", bound=HasSwitches)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchValue:
    """One value of a switch.

    Attributes:
        sets: Fields of a profile's groups timing and memory, and what they become.
        at_least: Shares that become at least so large; what a profile was measured at may be more.
        cells: What columns of measured runs call it, in small letters.
        number: Whether ``value:N`` is one too, and N is what the switch's `Switch.number` becomes.
        what: What it is, where its word does not say.
    """

    sets: Mapping[str, Any] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)
    cells: tuple[str, ...] = ()
    number: bool = False
    what: str = ""

    @property
    def is_priced(self) -> bool:
        """Whether a term of the cost model answers to it."""
        return bool(self.sets or self.at_least)


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
class Switch:
    """One switch.

    Attributes:
        name: The word for it on every surface.
        title: What it is of, in words.
        of: What a job must have for it to matter: experts, an axis, sharded parameters; "" of all jobs.
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
    of: Literal["", "experts", "tp", "cp", "pp", "dp", "fsdp"] = ""
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
def switches() -> Mapping[str, Switch]:
    """Every switch by name."""
    return {
        name: structure({"name": name, **entry}, Switch, f"{SWITCHES_FILE.name}: {name}")
        for name, entry in read_toml(SWITCHES_FILE).items()
    }


def switch(name: str) -> Switch:
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


def with_switches(stack: Profile, values: Switches) -> Profile:
    """A profile with switches set; raises `InputError` for what no switch or value is, or nothing prices.

    >>> from costmodel.stack import stack
    >>> with_switches(stack("megatron-core"), {"moment_dtype": "bf16"}).memory.optimizer_bytes
    8.0
    """
    for name, text in values.items():
        chosen = switch(name)
        value = chosen.value_of(text)
        if not value.is_priced:
            raise InputError(
                what=f"{name} = {text} is not priced",
                cause=f"no term of the cost model answers to it: {chosen.what}",
                fix=f"leave it out, or use {' or '.join(n for n, v in chosen.values.items() if v.is_priced)}"
                if any(v.is_priced for v in chosen.values.values())
                else "leave it out",
            )
        stack = _with_value(stack, value)
    return stack


def _with_value(stack: Profile, value: SwitchValue) -> Profile:
    """A profile with what one value sets."""
    timing, memory = ({each.name for each in fields(group)} for group in (stack.timing, stack.memory))
    sets = dict(value.sets)
    sets |= {name: max(share, getattr(stack.timing, name)) for name, share in value.at_least.items()}
    sets = {name: tuple(each) if isinstance(each, list) else each for name, each in sets.items()}
    beside = sets.pop(MASTER_BYTES, master_bytes(stack))
    of_memory = {name: each for name, each in sets.items() if name in memory}
    changed = _replaced(
        stack,
        timing=replace(stack.timing, **{name: each for name, each in sets.items() if name in timing}),
        memory=replace(stack.memory, **of_memory),
    )
    if MASTER_BYTES not in value.sets and "moment_bytes" not in sets:
        return changed
    if beside < WIDE_BYTES and changed.memory.gathers_from_master:
        beside += changed.memory.weight_bytes  # the sharded weights are kept, beside what they lack
    optimizer = beside + changed.memory.moment_bytes
    return _replaced(changed, memory=replace(changed.memory, optimizer_bytes=optimizer))


def _replaced(stack: Profile, **groups: Any) -> Profile:
    """A profile with other groups."""
    changed: Any = replace(stack, **groups)  # type: ignore[type-var]  # a profile is a dataclass
    result: Profile = changed
    return result


def master_bytes(stack: HasSwitches) -> float:
    """Bytes per parameter that the optimizer keeps of a weight beside its moments."""
    return float(stack.memory.optimizer_bytes - stack.memory.moment_bytes)


def switches_of(stack: HasSwitches) -> dict[str, str]:
    """The value that a profile has of every switch; "" where its fields are those of no value."""
    return {
        name: value_in(stack, each)
        for name, each in switches().items()
        if any(value.is_priced for value in each.values.values())
    }


@functools.lru_cache(maxsize=64)
def words_of(stack: HasSwitches, matters: frozenset[str]) -> str:
    """The values of a profile's switches as one text, of those that matter.

    Args:
        stack: The profile.
        matters: What the job has, of `Switch.of`.
    """
    values = switches_of(stack)
    return ", ".join(
        f"{name} {values[name] or 'as measured'}"
        for name, each in switches().items()
        if name in values and (not each.of or each.of in matters)
    )


def value_in(stack: HasSwitches, of: Switch) -> str:
    """The value of a switch that a profile has: of those with its fields the one that states most."""
    groups = (stack.timing, stack.memory)
    own = {each.name: getattr(group, each.name) for group in groups for each in fields(group)}
    own[MASTER_BYTES] = master_bytes(stack)
    if own["gathers_from_master"] and own[MASTER_BYTES] == own["weight_bytes"] < WIDE_BYTES:
        own[MASTER_BYTES] = 0.0  # the sharded weights themselves
    if of.modules is not None and own[of.modules.held_in]:
        return ";".join(own[of.modules.held_in])
    best, most = "", 0
    for name, value in of.values.items():
        if value.number and own.get(of.number, 0) > 1:
            return f"{name}:{own[of.number]}"
        same = all(_equal(own[each], wanted) for each, wanted in value.sets.items())
        stated = len(value.sets) + len(value.at_least)
        if stated > most and same and all(own[each] >= least for each, least in value.at_least.items()):
            best, most = name, stated
    return best


def _equal(mine: Any, wanted: Any) -> bool:
    """Whether two values of a field are one; lists of a file are tuples of a profile."""
    return bool(tuple(mine) == tuple(wanted) if isinstance(wanted, list | tuple) else mine == wanted)
