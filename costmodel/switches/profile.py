"""Switches of a profile: set some, read all, name those that matter for a job."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, Protocol, TypeVar

from costmodel.switches.switch import MASTER_BYTES, EngineSwitch, Switches, SwitchValue, switch, switches
from topology.base.errors import InputError

WIDE_BYTES: Final = 4.0
"""Of a master weight in fp32."""


class HasSwitches(Protocol):
    """What switches are set of: the groups of a `SoftwareStack` whose fields they name."""

    @property
    def timing(self) -> Any:
        """What it runs and overlaps."""

    @property
    def memory(self) -> Any:
        """What it keeps on a GPU."""


Profile = TypeVar("Profile", bound=HasSwitches)


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
    sets |= {name: min(size, getattr(stack.memory, name)) for name, size in value.at_most.items()}
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
    if value.sets.get(MASTER_BYTES, WIDE_BYTES) < WIDE_BYTES and changed.memory.gathers_from_master:
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
    values = _fields_of(stack)
    return {
        name: value_of_fields(values, each)
        for name, each in switches().items()
        if any(value.is_priced for value in each.values.values())
    }


@functools.lru_cache(maxsize=64)
def words_of(stack: HasSwitches, matters: frozenset[str]) -> str:
    """The values of a profile's switches as one text, of those that matter.

    Args:
        stack: The profile.
        matters: What the job has, of `EngineSwitch.of`.
    """
    values = switches_of(stack)
    return ", ".join(
        f"{name} {values[name] or 'as measured'}"
        for name, each in switches().items()
        if name in values and (not each.of or each.of in matters)
    )


def value_in(stack: HasSwitches, of: EngineSwitch) -> str:
    """The value of a switch that a profile has: of those with its fields the one that states most."""
    return value_of_fields(_fields_of(stack), of)


def _fields_of(stack: HasSwitches) -> dict[str, Any]:
    """What a profile's timing and memory hold, by name."""
    groups = (stack.timing, stack.memory)
    return {each.name: getattr(group, each.name) for group in groups for each in fields(group)}


def value_of_fields(fields_of: Mapping[str, Any], of: EngineSwitch) -> str:
    """The value of a switch that fields of a profile are, by their names; "" where they are those of none."""
    values = dict(fields_of)
    values[MASTER_BYTES] = values["optimizer_bytes"] - values["moment_bytes"]
    if values["gathers_from_master"] and values[MASTER_BYTES] == values["weight_bytes"] < WIDE_BYTES:
        values[MASTER_BYTES] = 0.0  # the sharded weights themselves
    if of.modules is not None and values[of.modules.held_in]:
        return ";".join(values[of.modules.held_in])
    best, most = "", 0
    for name, value in of.values.items():
        if value.number and values.get(of.number, 0) > 1:
            return f"{name}:{values[of.number]}"
        same = all(_equal(values[each], wanted) for each, wanted in value.sets.items())
        stated = len(value.sets) + len(value.at_least) + len(value.at_most)
        same &= all(values[each] >= least for each, least in value.at_least.items())
        if stated > most and same and all(values[each] <= size for each, size in value.at_most.items()):
            best, most = name, stated
    return best


def _equal(mine: Any, wanted: Any) -> bool:
    """Whether two values of a field are one; lists of a file are tuples of a profile."""
    return bool(tuple(mine) == tuple(wanted) if isinstance(wanted, list | tuple) else mine == wanted)
