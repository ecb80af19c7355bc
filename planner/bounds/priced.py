"""Layouts with their costs and their memory, before any split: what bounds and candidates read."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable
from costmodel.memory.stage import MemoryPieces, memory_pieces
from costmodel.training.constants import default_constants
from costmodel.training.raw_times import features_of
from costmodel.training.step_time import CostColumns, compose
from planner.problem import Setting

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Layouts with their time and memory, before any split."""

    table: LayoutTable
    costs: CostColumns
    pieces: MemoryPieces


def price(setting: Setting, table: LayoutTable, cal: Calibration) -> Priced:
    """Time and memory columns of some layouts."""
    s = setting
    costs = compose(features_of(s.model, s.cluster, s.job, s.stack, table, cal), default_constants())
    return Priced(table=table, costs=costs, pieces=memory_pieces(s.model, s.job, s.stack, table))


def rows_of(value: T, index: npt.NDArray[Any], rows: int) -> T:
    """The same columns for some rows: arrays whose last axis counts rows are indexed, all else is kept."""
    if isinstance(value, np.ndarray):
        return value[..., index] if value.ndim and value.shape[-1] == rows else value  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(rows_of(item, index, rows) for item in value)  # type: ignore[return-value]
    if isinstance(value, LayoutTable):
        return value.take(index)  # type: ignore[return-value]
    if is_dataclass(value):
        changed = {f.name: rows_of(getattr(value, f.name), index, rows) for f in fields(value)}
        return replace(value, **changed)  # type: ignore[type-var]
    return value
