"""What a compiled module keeps for its backward: the fewest bytes from which the rest is computed again.

A compiler fuses memory-bound operations into the kernels of the backward, so it keeps one copy of what eager
autograd saves several times (the fp32 copy of a norm's input, a gate beside its activation): a minimum cut
between what cannot be computed again (products, attention, random numbers, what enters the block) and what
the backward reads. What a product or attention reads in its backward has to lie in memory, and is kept.

Source: `min_cut_rematerialization_partition` of torch (functorch/partitioners.py), whose rules these are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from executor.tracing.ops import is_product
from executor.tracing.record import Record
from topology.base.cuts import source_side

MOST_VALUES = 20_000  # of a block; a larger one is kept as eager autograd keeps it

SOURCE, SINK = "source", "sink"


def fewest_kept(
    sizes: Mapping[int, int],
    made_of: Mapping[int, Iterable[int]],
    needed: Iterable[int],
    kept: Iterable[int],
) -> set[int]:
    """Values to keep so that every needed one is kept or made of kept ones, with the fewest bytes.

    >>> sorted(fewest_kept({1: 2, 2: 4, 3: 4}, {2: [1], 3: [2]}, needed=[2, 3], kept=[]))
    [1]
    >>> sorted(fewest_kept({1: 2, 2: 4, 3: 1}, {3: [1, 2]}, needed=[3], kept=[]))
    [3]

    Args:
        sizes: Bytes of each value.
        made_of: What each is computed from; a value that is not in it cannot be computed again.
        needed: Values that the backward reads.
        kept: Values that are kept anyway.
    """
    held = set(kept)
    edges: dict[tuple[Hashable, Hashable], int | None] = {}
    reached, open_values = set[int](), [value for value in needed if value not in held]
    for value in open_values:
        edges[("out", value), SINK] = None
    while open_values:
        value = open_values.pop()
        if value in reached or value in held:
            continue
        reached.add(value)
        edges[("in", value), ("out", value)] = sizes[value]
        parents = made_of.get(value)
        if parents is None:
            edges[SOURCE, ("in", value)] = None
            continue
        for parent in parents:
            if parent not in held:
                edges[("out", parent), ("in", value)] = None
                open_values.append(parent)
    side = source_side(edges, SOURCE, SINK)
    return held | {value for value in reached if ("in", value) in side and ("out", value) not in side}


def kept_when_fused(
    record: Record, groups: Sequence[Sequence[int]], apart: AbstractSet[int]
) -> list[dict[int, int]]:
    """Bytes that each group of segments keeps, by storage, beside those `apart`.

    What an earlier group keeps is not counted again.
    """
    held: set[int] = set()
    result = []
    for group in groups:
        kept = _of_group(record, set(group), held, apart)
        result.append({storage: size for storage, size in kept.items() if storage not in held})
        held |= kept.keys()
    return result


def _of_group(record: Record, group: set[int], held: set[int], apart: AbstractSet[int]) -> dict[int, int]:
    """Values that one group keeps, of its own and of those that enter it, with their bytes."""
    needed = {storage for segment in group for storage in record.needed.get(segment, ())} - apart
    sizes = {storage: record.saved[storage][1] for storage in needed}
    free = set(record.parameters) | record.given
    made_of: dict[int, set[int]] = {}
    forced: set[int] = set()
    for event in record.events:
        if event.segment not in group:
            continue
        for storage, size in (*event.reads.items(), *event.writes.items()):
            sizes.setdefault(storage, size)
        if is_product(event):
            forced |= needed & (event.reads.keys() | event.writes.keys())
        elif event.repeatable:
            sources = {s for s in event.reads if s not in event.writes and s not in free}
            made_of |= dict.fromkeys(event.writes, sources)
    if len(sizes) > MOST_VALUES:
        return {storage: sizes[storage] for storage in needed}
    kept = fewest_kept(sizes, made_of, needed - free, (forced | (held & sizes.keys())) - free)
    return {storage: sizes[storage] for storage in kept}
