"""Layouts with their costs and memory, before any split: what scores, estimates and searches start from."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.case import Case
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.memory.stage import MemoryPieces, memory_pieces
from costmodel.ops.cuts import cuts_of
from costmodel.training.constants import Constants, default_constants
from costmodel.training.raw_times import Features, features_of
from costmodel.training.step_time import CostColumns, compose
from topology.base.columns import Columns

BLOCK_ROWS = 2**13
"""Layouts composed at a time: few enough that their columns stay in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced(Columns):
    """Layouts with their raw times, costs and memory."""

    table: LayoutTable
    features: Features
    costs: CostColumns
    pieces: MemoryPieces


def price_layouts(
    case: Case, table: LayoutTable, *, constants: Constants | None = None, any_sharding: bool = False
) -> Priced:
    """Time and memory of layouts before their layers are split: the one way to both.

    Args:
        case: What they are judged against.
        table: The layouts; they are taken as legal (`planner.rules.check`).
        constants: Constants of the composition, the shipped ones by default.
        any_sharding: Traffic between replicas at its least over all shard degrees.
    """
    c, work = constants or default_constants(), case.workload
    cuts = cuts_of(work, table)
    features = features_of(case, table, any_sharding=any_sharding, cuts=cuts)
    costs = CostColumns.concat(
        [compose(features.take(rows), c) for rows in row_slices(len(table), BLOCK_ROWS)]
    )
    return Priced(
        table=table,
        features=features,
        costs=costs,
        pieces=memory_pieces(work, table, cuts=cuts),
    )


_handed_on: tuple[Case, ParallelLayout, Constants, Priced] | None = None
"""The layout that was priced to split its layers, until its estimate takes it."""


def price_layout(
    case: Case, layout: ParallelLayout, *, constants: Constants | None = None, hands_on: bool = False
) -> Priced:
    """Price one layout, or take what was priced of it to split its layers.

    Args:
        case: What it is judged against.
        layout: Taken as legal (`planner.rules.check`).
        constants: Constants of the composition, the shipped ones by default.
        hands_on: Keep what is priced for the estimate of the same layout, which follows.
    """
    global _handed_on  # noqa: PLW0603  # one layout; whoever reads it takes it whole
    c = constants or default_constants()
    before, _handed_on = _handed_on, None
    if before is not None and before[0] is case and before[1] == layout and before[2] is c:
        return before[3]
    priced = price_layouts(case, LayoutTable.from_rows([layout]), constants=c)
    if hands_on:
        _handed_on = (case, layout, c, priced)
    return priced


def row_slices(rows: int, most: int) -> list[slice]:
    """Slices of at most so many rows that make up a table, at least one."""
    return [slice(start, start + most) for start in range(0, max(1, rows), most)]
