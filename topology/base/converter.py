"""Plain values (of TOML or JSON) as typed ones: no extra keys, no silent rounding, every mistake told.

Types are those that descriptions are made of: dataclasses, tuples, mappings by name, literals, numbers, text,
and any of these or None. A *reader* makes a typed value of a plain one.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from topology.base.errors import InputError, shortened, shown
from topology.base.names import suggest
from topology.base.units import parse_quantity

MOST_MISTAKES = 20
"""Mistakes that are listed; a file with more is another kind of file."""
LARGEST_NUMBER = 1e30
"""Of any quantity in SI units; floating-point operations of the longest training stay below it."""
MOST_KEYS = 10_000
"""Keys of one table of numbers by name; no description has a hundred."""

Reader: TypeAlias = Callable[[Any], Any]


class Mistake(NamedTuple):
    """What is said of a place, before and after the path to it: ``missing key `` nodes[1].count."""

    path: str
    after: str = ""
    before: str = ""

    def __str__(self) -> str:
        """Say it."""
        return f"{self.before}{self.path.removeprefix('.') or 'top level'}{self.after}"


class MistakesError(Exception):
    """A value with mistakes, each with the path to it."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        """Keep them all."""
        super().__init__()
        self.mistakes = tuple(mistakes)


def mistakes_of(error: Exception, step: str = "") -> tuple[Mistake, ...]:
    """Return the mistakes that an error stands for, one step further from their place."""
    if isinstance(error, MistakesError):
        return tuple(mistake._replace(path=step + mistake.path) for mistake in error.mistakes)
    said = f"{error.what}: {error.cause}" if isinstance(error, InputError) else str(error)
    return (Mistake(step, f": {said}"),)


def plain(value: Any) -> Any:
    """Return a typed value as plain dicts, lists, strings and numbers."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [entry if isinstance(entry, int | float | str) else plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


@cache
def reader_of(kind: Any) -> Reader:
    """Return what reads plain values as this type."""
    if kind in _CHECKS:
        return _CHECKS[kind]
    if is_dataclass(kind):
        return _only(Mapping, "a table", _record(kind))
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        read = _list(reader_of(args[0])) if args[1:] == (...,) else _row([reader_of(arg) for arg in args])
        return _only(list | tuple, "a list", read)
    if origin is UnionType and args[1:] == (NoneType,):
        return _or_none(reader_of(args[0]))
    if origin is Literal:
        return _one_of(args)
    if origin is Mapping:
        return _only(Mapping, "a table", _by_name(reader_of(args[1])))
    raise NotImplementedError(f"no description has a field of type {kind}")


def _only(kinds: Any, name: str, read: Reader) -> Reader:
    """Return a reader that refuses anything but `kinds`, so that no text is taken apart by letters."""

    def checked(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise TypeError(f"{shown(value)} is not {name}")
        return read(value)

    return checked


def _record(kind: Any) -> Reader:
    """Return a reader of the fields of a dataclass."""
    types = get_type_hints(kind)
    readers = {f.name: (reader_of(types[f.name]), _is_required(f)) for f in fields(kind) if f.init}

    def read(entries: Any) -> Any:
        done: dict[str, Any] = {}
        wrong: list[Mistake] = []
        for name, (reader, required) in readers.items():
            if name not in entries:
                wrong += [Mistake(f".{name}", before="missing key ")] if required else []
                continue
            try:
                done[name] = reader(entries[name])
            except Exception as error:  # noqa: BLE001 - whatever a field raises is told with its place
                wrong += mistakes_of(error, f".{name}")
        for key in sorted(entries.keys() - readers.keys())[:MOST_MISTAKES]:
            close = suggest(key, list(readers), count=1)
            guess = f" (did you mean {close[0]}?)" if close else ""
            wrong.append(Mistake(f".{shortened(key)}", guess, "unknown key "))
        if wrong:
            raise MistakesError(wrong)
        try:
            return kind(**done)
        except Exception as error:  # whatever a record says of its fields together
            raise MistakesError(mistakes_of(error)) from error

    return read


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _list(reader: Reader) -> Reader:
    """Return a reader of the entries of a list, which stops after `MOST_MISTAKES` wrong ones."""
    return lambda entries: tuple(_each((f"[{at}]", entry, reader) for at, entry in enumerate(entries)))


def _row(readers: list[Reader]) -> Reader:
    """Return a reader of lists of one length, each entry by its own reader."""

    def read(entries: Any) -> Any:
        if len(entries) != len(readers):
            raise ValueError(f"{shown(entries)} has {len(entries)} entries instead of {len(readers)}")
        pairs = enumerate(zip(entries, readers, strict=True))
        return tuple(_each((f"[{at}]", entry, reader) for at, (entry, reader) in pairs))

    return read


def _by_name(reader: Reader) -> Reader:
    """Return a reader of tables of one kind of entry, which refuses more keys than any description has."""

    def read(table: Any) -> Any:
        if len(table) > MOST_KEYS:
            raise ValueError(f"it has {len(table):,} keys, more than {MOST_KEYS:,}")
        steps = [f".{shortened(key)}" for key in table]
        keys = _each((step, key, _string) for step, key in zip(steps, table, strict=True))
        entries = zip(steps, table.values(), strict=True)
        return dict(zip(keys, _each((step, entry, reader) for step, entry in entries), strict=True))

    return read


def _each(entries: Iterable[tuple[str, Any, Reader]]) -> list[Any]:
    """Return entries as their readers read them, given with the step to each."""
    done: list[Any] = []
    wrong: list[Mistake] = []
    for step, entry, reader in entries:
        try:
            done.append(reader(entry))
        except Exception as error:  # noqa: BLE001 - whatever an entry raises is told with its place
            wrong += mistakes_of(error, step)
            if len(wrong) >= MOST_MISTAKES:
                break
    if wrong:
        raise MistakesError(wrong)
    return done


def _one_of(values: tuple[Any, ...]) -> Reader:
    """Return a reader of some words."""

    def read(value: Any) -> Any:
        if value not in values:
            raise ValueError(f"{shown(value)} is none of {', '.join(map(str, values))}")
        return value

    return read


def _or_none(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


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


_CHECKS: Mapping[Any, Reader] = {
    int: _integer,
    float: _number,
    str: _string,
    bool: _boolean,
    Any: lambda value: value,
}
