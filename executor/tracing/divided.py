"""What ranks of tensor parallelism hold, compute and exchange of each block, of the cuts that were found.

Between blocks a rank has all of the hidden states, or, where every operation there is one of a token alone,
those of its own part of the sequence. An end that is not made so is computed whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import gcd, prod

from costmodel.models.traced import TracedCut
from executor.tracing.cuts import KEEPS, TracedCuts, find_cuts, tensors_of
from executor.tracing.factors import LAYER_NORMS, REDUCES
from executor.tracing.ops import is_product
from executor.tracing.record import Record, TensorOperation, TracedStep

MOST_BLOCKS_NAMED = 3  # blocks, of those that cannot be divided
_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.)")


@dataclass(slots=True, kw_only=True)
class Divided:
    """How a record is divided; nothing is where `uncut` says why.

    Attributes:
        cut: Storages that are divided, parameters too.
        by_tokens: Storages that are where the sequence is split.
        enters: Bytes of what enters columns, before the event whose id it is.
        leaves: Bytes of sums, after the event whose id it is.
        gathered: Ends that are computed whole where the sequence is split between blocks.
        loss_rows: Rows of a loss over divided classes.
        classes: Rows of a table and classes of a loss that are divided.
        units: What the number of ranks divides.
        uncut: Why nothing is divided.
        tokens: What the number of ranks divides where the sequence is split; 0 where it is not.
        whole: Matrices of blocks that every rank has and multiplies whole, their numbers as stars, and why.
    """

    cut: set[int] = field(default_factory=set)
    by_tokens: set[int] = field(default_factory=set)
    enters: dict[int, int] = field(default_factory=dict)
    leaves: dict[int, int] = field(default_factory=dict)
    gathered: set[int] = field(default_factory=set)
    loss_rows: int = 0
    classes: int = 0
    units: int = 1
    uncut: str = ""
    tokens: int = 0
    whole: tuple[str, ...] = ()


def divide(record: Record, groups: Sequence[Sequence[int]], outer: AbstractSet[int], batch: int) -> Divided:
    """Divide a record over ranks of tensor parallelism; events get what of their arithmetic is divided."""
    cuts = find_cuts(record, groups)
    steps = _by_group(record, groups)
    units, uncut = _units(record, groups, outer, steps, cuts)
    if uncut:
        return Divided(uncut=uncut)
    divided = Divided(units=units, loss_rows=cuts.loss_rows, classes=cuts.classes)
    _messages(record, steps, cuts, divided)
    divided.uncut = _look_up(steps, outer, cuts, divided)
    if divided.uncut:
        return Divided(uncut=divided.uncut)
    divided.cut = cuts.storages | cuts.parameters
    divided.whole = _whole_matrices(record, steps, outer, cuts)
    _split_sequence(record, steps, outer, batch, cuts, divided)
    for at, step in enumerate(record.steps):
        if step.event is not None:
            step.event.cut = _cut_of(at, step, cuts, divided)
    return divided


def shares(event: TensorOperation, divided: Divided) -> tuple[int, int]:
    """Bytes that an event alone moves of what is cut, and of what is split by tokens."""
    sizes = [*event.reads.items(), *event.writes.items()]
    cut = sum(size for storage, size in sizes if storage in divided.cut)
    return cut, sum(size for storage, size in sizes if storage in divided.by_tokens)


def _cut_of(at: int, step: TracedStep, cuts: TracedCuts, divided: Divided) -> TracedCut:
    """What of an operation's arithmetic is divided."""
    if at in cuts.columns:
        return "columns"
    if at in cuts.rows:
        return "rows"
    if at in cuts.inside:
        return "inside"
    return "tokens" if {seen.storage for seen in step.outputs} & divided.by_tokens else ""


