"""Cells of one row of measured runs as numbers, counts and flags, or the reason why they are none."""

from __future__ import annotations

from costmodel.accuracy.csv_table import Row


class UnsupportedRunError(Exception):
    """A row that does not say enough, or something the cost model cannot express; the message says which."""


def number(row: Row, name: str, default: float | None = None) -> float:
    """A positive finite number; `default` where the cell is empty."""
    text = row.get(name, "")
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf") or (value == 0 and default != 0):
        raise UnsupportedRunError(f"{name} = {text!r} is not a positive number")
    return value


def count(row: Row, name: str, default: int | None = None) -> int:
    """A positive whole number; `default` where the cell is empty."""
    value = number(row, name, None if default is None else float(default))
    if value != int(value):
        raise UnsupportedRunError(f"{name} = {row.get(name)} is not a whole number")
    return int(value)


def flag(row: Row, name: str, *, default: bool) -> bool:
    """A yes or no."""
    text = row.get(name, "").lower()
    return default if not text else text in ("1", "1.0", "true", "yes")
