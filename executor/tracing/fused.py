"""What each block keeps of a record when it is compiled: see `min_cut`."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from executor.tracing.min_cut import fewest_kept
from executor.tracing.ops import is_product
from executor.tracing.record import Record

MOST_VALUES = 20_000  # of a block; a larger one is kept as eager autograd keeps it


def kept_when_fused(
    record: Record, groups: Sequence[Sequence[int]], apart: AbstractSet[int]
) -> list[dict[int, int]]:
    """Bytes that each group of segments keeps, by storage, beside those `apart`.

    What an earlier group keeps is not counted again.
    """
    held: set[int] = set()
    found = []
    for group in groups:
        kept = _of_group(record, set(group), held, apart)
        found.append({storage: size for storage, size in kept.items() if storage not in held})
        held |= kept.keys()
    return found


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
