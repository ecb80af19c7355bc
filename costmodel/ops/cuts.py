"""Distinct cuts of layers among layouts, with their operations: what times and memory both read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodel.case import Workload
from costmodel.layout import LayoutTable
from costmodel.models.spec import layer_runs
from costmodel.ops.adapters import adapted
from costmodel.ops.layer import embedding_ops, head_dtype, head_ops, layer_ops, module_ops
from costmodel.ops.op import Op, ShardShape
from costmodel.ops.shards import unique_shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Layouts that cut a layer the same way share one evaluation of the per-layer table.

    Attributes:
        shard: The distinct cuts, one entry each.
        of_layout: For every layout, the index of its own.
        parts: Operations of a layer of every run, of a module that predicts a further token where the job
            trains any, then of the embedding, then of the head; by cut.
    """

    shard: ShardShape
    of_layout: npt.NDArray[np.intp]
    parts: tuple[tuple[Op, ...], ...]


def cuts_of(work: Workload, table: LayoutTable) -> Cuts:
    """The distinct cuts of a table of layouts."""
    shard, of_layout = unique_shards(table, work.job)
    return Cuts(shard=shard, of_layout=of_layout, parts=ops_of_parts(work, shard))


def ops_of_parts(work: Workload, shard: ShardShape) -> tuple[tuple[Op, ...], ...]:
    """Operations of a layer of every run, of a module if any is trained, of the embedding, of the head."""
    job, stack = work.job, work.stack
    return (
        *(layer_ops(work, run.kind, shard) for run in layer_runs(work.model)),
        *(() if not job.mtp_layers else (module_ops(work, shard),)),
        adapted(embedding_ops(work, shard), None, job, stack),
        adapted(head_ops(work.model, stack, shard, head_dtype(job, stack)), None, job, stack),
    )