def _by_group(record: Record, groups: Sequence[Sequence[int]]) -> list[list[tuple[int, TracedStep]]]:
    """Steps of each group with their places."""
    group_of = {segment: at for at, group in enumerate(groups) for segment in group}
    by_group: list[list[tuple[int, TracedStep]]] = [[] for _ in groups]
    for at, step in enumerate(record.steps):
        segment = step.segment if step.event is None else step.event.segment
        by_group[group_of[segment]].append((at, step))
    return by_group


def _units(
    record: Record,
    groups: Sequence[Sequence[int]],
    outer: AbstractSet[int],
    steps: Sequence[Sequence[tuple[int, TracedStep]]],
    cuts: TracedCuts,
) -> tuple[int, str]:
    """What all blocks that are divided can be divided by, or why none is."""
    units: list[int] = []
    stopped: dict[str, str] = {}
    for group, of_group in enumerate(steps):
        here = [cuts.rows[at] for at, _ in of_group if at in cuts.rows]
        if group in outer or here:
            units += here if group not in outer else []
            continue
        name = next((record.segments[i] for i in groups[group] if record.segments[i]), "the module")
        why = sorted({cuts.why[at] for at, _ in of_group if at in cuts.why})
        stopped[_NUMBER.sub("*", name)] = why[0] if why else "it has no products of weights"
    if not units:
        text = "; ".join(f"{name}: {why}" for name, why in list(stopped.items())[:MOST_BLOCKS_NAMED])
        return 1, f"no block has columns with rows after them ({text})"
    count = gcd(*units)
    return count, "" if count > 1 else f"its blocks have no common divisor: {sorted(set(units))[:4]}"


def _whole_matrices(
    record: Record,
    steps: Sequence[Sequence[tuple[int, TracedStep]]],
    outer: AbstractSet[int],
    cuts: TracedCuts,
) -> tuple[str, ...]:
    """Matrices that products of blocks use and that are not divided, each once, with what stopped it."""
    whole_matrices: dict[str, str] = {}
    for group, of_group in enumerate(steps):
        for at, step in of_group if group not in outer else ():
            if step.event is None or not is_product(step.event):
                continue
            for seen in tensors_of(step.arguments):
                if seen.storage in record.parameters.keys() - cuts.parameters and len(seen.shape) > 1:
                    name = _NUMBER.sub("*", record.parameters[seen.storage][0])
                    whole_matrices.setdefault(name, cuts.why.get(at, "a batch of products"))
    return tuple(f"{name} ({why})" for name, why in whole_matrices.items())


def _messages(
    record: Record, steps: Sequence[Sequence[tuple[int, TracedStep]]], cuts: TracedCuts, divided: Divided
) -> None:
    """What enters columns, once for each tensor and block, and the sums that leave rows."""
    for of_group in steps:
        entered: set[int] = set()
        for at, step in of_group:
            if step.event is None or at not in cuts.columns | cuts.rows.keys():
                continue
            if at in cuts.rows:
                divided.leaves[id(step.event)] = sum(step.event.writes.values())
                continue
            inputs = step.event.reads.keys() & record.differentiable - record.parameters.keys()
            for storage in inputs - entered:
                divided.enters[id(step.event)] = step.event.reads[storage]
            entered |= inputs


def _look_up(
    steps: Sequence[Sequence[tuple[int, TracedStep]]],
    outer: AbstractSet[int],
    cuts: TracedCuts,
    divided: Divided,
) -> str:
    """Divide the largest table that the stem looks up by its rows, or the one that the head uses too."""
    if 0 not in outer:
        return ""
    looks = [step for _, step in steps[0] if step.name == "embedding" and step.event is not None]
    tables = {step.arguments[0].storage: step.arguments[0].shape[0] for step in looks}
    if not tables:
        return ""
    head = steps[max(outer)] if max(outer) else []
    shared = {s for _, step in head if step.event is not None for s in step.event.reads} & tables.keys()
    table = max(set(shared or tables), key=lambda storage: tables[storage])
    if shared and table not in cuts.parameters:
        return "the table that its head shares is not divided there"
    cuts.parameters.add(table)
    divided.classes = min(divided.classes or tables[table], tables[table])
    for step in looks:
        if step.event is not None and step.arguments[0].storage == table:
            divided.leaves[id(step.event)] = sum(step.event.writes.values())
    return ""


