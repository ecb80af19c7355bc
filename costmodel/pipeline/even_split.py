"""The even split: how layers spread over pipeline ranks when nobody has decided better.

Layers spread as evenly as possible. Extra ones go to middle ranks, the later the better (they keep fewer
microbatches in flight), then to the rank of the embedding, and to the rank of the head last of all: 126
layers on 8 ranks are 15·1 + 16·6 + 15·1, as published 405B runs have it. Ranks with several chunks hold
equal ones but for the first and the last of the model (`costmodel.pipeline.stages`). Modules that predict
further tokens take places of layers in the last chunk, which has what places are left empty, too: 61 layers
and one module on 16 ranks are 15·4 + 1, as published DeepSeek-V3 runs have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.layout import SCHEDULES, LayoutTable, ParallelLayout
from costmodel.ops.shards import distinct_rows
from costmodel.pipeline.schedules import RECORDS
from costmodel.pipeline.stage_costs import StageSplit
from costmodel.pipeline.stages import (
    Order,
    ends_shortage,
    layers_of_chunks,
    ranks_of_chunks,
    runs_of_ranks,
    shortage,
)
from topology.base.arrays import Vector
from topology.base.columns import Columns


def even_split(
    runs: Sequence[int], layout: ParallelLayout, order: Order = (), modules: int = 0
) -> StageSplit:
    """Layers of each kind on each rank, as even as possible; recomputed if the layout says ``full``.

    Args:
        runs: Layers of each kind.
        layout: How the job is split; pp, virtual_stages, schedule and recompute are read.
        order: Where they are, if not one kind after the other.
        modules: Modules that predict further tokens, after the last layer.

    >>> even_split((10,), ParallelLayout(pp=4)).layers_of_stage
    ((2,), (3,), (3,), (2,))
    >>> even_split((61,), ParallelLayout(pp=4), modules=1).layers_of_stage
    ((16,), (16,), (16,), (13,))
    """
    counts = runs_of_ranks(*_chunks(layout, sum(runs), modules), runs, order)
    recomputed = tuple(sum(row) if layout.recompute == "full" else 0 for row in counts)
    return StageSplit(layers_of_stage=counts, recompute_of_stage=recomputed)


def _chunks(layout: ParallelLayout, num_layers: int, modules: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Rank and layers of every chunk."""
    chunk_ranks = ranks_of_chunks(layout)
    if modules and (beside := _beside_modules(num_layers, len(chunk_ranks), modules)):
        return chunk_ranks, beside
    P, lack = layout.pp, ends_shortage(num_layers, len(chunk_ranks))
    if len(chunk_ranks) > P and lack is not None:
        each, _ = shortage(num_layers, len(chunk_ranks))
        return chunk_ranks, (each - lack[0], *(each,) * (len(chunk_ranks) - 2), each - lack[1])
    last = () if RECORDS[layout.schedule].v_shaped or P == 1 else (P - 1,)
    preferred = [*range(P - 1 - len(last), 0, -1), 0, *last]
    layers = [num_layers // P] * P
    for rank in preferred[: num_layers % P]:
        layers[rank] += 1
    return chunk_ranks, layers_of_chunks(chunk_ranks, tuple(layers))


def _beside_modules(num_layers: int, chunks: int, modules: int) -> tuple[int, ...]:
    """Layers of every chunk where modules take places of the last; none if that leaves it fewer than none.

    Source: ``set_deepseek_v3_pipeline_model_parallel_layout`` of Megatron-Bridge 0.6.2, ``Et|(tt|)*30mL``.
    """
    each, missing = shortage(num_layers + modules, chunks)
    of_last = min(missing, each - modules)
    of_first = missing - of_last
    if chunks == 1 or of_last < 0 or of_first >= each:
        return ()
    return (each - of_first, *(each,) * (chunks - 2), each - of_last - modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTypes(Columns):
    """Distinct kinds of pipeline rank under the even split of every layout.

    Attributes:
        layers: Layers of each run, shape (types, runs, layouts).
        ranks: How many ranks are of this type (0 pads), shape (types, layouts).
        first: 1 if the type holds the embedding, shape (types, layouts).
        last: 1 if it holds the head, shape (types, layouts).
        stage: Its earliest rank, which keeps most microbatches in flight, shape (types, layouts).
    """

    layers: Vector
    ranks: Vector
    first: Vector
    last: Vector
    stage: Vector


def rank_types(
    runs: Sequence[int],
    table: LayoutTable,
    order: Order = (),
    modules: int = 0,
    chunk_layers: tuple[int, ...] = (),
) -> RankTypes:
    """Kinds of pipeline rank of every layout; layouts with the same pipeline share them.

    Args:
        runs: Layers of each kind.
        table: The layouts.
        order: Where they are, if not one kind after the other.
        modules: Modules that predict further tokens, after the last layer.
        chunk_layers: Layers of every chunk in model order, where they are known not to be even.
    """
    chosen, index = distinct_rows([table.pp, table.virtual_stages, table.schedule])
    pipelines = [_types_of(runs, _pipeline(table, int(row)), order, modules, chunk_layers) for row in chosen]
    most = max(len(types) for types in pipelines)
    width = len(runs) + 4
    columns = np.zeros((len(pipelines), most, width))
    for i, types in enumerate(pipelines):
        columns[i, : len(types)] = types
        columns[i, len(types) :] = [*types[0][:-4], 0, *types[0][-3:]]
    spread = np.moveaxis(columns[index], 0, -1)
    return RankTypes(
        layers=spread[:, :-4],
        ranks=spread[:, -4],
        first=spread[:, -3],
        last=spread[:, -2],
        stage=spread[:, -1],
    )


def _pipeline(table: LayoutTable, row: int) -> ParallelLayout:
    """What the even split of a row depends on."""
    return ParallelLayout(
        pp=int(table.pp[row]),
        virtual_stages=int(table.virtual_stages[row]),
        schedule=SCHEDULES[int(table.schedule[row])],
    )


def _types_of(
    runs: Sequence[int],
    layout: ParallelLayout,
    order: Order,
    modules: int,
    chunk_layers: tuple[int, ...],
) -> list[list[float]]:
    """Rows of layers of each run, number of ranks, first, last, earliest rank."""
    counts = even_split(runs, layout, order, modules).layers_of_stage
    if chunk_layers:
        counts = runs_of_ranks(ranks_of_chunks(layout), chunk_layers, runs, order)
    head_rank = 0 if RECORDS[layout.schedule].v_shaped else layout.pp - 1
    types: dict[tuple[tuple[int, ...], bool, bool], list[int]] = {}
    for rank, row in enumerate(counts):
        types.setdefault((row, rank == 0, rank == head_rank), []).append(rank)
    return [
        [*row, len(ranks), float(first), float(last), ranks[0]] for (row, first, last), ranks in types.items()
    ]
