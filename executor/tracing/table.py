"""A recorded forward pass as the table of the cost model: legal cuts, blocks, and runs of equal blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import groupby
from math import prod

from costmodel.models.traced import TracedBlock, TracedModule, TracedOp
from executor.tracing.divided import Divided, divide, shares
from executor.tracing.min_cut import kept_when_fused
from executor.tracing.ops import op_of, pass_of, passes_together
from executor.tracing.record import Record, TensorOperation

MOST_CROSSING = 3  # tensors with a gradient that a pipeline sends: hidden states, an encoder's, a shared bias

MOST_NAMED = 8  # matrices that are told to be whole


def traced_table(
    record: Record, builder: str, inputs: Sequence[str], batch: int, sample_tokens: int = 0
) -> TracedModule:
    """The table of a record that was made with a batch of so many samples, of so many tokens each."""
    _look_up_first(record)
    groups = groups_of(record)
    tied = _tied(record, set(groups[0]), set(groups[-1])) if len(groups) > 2 else 0
    outer = _stem_and_head(record, groups, tied=bool(tied))
    loss = _loss(record, groups[-1]) if len(groups) - 1 in outer else {}
    kept = kept_when_fused(record, groups, loss.keys())
    divided = divide(record, groups, outer, batch)
    parts = [_block(record, group, kept[i], loss, batch, divided) for i, group in enumerate(groups)]
    for end in divided.gathered:
        parts[end] = _end(parts[end], parts[end or 1].input_bytes)
    stem = parts[0] if outer else _nothing("stem")
    head = parts[-1] if len(parts) - 1 in outer else _nothing("head")
    kinds: list[TracedBlock] = []
    order: list[int] = []
    for i, part in enumerate(parts):
        if i in outer:
            continue
        alike = [k for k, kind in enumerate(kinds) if replace(part, name=kind.name) == kind]
        order.append(alike[0] if alike else len(kinds))
        kinds += [] if alike else [part]
    runs = tuple((kind, len(list(same))) for kind, same in groupby(order))
    return TracedModule(
        builder=builder, inputs=tuple(inputs), kinds=tuple(kinds), order=runs,
        stem=stem, head=head, tied_parameters=tied, units=divided.units, uncut=divided.uncut,
        tokens=divided.tokens, classes=divided.classes, whole=divided.whole[:MOST_NAMED],
        sample_tokens=sample_tokens,
    )  # fmt: skip


def _stem_and_head(record: Record, groups: Sequence[Sequence[int]], *, tied: bool) -> set[int]:
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


def groups_of(record: Record) -> list[list[int]]:
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
    events = (event for event in record.events if event.segment in head and event.name == "_log_softmax")
    return {storage: prod(event.output) for event in events for storage in event.writes}


def _block(
    record: Record,
    group: Sequence[int],
    kept: Mapping[int, int],
    loss: Mapping[int, int],
    batch: int,
    divided: Divided,
) -> TracedBlock:
    """The segments of one block together, per sample; what its loss keeps is the stack's to say."""
    events = [event for event in record.events if event.segment in group]
    mine = set(group)
    parameters = {
        storage: elements
        for storage, (_, elements) in record.parameters.items()
        if min(record.used.get(storage, {0})) in mine
    }
    saved = {s: size for s, (segment, size) in record.saved.items() if segment in mine}
    held = {storage: size for storage, size in saved.items() if storage not in loss}
    logits = sum(count for storage, count in loss.items() if storage in saved)
    entering = sum(_crossing(record, group[0]).values()) if group[0] else 0
    return TracedBlock(
        name=next((record.segments[i] for i in group if record.segments[i]), "ends"),
        parameters=sum(parameters.values()),
        saved_bytes=_of(held) / batch,
        fused_saved_bytes=_of(kept) / batch,
        logits=logits / batch,
        loss_rows=divided.loss_rows / batch if logits else 0.0,
        input_bytes=entering / batch,
        ops=_ops(record, events, kept.keys(), batch, divided),
        cut_parameters=_of(parameters, divided.cut),
        cut_saved_bytes=_of(held, divided.cut) / batch,
        token_saved_bytes=_of(held, divided.by_tokens) / batch,
        cut_fused_saved_bytes=_of(kept, divided.cut) / batch,
        token_fused_saved_bytes=_of(kept, divided.by_tokens) / batch,
    )


def _of(sizes: Mapping[int, int], some: AbstractSet[int] | None = None) -> int:
    """Sum of sizes by storage, of all or of some."""
    return sum(size for storage, size in sizes.items() if some is None or storage in some)


def _end(block: TracedBlock, hidden_bytes: float) -> TracedBlock:
    """An end that gathers what is split by tokens between blocks."""
    return replace(block, ops=(*block.ops, TracedOp(kind="whole", bytes=hidden_bytes)))


def _ops(
    record: Record, events: Sequence[TensorOperation], kept: AbstractSet[int], batch: int, divided: Divided
) -> tuple[TracedOp, ...]:
    """Products and attention one by one, what ranks exchange, and all memory-bound work as one pass."""
    values = [(event, op_of(event, batch)) for event in events]
    passes: list[TracedOp] = []
    for alone, run in groupby(values, key=lambda pair: pair[1] is None):
        if alone:
            some = [event for event, _ in run]
            outside = {s for event in record.events if event not in some for s in event.reads}
            later = outside | record.returned | kept
            passes.append(pass_of(some, later, batch, cut=divided.cut, by_tokens=divided.by_tokens))
    ops = [with_message for event, op in values for with_message in _with_messages(event, op, batch, divided)]
    if passes:
        ops.append(passes_together(passes))
    return tuple(ops)


def _with_messages(
    event: TensorOperation, op: TracedOp | None, batch: int, divided: Divided
) -> Iterator[TracedOp]:
    """What enters its columns, an operation, and what leaves its rows."""
    if id(event) in divided.enters:
        yield TracedOp(kind="enter", bytes=divided.enters[id(event)] / batch)
    if op is not None:
        cut, tokens = (part / batch / (op.bytes or 1.0) for part in shares(event, divided))
        yield replace(op, cut=event.cut, cut_share=cut, token_share=tokens)
    if id(event) in divided.leaves:
        yield TracedOp(kind="leave", bytes=divided.leaves[id(event)] / batch)


def _tied(record: Record, stem: set[int], head: set[int]) -> int:
    """Parameters that both ends use."""
    shared = [s for s, used in record.used.items() if used & stem and used & head]
    return sum(record.parameters[s][1] for s in shared)


def _nothing(name: str) -> TracedBlock:
    """An end that does nothing."""
    return TracedBlock(
        name=name, parameters=0, saved_bytes=0.0, fused_saved_bytes=0.0, input_bytes=0.0, ops=()
    )
