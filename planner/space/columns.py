"""Tables under construction: crossing columns, keeping rows, and the values pins allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from costmodel.layout import AXIS_ORDERS, CP_KINDS, RECOMPUTES, SCHEDULES

Integers = npt.NDArray[np.int64]
Draft = dict[str, npt.NDArray[Any]]
"""A table under construction: what columns it has changes, so they are entries, not fields."""

CODES: Mapping[str, tuple[Any, ...]] = {
    "schedule": SCHEDULES,
    "recompute": RECOMPUTES,
    "cp_kind": CP_KINDS,
    "axis_order": AXIS_ORDERS,
}


def coded(name: str, values: Iterable[Any]) -> list[int]:
    """Codes of categorical values."""
    return [CODES[name].index(value) for value in values]


def pinned(pins: Mapping[str, Any], name: str, otherwise: Iterable[Any]) -> list[Any]:
    """The pinned value of a field as the only choice, or all of them; categorical values as codes."""
    if name not in pins:
        return list(otherwise)
    return coded(name, [pins[name]]) if name in CODES else [pins[name]]


def cross(table: Draft, name: str, values: Iterable[Any]) -> Draft:
    """Every row with every value of one more column."""
    choices = np.array(list(values))
    rows = len(next(iter(table.values())))
    crossed = {key: np.repeat(column, len(choices)) for key, column in table.items() if key != name}
    crossed[name] = np.tile(choices, rows)
    return crossed


def cross_by(table: Draft, key: Integers, options: Callable[[int], Draft]) -> Draft:
    """Every row with every option that belongs to its key; options replace columns, which must exist."""
    if len(key) == 0:
        return table
    order = np.argsort(key, kind="stable")
    values, starts = np.unique(key[order], return_index=True)
    parts: list[Draft] = []
    for value, rows in zip(values, np.split(order, starts[1:]), strict=True):
        chosen = options(int(value))
        count = len(next(iter(chosen.values())))
        part = {name: np.repeat(column[rows], count) for name, column in table.items()}
        parts.append(part | {name: np.tile(column, len(rows)) for name, column in chosen.items()})
    if not parts:
        return table
    return {name: np.concatenate([part[name] for part in parts]) for name in table}


def where(table: Draft, keep: npt.NDArray[Any]) -> Draft:
    """Rows chosen by a mask or an index."""
    return {name: column[keep] for name, column in table.items()}
