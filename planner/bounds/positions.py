"""What the slowest rank takes at least where kinds of layers alternate: its layers are consecutive.

The mean over ranks says little of a hybrid whose ranks hold other mixtures of kinds. Memory is left aside.

Legend: ``P`` ranks, ``V`` chunks of a rank, ``L`` layers, ``N`` layouts, ``K`` kinds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from costmodel.layout import LayoutTable
from costmodel.ops.shards import distinct_rows
from costmodel.pipeline.stages import Order, ranks_of_chunks, runs_of_ranks
from costmodel.training.step_time import CostColumns
from planner.stages.dynamic_program import chunk_splits
from topology.base.arrays import Vector

HALVINGS = 12
"""Steps in which the slowest rank of a pipeline without chunks is narrowed down, from one to two means."""


def slowest_by_position(costs: CostColumns, runs: Vector, order: Order, layouts: LayoutTable) -> Vector:
    """Seconds that the slowest rank of each layout takes under every split, per microbatch.

    Args:
        costs: composed costs.
        runs: layers of each kind.
        order: where they are.
        layouts: the layouts.
    """
    result = np.zeros(len(layouts))
    chosen, index = distinct_rows([layouts.pp, layouts.virtual_stages, layouts.schedule])
    for i, row in enumerate(chosen):
        members = np.flatnonzero(index == i)
        chunk_ranks = ranks_of_chunks(layouts.layout(int(row)))
        some = costs.take(members)
        if len(chunk_ranks) > int(layouts.pp[row]):
            result[members] = _of_chunks(some, runs, order, chunk_ranks)
        else:
            result[members] = _of_ranks(some, order, len(chunk_ranks))
    return result


def _of_chunks(costs: CostColumns, runs: Vector, order: Order, chunk_ranks: tuple[int, ...]) -> Vector:
    """Chunks are equal but for the ends of the model: the least of the few splits there are."""
    counts, least = [int(n) for n in runs], np.full(len(costs.every_s), np.inf)
    for chunks in chunk_splits(sum(counts), len(chunk_ranks)):
        held = np.array(runs_of_ranks(chunk_ranks, chunks, counts, order), dtype=np.float64)
        seconds = held @ costs.layer_s + costs.every_s
        seconds[chunk_ranks[0]] += costs.first_s
        seconds[chunk_ranks[-1]] += costs.last_s
        least = np.minimum(least, seconds.max(axis=0))
    return least


def _of_ranks(costs: CostColumns, order: Order, ranks: int) -> Vector:
    """One chunk per rank: ranks that fill up one after the other either hold all layers, or no split does."""
    kinds = np.repeat([kind for kind, _ in order], [length for _, length in order])
    summed_s = np.concatenate([np.zeros((1, len(costs.every_s))), np.cumsum(costs.layer_s[kinds], axis=0)])
    mean = (summed_s[-1] + ranks * costs.every_s + costs.first_s + costs.last_s) / ranks
    low, high = mean, 2 * mean
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        works = _hold_all(costs, summed_s, ranks, middle * (1 + 1e-12))
        low, high = np.where(works, low, middle), np.where(works, middle, high)
    return np.asarray(low)


def _hold_all(costs: CostColumns, summed_s: Vector, ranks: int, seconds: Vector) -> npt.NDArray[np.bool_]:
    """Whether ranks of at most this many seconds can hold all layers, whose sums end so."""
    taken = np.zeros(summed_s.shape[1])
    for rank in range(ranks):
        room = seconds - costs.every_s - (rank == 0) * costs.first_s - (rank == ranks - 1) * costs.last_s
        reached = np.maximum((summed_s <= taken + room).sum(axis=0) - 1, 0)
        taken = np.maximum(taken, np.take_along_axis(summed_s, reached[None], axis=0)[0])
    return np.asarray(taken >= summed_s[-1])
