"""Plain values (of TOML or JSON) as typed ones: no extra keys, no silent rounding, every mistake told."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from topology.base.errors import shown
from topology.base.units import parse_quantity

if TYPE_CHECKING:
    from cattrs import Converter

MOST_MISTAKES = 20
"""Mistakes that are listed; a file with more is another kind of file."""
LARGEST_NUMBER = 1e30
"""Of any quantity in SI units; floating-point operations of the longest training stay below it."""
MOST_KEYS = 10_000
"""Keys of one table of numbers by name; no description has a hundred."""


@lru_cache(maxsize=1)
def converter() -> "Converter":
    """Return the strict converter: no extra keys, no silent rounding, only finite numbers."""
    from cattrs import Converter
    from cattrs.cols import is_mapping, mapping_structure_factory

    strict = Converter(forbid_extra_keys=True)
    for kind, check in _CHECKS.items():
        strict.register_structure_hook(kind, _ignoring_type(check))
        strict.register_structure_hook(kind | None, _ignoring_type(_or_none(check)))
    strict.register_structure_hook_factory(
        _is_list_like, lambda t, c: _only(list | tuple, "a list", _list_hook(t, c))
    )
    strict.register_structure_hook_factory(
        is_mapping, lambda t, c: _only(Mapping, "a table", _few_keys(mapping_structure_factory(t, c)))
    )
    strict.register_structure_hook_factory(
        is_dataclass, lambda t, c: _only(Mapping, "a table", _record_hook(t, c))
    )
    return strict


def _is_list_like(as_type: object) -> bool:
    return get_origin(as_type) is tuple and get_args(as_type)[1:] == (...,)


def _only(kinds: Any, name: str, hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a hook that refuses anything but `kinds`, so that text is never taken apart letter by letter."""

    def checked(value: Any, as_type: Any) -> Any:
        if not isinstance(value, kinds):
            raise TypeError(f"{shown(value)} is not {name}")
        return hook(value, as_type)

    return checked


def _record_hook(as_type: Any, converter: "Converter") -> Callable[[Any, Any], Any]:
    """Return a hook that structures the fields of a dataclass, and tells every mistake with its place.

    `cattrs.gen` writes code for it, which takes longer to compile than to run on records that are read once.
    """
    from cattrs import AttributeValidationNote, ClassValidationError, ForbiddenExtraKeysError

    types = get_type_hints(as_type)
    hooks = {
        field.name: (types[field.name], converter.get_structure_hook(types[field.name]), _is_required(field))
        for field in fields(as_type)
        if field.init
    }
    title = f"While structuring {as_type.__name__}"

    def structured(entries: Any, _: Any) -> Any:
        done: dict[str, Any] = {}
        wrong: list[Exception] = []
        for name, (kind, hook, required) in hooks.items():
            if not required and name not in entries:
                continue
            try:
                done[name] = hook(entries[name], kind)
            except Exception as error:  # noqa: BLE001 - whatever a field raises is told with its place
                error.add_note(AttributeValidationNote(f"at field {name}", name, kind))
                wrong.append(error)
        if unknown := entries.keys() - hooks.keys():
            wrong.append(ForbiddenExtraKeysError("", as_type, unknown))
        if wrong:
            raise ClassValidationError(title, wrong, as_type)
        try:
            return as_type(**done)
        except Exception as error:  # whatever a record says of its fields together
            raise ClassValidationError(title, [error], as_type) from error

    return structured


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _list_hook(as_type: Any, converter: "Converter") -> Callable[[Any, Any], Any]:
    """Return a hook that structures the entries of a list, and stops after `MOST_MISTAKES` wrong ones."""
    from cattrs import IterableValidationError, IterableValidationNote

    kind = get_args(as_type)[0]
    hook = converter.get_structure_hook(kind)

    def structured(entries: Any, _: Any) -> tuple[Any, ...]:
        done: list[Any] = []
        wrong: list[Exception] = []
        for index, entry in enumerate(entries):
            try:
                done.append(hook(entry, kind))
            except Exception as error:  # noqa: BLE001 - whatever an entry raises is told with its place
                error.add_note(IterableValidationNote(f"at index {index}", index, kind))
                wrong.append(error)
                if len(wrong) == MOST_MISTAKES:
                    break
        if wrong:
            raise IterableValidationError("wrong entries", wrong, as_type)
        return tuple(done)

    return structured


def _few_keys(hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a hook that refuses a table of more keys than any description has."""

    def checked(value: Any, as_type: Any) -> Any:
        if len(value) > MOST_KEYS:
            raise ValueError(f"it has {len(value):,} keys, more than {MOST_KEYS:,}")
        return hook(value, as_type)

    return checked


def _or_none(check: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: None if value is None else check(value)


def _ignoring_type(check: Callable[[object], object]) -> Callable[[object, type], object]:
    return lambda value, _: check(value)


def _integer(value: object) -> int:
    """Return a whole number; 8.0 is one, 7.5, true and "8" are not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        raise TypeError(f"{shown(value)} is not a whole number")
    if abs(value) > 2**62:
        raise ValueError(f"{shown(value)} is too large")
    return int(value)


def _number(value: object) -> float:
    """Return a finite number; a string may carry a unit ("400 Gbit/s")."""
    if isinstance(value, str):
        return parse_quantity(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{shown(value)} is not a number")
    if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
        raise ValueError(f"{shown(value)} is not a finite number of sensible size")
    return float(value)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is not text")
    if not value.isascii():
        value.encode()  # half of a surrogate pair cannot be written anywhere: a UnicodeError, which is told
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{shown(value)} is neither true nor false")
    return value


_CHECKS: Mapping[type, Callable[[object], object]] = {
    int: _integer,
    float: _number,
    str: _string,
    bool: _boolean,
}
