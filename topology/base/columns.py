"""Rows of many things as columns: the base of every dataclass of arrays with one entry per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = npt.NDArray[Any] | slice
"""Which rows: an index, a mask or a slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns of a table: every array ends in the axis of the rows, a plain number holds for every row.

    A field may also be columns itself, or a tuple of any of these.

    >>> @dataclass(frozen=True, slots=True, kw_only=True)
    ... class Boxes(Columns):
    ...     height: npt.NDArray[np.int64]
    ...     sides: npt.NDArray[np.int64]
    ...     walls: int
    >>> boxes = Boxes(height=np.array([5, 6, 7]), sides=np.array([[1, 2, 3], [4, 5, 6]]), walls=4)
    >>> boxes.take(np.array([2, 0]))
    Boxes(height=array([7, 5]), sides=array([[3, 1],
           [6, 4]]), walls=4)
    """

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(cls.__dataclass_fields__)

    def by_name(self) -> dict[str, Any]:
        """Columns by their names."""
        return {name: getattr(self, name) for name in self.names()}

    def take(self, rows: Rows) -> Self:
        """Only these rows."""
        if not isinstance(rows, slice) and rows.dtype == bool:  # counted once, not again for every column
            rows = np.flatnonzero(rows)
        return type(self)(**{name: _taken(getattr(self, name), rows) for name in self.names()})

    @classmethod
    def concat(cls, tables: Sequence[Self]) -> Self:
        """Rows of several tables of arrays, one after the other."""
        if len(tables) == 1:
            return tables[0]
        return cls(**{name: _joined([getattr(table, name) for table in tables]) for name in cls.names()})

    def __len__(self) -> int:
        """Count the rows: those of the first column that is an array."""
        return next((rows for name in self.names() if (rows := _rows(getattr(self, name)))), 0)


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values that occur, in rising order; `np.unique` would import masked arrays for it.

    >>> distinct(np.array([[3, 1], [1, 2]]))
    array([1, 2, 3])
    """
    rising = np.sort(values, axis=None)
    first = np.ones(len(rising), dtype=bool)
    np.not_equal(rising[1:], rising[:-1], out=first[1:])
    return rising[first]


def _taken(value: Any, rows: Rows) -> Any:
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return value
        return value[..., rows] if isinstance(rows, slice) else value.take(rows, axis=-1)
    if isinstance(value, Columns):
        return value.take(rows)
    return tuple(_taken(item, rows) for item in value) if isinstance(value, tuple) else value


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Columns):
        return type(first).concat(values)
    if isinstance(first, tuple):
        return tuple(_joined(items) for items in zip(*values, strict=True))
    return np.concatenate(values, axis=-1)


def _rows(value: Any) -> int:
    if isinstance(value, tuple):
        return next((rows for item in value if (rows := _rows(item))), 0)
    if isinstance(value, Columns):
        return len(value)
    return int(value.shape[-1]) if isinstance(value, np.ndarray) and value.ndim else 0