def _split_sequence(
    record: Record,
    steps: Sequence[Sequence[tuple[int, TracedStep]]],
    outer: AbstractSet[int],
    batch: int,
    cuts: TracedCuts,
    divided: Divided,
) -> None:
    """Find whether the sequence can be split between blocks, and which memory is then."""
    lengths = [
        _length(record, of_group, batch, cuts) for group, of_group in enumerate(steps) if group not in outer
    ]
    last = max(outer, default=0)
    head = last or None
    divided.tokens = gcd(*lengths) if min(lengths) > 1 else 0
    if head is not None and _length(record, steps[head], batch, cuts) not in (lengths[-1], 0):
        divided.tokens *= not any(at in cuts.columns for at, _ in steps[head])
        divided.gathered.add(head)
    if not divided.tokens:
        divided.gathered.clear()
        return
    if 0 in outer and not any(id(step.event) in divided.leaves for _, step in steps[0]):
        divided.gathered.add(0)
    for group, of_group in enumerate(steps):
        for at, step in of_group if group not in divided.gathered else ():
            mine = {seen.storage for seen in step.outputs} - cuts.storages - record.parameters.keys()
            trained = bool(mine & record.differentiable) or group not in outer
            tokens = _tokens_of(step, batch) if step.event is not None and at not in cuts.inside else 0
            if trained and tokens in lengths:
                divided.by_tokens |= mine
    if 0 in outer:  # what blocks read of the stem arrives as they have it
        made = {seen.storage for _, step in steps[0] for seen in step.outputs} - record.parameters.keys()
        read = {
            s
            for of_group in steps[1:]
            for _, step in of_group
            if step.event is not None
            for s in step.event.reads
        }
        divided.by_tokens |= made & read & record.differentiable


def _length(record: Record, of_group: Sequence[tuple[int, TracedStep]], batch: int, cuts: TracedCuts) -> int:
    """Tokens of a sample in all operations of a group; -1 where they differ, 0 where there are none."""
    whole = [step for step in _whole_steps(record, of_group, cuts) if prod(step.outputs[0].shape) > 1]
    length = {_tokens_of(step, batch) for step in whole}
    return (length.pop() or -1) if len(length) == 1 else -1 if length else 0


def _whole_steps(
    record: Record, of_group: Sequence[tuple[int, TracedStep]], cuts: TracedCuts
) -> list[TracedStep]:
    """Operations with a gradient on what is not cut, and is no parameter alone."""
    return [
        step
        for at, step in of_group
        if step.event is not None
        and at not in cuts.columns | cuts.inside
        and step.outputs[0].storage in record.differentiable
        and step.outputs[0].storage not in cuts.plain
    ]


def _tokens_of(step: TracedStep, batch: int) -> int:
    """Tokens of a sample in what an operation gives, each made of that token alone; 0 where it is not."""
    shape = step.outputs[0].shape
    if step.name in ("mm", "addmm"):
        return shape[0] // batch if shape[0] % batch == 0 else 0
    if step.name in (*REDUCES, "_softmax", "_log_softmax"):
        words = step.arguments[1] if len(step.arguments) > 1 else None
        dims = [words] if isinstance(words, int) else list(words or ())
        rank = len(step.arguments[0].shape)
        if [dim % rank for dim in dims] != [rank - 1]:
            return 0
    elif step.name in LAYER_NORMS:
        if len(step.arguments[1]) != 1:
            return 0
    elif not (step.pointwise or step.name in KEEPS or step.name in ("embedding", "bernoulli_")):
        return 0
    if len(shape) == 2:  # samples and tokens in one
        return shape[0] // batch if shape[0] % batch == 0 else 0
    if len(shape) > 2 and batch in shape[:2]:  # in either order
        return shape[1] if shape[0] == batch else shape[0]
    return 0
