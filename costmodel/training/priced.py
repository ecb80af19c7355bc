"""Layouts with their costs and memory, before any split: what scores, estimates and searches start from."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.job import TrainingJob
from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable
from costmodel.memory.stage import MemoryPieces, memory_pieces
from costmodel.models.spec import ModelSpec
from costmodel.ops.cuts import cuts_of
from costmodel.stack import SoftwareStack
from costmodel.training.constants import Constants, default_constants
from costmodel.training.raw_times import Features, features_of
from costmodel.training.step_time import CostColumns, compose
from topology.base.columns import Columns
from topology.cluster import Cluster

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
    model: ModelSpec,
    cluster: Cluster,
    job: TrainingJob,
    stack: SoftwareStack,
    table: LayoutTable,
    cal: Calibration,
    *,
    constants: Constants | None = None,
    any_sharding: bool = False,
) -> Priced:
    """Time and memory of layouts before their layers are split: the one way to both.

    Args:
        model: The model.
        cluster: Where it runs.
        job: What is asked.
        stack: The training engine.
        table: The layouts; they are taken as legal (`planner.rules.check`).
        cal: Kernel and collective tables.
        constants: Constants of the composition, the shipped ones by default.
        any_sharding: Traffic between replicas at its least over all shard degrees.
    """
    c, cuts = constants or default_constants(), cuts_of(model, job, stack, table)
    features = features_of(model, cluster, job, stack, table, cal, any_sharding=any_sharding, cuts=cuts)
    costs = CostColumns.concat([compose(features.take(rows), c) for rows in blocks(len(table), BLOCK_ROWS)])
    return Priced(
        table=table,
        features=features,
        costs=costs,
        pieces=memory_pieces(model, job, stack, table, cuts=cuts),
    )


def blocks(rows: int, most: int) -> list[slice]:
    """Slices of at most so many rows that make up a table, at least one."""
    return [slice(start, start + most) for start in range(0, max(1, rows), most)]
