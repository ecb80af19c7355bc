"""Layouts with their costs and their memory, before any split: what bounds and candidates read."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable
from costmodel.memory.stage import MemoryPieces, memory_pieces
from costmodel.training.constants import default_constants
from costmodel.training.raw_times import features_of
from costmodel.training.step_time import CostColumns, compose
from planner.problem import Setting
from topology.base.columns import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced(Columns):
    """Layouts with their time and memory, before any split."""

    table: LayoutTable
    costs: CostColumns
    pieces: MemoryPieces


def price(setting: Setting, table: LayoutTable, cal: Calibration) -> Priced:
    """Time and memory columns of some layouts."""
    s = setting
    costs = compose(features_of(s.model, s.cluster, s.job, s.stack, table, cal), default_constants())
    return Priced(table=table, costs=costs, pieces=memory_pieces(s.model, s.job, s.stack, table))
