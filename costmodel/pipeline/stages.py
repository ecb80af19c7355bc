"""Which layers sit where: pipeline ranks, the chunks of the model each of them holds, and the runs inside.

A rank with several virtual stages holds several chunks of consecutive layers. Chunks are equal but for the
first and the last of the model, which also carry the embedding and the head and may be shorter, down to no
layer at all where nothing else divides the model: ranks hand microbatches on chunk by chunk, so one long
chunk among short ones stalls them all. Numbers of layers that allow no such split are spread as evenly as
possible.

Legend: ``P`` pipeline ranks, ``V`` chunks per rank, chunk ``c`` of 0…P·V−1 in model order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from costmodel.layout import ParallelLayout
from costmodel.pipeline.schedules import RECORDS
from topology.base.arrays import Quantity


def ranks_of_chunks(layout: ParallelLayout) -> tuple[int, ...]:
    """Pipeline rank of every chunk, in model order.

    >>> ranks_of_chunks(ParallelLayout(pp=3, virtual_stages=2, schedule="interleaved"))
    (0, 1, 2, 0, 1, 2)
    >>> ranks_of_chunks(ParallelLayout(pp=3, virtual_stages=2, schedule="zbv"))
    (0, 1, 2, 2, 1, 0)
    """
    forward = tuple(range(layout.pp))
    if RECORDS[layout.schedule].v_shaped:
        return forward + forward[::-1]
    return forward * layout.virtual_stages


def chunks_of_rank(chunk_ranks: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Chunks of one rank in the order in which they take its extra layers."""
    mine = tuple(chunk for chunk, owner in enumerate(chunk_ranks) if owner == rank)
    return mine[::-1] if mine[0] == 0 else mine


def layers_of_chunks(chunk_ranks: tuple[int, ...], layers_of_rank: tuple[int, ...]) -> tuple[int, ...]:
    """Layers of every chunk, in model order, when ranks hold these totals.

    >>> layers_of_chunks((0, 1, 0, 1), (5, 6))
    (2, 3, 3, 3)
    >>> layers_of_chunks((0, 1, 2, 0, 1, 2), (3, 4, 5))
    (1, 2, 3, 2, 2, 2)
    """
    equal = _equal_chunks(chunk_ranks, layers_of_rank)
    if equal is not None:
        return equal
    sizes = [0] * len(chunk_ranks)
    for rank, layers in enumerate(layers_of_rank):
        mine = chunks_of_rank(chunk_ranks, rank)
        each, extra = divmod(layers, len(mine))
        for position, chunk in enumerate(mine):
            sizes[chunk] = each + (position < extra)
    return tuple(sizes)


def shortage(num_layers: int, chunks: int) -> tuple[int, int]:
    """Layers of a chunk when all are equal, and how many the first and the last chunk together lack of that.

    >>> shortage(126, 64)
    (2, 2)
    """
    each = -(-num_layers // chunks)
    return each, each * chunks - num_layers


def ends_may_be_empty(num_layers: Quantity, chunks: Quantity) -> Quantity:
    """Whether nothing but an end without any layer divides the model into equal chunks.

    >>> [bool(ends_may_be_empty(layers, chunks)) for layers, chunks in ((126, 64), (126, 128), (58, 32))]
    [False, True, False]
    """
    each = -(-num_layers // chunks)
    missing = each * chunks - num_layers
    return (missing > 2 * (each - 1)) & (missing <= 2 * each)


def end_limit(num_layers: int, chunks: int) -> int:
    """Most layers that one end may lack: all but one, or all of them where that is the only way.

    >>> end_limit(126, 64), end_limit(126, 128), end_limit(61, 32)
    (1, 1, 2)
    """
    each, _ = shortage(num_layers, chunks)
    return each if ends_may_be_empty(num_layers, chunks) else each - 1


def ends_shortage(num_layers: int, chunks: int) -> tuple[int, int] | None:
    """Layers that the first and the last chunk lack when they share the shortage; None if they cannot.

    >>> ends_shortage(126, 64), ends_shortage(80, 12), ends_shortage(126, 128), ends_shortage(58, 32)
    ((1, 1), (2, 2), (1, 1), None)
    """
    _, missing = shortage(num_layers, chunks)
    last = -(-missing // 2)
    return (missing - last, last) if last <= end_limit(num_layers, chunks) else None


def _equal_chunks(chunk_ranks: tuple[int, ...], layers_of_rank: tuple[int, ...]) -> tuple[int, ...] | None:
    """Equal chunks with shorter ends that add up to these totals, if there are any."""
    chunks, ranks = len(chunk_ranks), len(layers_of_rank)
    if chunks == ranks:
        return None
    each, _ = shortage(sum(layers_of_rank), chunks)
    most = end_limit(sum(layers_of_rank), chunks)
    lack = [chunks // ranks * each - layers for layers in layers_of_rank]
    first, last = chunk_ranks[0], chunk_ranks[-1]
    if any(lack[rank] for rank in range(ranks) if rank not in (first, last)):
        return None
    of_last = lack[last] if first != last else -(-lack[last] // 2)
    of_first = lack[first] if first != last else lack[last] - of_last
    if not (0 <= of_first <= most and 0 <= of_last <= most):
        return None
    return (each - of_first, *(each,) * (chunks - 2), each - of_last)


Order: TypeAlias = tuple[tuple[int, int], ...]
"""Runs of identical layers in model order: the kind of each, and its layers; kinds may come again."""


def layers_in_order(runs: Sequence[int], order: Order = ()) -> Order:
    """The order of the layers; without one every kind has one run, one after the other."""
    return order or tuple(enumerate(runs))


@lru_cache(maxsize=64)
def counts_before(order: Order) -> tuple[tuple[int, ...], ...]:
    """Layers of each kind before every layer of the model, and before its end.

    >>> counts_before(((0, 1), (1, 1), (0, 1)))
    ((0, 0), (1, 0), (1, 1), (2, 1))
    """
    counts = [(0,) * (1 + max(kind for kind, _ in order))]
    for count, length in order:
        for _ in range(length):
            counts.append(tuple(n + (kind == count) for kind, n in enumerate(counts[-1])))
    return tuple(counts)


def runs_of_ranks(
    chunk_ranks: tuple[int, ...],
    chunk_layers: tuple[int, ...],
    runs: Sequence[int],
    order: Order = (),
) -> tuple[tuple[int, ...], ...]:
    """Layers of each kind on each rank, shape (ranks, kinds), when consecutive chunks hold these layers.

    >>> runs_of_ranks((0, 1), (3, 3), (1, 5))
    ((1, 2), (0, 3))
    >>> runs_of_ranks((0, 1), (3, 3), (4, 2), ((0, 2), (1, 1), (0, 2), (1, 1)))
    ((2, 1), (2, 1))
    """
    before, kinds, start = counts_before(layers_in_order(runs, order)), range(len(runs)), 0
    counts = [[0] * len(runs) for _ in range(max(chunk_ranks) + 1)]
    for chunk, layers in enumerate(chunk_layers):
        row, first, end = counts[chunk_ranks[chunk]], before[start], before[start + layers]
        for kind in kinds:
            row[kind] += end[kind] - first[kind]
        start += layers
    return tuple(tuple(row) for row in counts)
