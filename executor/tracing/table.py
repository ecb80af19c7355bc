"""A recorded forward pass as the table of the cost model: legal cuts, blocks, and runs of equal blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import groupby
from math import prod

from costmodel.models.traced import TracedBlock, TracedModule, TracedOp
from executor.tracing.fused import kept_when_fused
from executor.tracing.ops import op_of, pass_of
from executor.tracing.record import Event, Record

MOST_CROSSING = 3  # tensors with a gradient that a pipeline sends: hidden states, an encoder's, a shared bias


def table_of(record: Record, builder: str, inputs: Sequence[str], batch: int) -> TracedModule:
    """The table of a record that was made with a batch of so many samples."""
    _look_up_first(record)
    groups = _groups(record)
    tied = _tied(record, set(groups[0]), set(groups[-1])) if len(groups) > 2 else 0
    ends = _ends(record, groups, tied=bool(tied))
    loss = _loss(record, groups[-1]) if len(groups) - 1 in ends else {}
    kept = kept_when_fused(record, groups, loss.keys())
    parts = [_block(record, group, kept[i], loss, batch) for i, group in enumerate(groups)]
    stem = parts[0] if ends else _nothing("stem")
    head = parts[-1] if len(parts) - 1 in ends else _nothing("head")
    kinds: list[TracedBlock] = []
    order: list[int] = []
    for i, part in enumerate(parts):
        if i in ends:
            continue
        alike = [k for k, kind in enumerate(kinds) if replace(part, name=kind.name) == kind]
        order.append(alike[0] if alike else len(kinds))
        kinds += [] if alike else [part]
    runs = tuple((kind, len(list(same))) for kind, same in groupby(order))
    return TracedModule(
        builder=builder, inputs=tuple(inputs), kinds=tuple(kinds), order=runs,
        stem=stem, head=head, tied_parameters=tied,
    )  # fmt: skip


def _ends(record: Record, groups: Sequence[Sequence[int]], *, tied: bool) -> set[int]:
    """Which groups are the stem and the head; a last block that nothing follows is one of the blocks."""
    if len(groups) <= 2:
        return set()
    last = [i for i in groups[-1] if record.segments[i]]
    follows = any(event.segment > last[-1] for event in record.events) if last else True
    return {0, len(groups) - 1} if tied or follows or len(last) != 1 else {0}


def _look_up_first(record: Record) -> None:
    """Lookups between blocks run in the stem: a decoder's of the table that its encoder reads, sent along."""
    middle = {i for i, path in enumerate(record.segments) if not path} - {0, len(record.segments) - 1}
    moved: set[int] = set()
    for event in record.events:
        if event.segment in middle and event.name == "embedding":
            moved |= {s for s in event.reads if s in record.parameters}
            event.segment = 0
    for storage in moved:
        stays = {e.segment for e in record.events if storage in e.reads}
        record.used[storage] = (record.used[storage] - middle) | stays | {0}


def _groups(record: Record) -> list[list[int]]:
    """Segments of the stem, of each block, and of the head; what lies between blocks runs with the next."""
    last = len(record.segments)
    blocks = [i for i, path in enumerate(record.segments) if path]
    if not blocks:
        return [list(range(last))]
    cuts = [0, blocks[0], *(block + 1 for block in blocks)]
    legal = [cut for cut in cuts[1:-1] if _is_legal(record, cut)]
    end = blocks[-1] + 1
    starts = [0, *legal, *([end] if end < last and _is_legal(record, end) else [])]
    return [list(range(a, b)) for a, b in zip(starts, [*starts[1:], last], strict=True)]


def _is_legal(record: Record, cut: int) -> bool:
    """Whether few tensors with a gradient cross, and no parameter is used on both sides but by the ends."""
    first, last = min(i for i, p in enumerate(record.segments) if p), len(record.segments) - 1
    final = max(i for i, p in enumerate(record.segments) if p)
    for used in record.used.values():
        if min(used) < cut <= max(used):
            if all(i < first or final < i <= last for i in used):
                continue  # tied: held by both ends
            return False
    return 0 < len(_crossing(record, cut)) <= MOST_CROSSING


def _crossing(record: Record, cut: int) -> dict[int, int]:
    """Tensors with a gradient that are written before a cut and read after it, with their bytes."""
    written: dict[int, int] = {}
    crossing: dict[int, int] = {}
    for event in record.events:
        if event.segment < cut:
            written |= event.writes
        else:
            read = event.reads.keys() & written.keys() & record.differentiable
            crossing |= {storage: written[storage] for storage in read}
            for storage in event.writes.keys() - event.reads.keys():
                written.pop(storage, None)
    return crossing


def _loss(record: Record, head: Sequence[int]) -> dict[int, int]:
    """Storages of the logarithms of a loss over classes in the head, and how many they are."""
    found = (event for event in record.events if event.segment in head and event.name == "_log_softmax")
    return {storage: prod(event.output) for event in found for storage in event.writes}


def _block(
    record: Record, group: Sequence[int], kept: Mapping[int, int], loss: Mapping[int, int], batch: int
) -> TracedBlock:
    """The segments of one block together, per sample; what its loss keeps is the stack's to say."""
    events = [event for event in record.events if event.segment in group]
    mine = set(group)
    parameters = sum(
        elements
        for storage, (_, elements) in record.parameters.items()
        if min(record.used.get(storage, {0})) in mine
    )
    saved = {s: size for s, (segment, size) in record.saved.items() if segment in mine}
    logits = sum(count for storage, count in loss.items() if storage in saved)
    entering = sum(_crossing(record, group[0]).values()) if group[0] else 0
    return TracedBlock(
        name=next((record.segments[i] for i in group if record.segments[i]), "ends"),
        parameters=parameters,
        saved_bytes=sum(size for storage, size in saved.items() if storage not in loss) / batch,
        fused_saved_bytes=sum(kept.values()) / batch,
        logits=logits / batch,
        input_bytes=entering / batch,
        ops=_ops(record, events, kept.keys(), batch),
    )


def _ops(record: Record, events: Sequence[Event], kept: AbstractSet[int], batch: int) -> tuple[TracedOp, ...]:
    """Products and attention one by one, and all memory-bound work of a block as one pass."""
    found = [(event, op_of(event, batch)) for event in events]
    passes: list[TracedOp] = []
    for alone, run in groupby(found, key=lambda pair: pair[1] is None):
        if alone:
            some = [event for event, _ in run]
            outside = {s for event in record.events if event not in some for s in event.reads}
            passes.append(pass_of(some, outside | record.returned | kept, batch))
    ops = [op for _, op in found if op is not None]
    if passes:
        total = sum(op.bytes for op in passes)
        ops.append(TracedOp(kind="pass", bytes=total, eager_bytes=sum(op.eager_bytes for op in passes)))
    return tuple(ops)


def _tied(record: Record, stem: set[int], head: set[int]) -> int:
    """Parameters that both ends use."""
    shared = [s for s, used in record.used.items() if used & stem and used & head]
    return sum(record.parameters[s][1] for s in shared)


def _nothing(name: str) -> TracedBlock:
    """An end that does nothing."""
    return TracedBlock(
        name=name, parameters=0, saved_bytes=0.0, fused_saved_bytes=0.0, input_bytes=0.0, ops=()
    )
