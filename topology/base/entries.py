"""Entries of the shipped data files, one by one: a mistake names the entry, its key and what helps."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from topology.base.converter import MOST_MISTAKES, converter
from topology.base.decode import problems_of
from topology.base.errors import InputError, shown
from topology.base.names import suggest

T = TypeVar("T")
MISSING = "missing key "
"""How `problems_of` begins what it says of a key that is not there."""


def structured_entries(
    document: Mapping[str, Any],
    table: str,
    as_type: type[T],
    file: str,
    *,
    key: str = "name",
    helps: Mapping[str, str] | None = None,
) -> tuple[T, ...]:
    """Return the entries ``[[table]]`` of a document as records.

    Args:
        document: Content of the file.
        table: Name of its tables.
        as_type: What an entry describes.
        file: Name of the file, for messages.
        key: Which key of an entry is its name.
        helps: What to write where a key is missing, by key.
    """
    given = document.get(table)
    if not isinstance(given, list):
        has = f"it has {', '.join(document) or 'nothing'}"
        raise InputError(f"{file} has no entries [[{table}]]", has, f"add [[{table}]] tables to {file}")
    result = []
    for number, entry in enumerate(given, start=1):
        try:
            result.append(converter().structure(entry, as_type))
        except Exception as error:  # noqa: BLE001 - whatever a record says of its fields
            which = f"{table} {_named(entry, key, number)} of {file}"
            raise _unreadable(which, problems_of(error), helps or {}) from None
    return tuple(result)


def referred(entries: Mapping[str, T], name: str, *, by: str, table: str, file: str) -> T:
    """Return the entry that another one names, or say which file lacks it.

    Args:
        entries: By name.
        name: What is named.
        by: Who names it, and with which key: ``gpu "l4" of gpus.toml names machine``.
        table: What an entry is.
        file: Where entries are.
    """
    if name in entries:
        return entries[name]
    close = suggest(name, tuple(entries), count=1)
    instead = f", or name {close[0]}" if close else ""
    raise InputError(
        what=f"{by} = {shown(name)}, which is not there",
        cause=f"{file} has no [[{table}]] with name = {shown(name)}",
        fix=f"add that {table} to {file}{instead}",
    )


def _named(entry: object, key: str, number: int) -> str:
    """Name of an entry in quotes, or its number where it has none."""
    name = entry.get(key) if isinstance(entry, Mapping) else None
    return f'"{name}"' if isinstance(name, str) else f"number {number}"


def _unreadable(which: str, problems: Sequence[str], helps: Mapping[str, str]) -> InputError:
    """The three lines of an entry that is no record."""
    missing = [each.removeprefix(MISSING) for each in problems if each.startswith(MISSING)]
    explained = [f"{name}: {helps[name]}" for name in missing if name in helps]
    if explained:
        fix = f"add {'; '.join(explained)}"
    elif missing:
        fix = f"add {', '.join(missing)} to it, as the other entries have"
    else:
        fix = "correct these keys and values, as the other entries have them"
    return InputError(f"{which} cannot be read", "; ".join(problems[:MOST_MISTAKES]), fix)
