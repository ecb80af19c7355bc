"""Which layers sit where: pipeline ranks, the chunks of the model each of them holds, and the runs inside.

A rank with several virtual stages holds several chunks of consecutive layers. Its layers are spread over its
chunks as evenly as possible; when they do not divide, the extra ones go to its earlier chunks, except on
the rank that holds the start of the model, whose first chunk already carries the embedding.

Legend: ``P`` pipeline ranks, ``V`` chunks per rank, chunk ``c`` of 0…P·V−1 in model order.
"""

from __future__ import annotations

from costmodel.layout import ParallelLayout

V_SHAPED = ("zbv", "dualpipev")
"""Schedules whose second chunks run back from the last rank to the first."""


def ranks_of_chunks(layout: ParallelLayout) -> tuple[int, ...]:
    """Pipeline rank of every chunk, in model order.

    >>> ranks_of_chunks(ParallelLayout(pp=3, virtual_stages=2, schedule="interleaved"))
    (0, 1, 2, 0, 1, 2)
    >>> ranks_of_chunks(ParallelLayout(pp=3, virtual_stages=2, schedule="zbv"))
    (0, 1, 2, 2, 1, 0)
    """
    forward = tuple(range(layout.pp))
    if layout.schedule in V_SHAPED:
        return forward + forward[::-1]
    return forward * layout.virtual_stages


def chunks_of_rank(chunk_ranks: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Chunks of one rank in the order in which they take its extra layers."""
    mine = tuple(chunk for chunk, owner in enumerate(chunk_ranks) if owner == rank)
    return mine[::-1] if mine[0] == 0 else mine


def layers_of_chunks(chunk_ranks: tuple[int, ...], layers_of_rank: tuple[int, ...]) -> tuple[int, ...]:
    """Layers of every chunk, in model order, when ranks hold these totals.

    >>> layers_of_chunks((0, 1, 0, 1), (3, 4))
    (1, 2, 2, 2)
    """
    sizes = [0] * len(chunk_ranks)
    for rank, layers in enumerate(layers_of_rank):
        mine = chunks_of_rank(chunk_ranks, rank)
        each, extra = divmod(layers, len(mine))
        for position, chunk in enumerate(mine):
            sizes[chunk] = each + (position < extra)
    return tuple(sizes)


def runs_of_ranks(
    chunk_ranks: tuple[int, ...], chunk_layers: tuple[int, ...], runs: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Layers of each run on each rank, shape (ranks, runs), when consecutive chunks hold these layers.

    >>> runs_of_ranks((0, 1), (3, 3), (1, 5))
    ((1, 2), (0, 3))
    """
    counts = [[0] * len(runs) for _ in range(max(chunk_ranks) + 1)]
    ends = [sum(runs[: k + 1]) for k in range(len(runs))]
    start = 0
    for chunk, layers in enumerate(chunk_layers):
        for k, end in enumerate(ends):
            inside = min(start + layers, end) - max(start, end - runs[k])
            counts[chunk_ranks[chunk]][k] += max(0, inside)
        start += layers
    return tuple(tuple(row) for row in counts)
