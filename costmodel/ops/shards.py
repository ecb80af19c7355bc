"""Distinct ways a table of layouts cuts a layer: costs of a layer are computed once per cut and gathered."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from costmodel.job import TrainingJob
from costmodel.layout import CP_KINDS, LayoutTable, ParallelLayout
from costmodel.ops.op import ShardShape
from costmodel.parallel.axes import LAYER_AXES

_LARGEST_KEY = 2**62  # keys are int64
_LARGEST_TABLE = 2**22  # entries; sorting is cheaper beyond
_ENTRIES_PER_ROW = 64  # of a table; sorting few rows is cheaper than filling more


def shard_of(layout: ParallelLayout, sequence_length: int) -> ShardShape:
    """How one layout cuts a layer.

    >>> shard_of(ParallelLayout(tp=4, cp=2), 8192).tp
    4
    """
    return ShardShape(
        sequence_length=sequence_length,
        microbatch_size=layout.microbatch_size,
        sequence_parallel=layout.sequence_parallel,
        cp_kind=CP_KINDS.index(layout.cp_kind),
        **{name: getattr(layout, name) for name in LAYER_AXES},
    )


def unique_shards(table: LayoutTable, job: TrainingJob) -> tuple[ShardShape, npt.NDArray[np.intp]]:
    """Distinct cuts of a layer among the layouts, and for each layout the index of its own.

    Returns:
        A `ShardShape` of float arrays, one entry per distinct cut, and an index of the length of the table.

    >>> rows = [ParallelLayout(tp=2, dp=4), ParallelLayout(tp=4), ParallelLayout(tp=2, pp=4)]
    >>> table = LayoutTable.from_rows(rows)
    >>> shard, index = unique_shards(table, TrainingJob(sequence_length=8, global_batch_size=64))
    >>> shard.tp.tolist(), index.tolist()
    ([2.0, 4.0], [0, 1, 0])
    """
    columns = {
        **{name: getattr(table, name) for name in LAYER_AXES},
        "microbatch_size": table.microbatch_size,
        "sequence_parallel": table.sequence_parallel.astype(np.int64),
        "cp_kind": table.cp_kind,
    }
    first, index = distinct_rows(list(columns.values()))
    degrees = {name: column[first].astype(np.float64) for name, column in columns.items()}
    return ShardShape(sequence_length=float(job.sequence_length), **degrees), index


def distinct_rows(columns: list[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Where each distinct row of non-negative integer columns occurs, and which one each row is.

    Rows become one integer each; when those are small a table replaces the sort.
    """
    key, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        span = int(column.max(initial=0)) + 1
        if size * span > _LARGEST_KEY:
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
            size = len(key)
        key, size = key * span + column, size * span
    if size > min(_LARGEST_TABLE, _ENTRIES_PER_ROW * len(key)):
        _, first, index = np.unique(key, return_index=True, return_inverse=True)
        return first, index
    place = np.full(size, -1, dtype=np.intp)
    place[key] = np.arange(len(key))
    first = place[place >= 0]
    place[key[first]] = np.arange(len(first))
    return first, place[key]
