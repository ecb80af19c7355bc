"""What tensor parallelism divides of a trace: pairs of products, one cut by columns, the next by rows.

Every product of a weight begins as one whose columns are dealt to the ranks; what it gives is followed in
the graph, each operation leaving the factors (`factors.py`) that it computes rank by rank. A product that
contracts a divided dimension is cut by rows and gives sums, which ranks add up. What cannot be followed (a
norm over divided numbers, an addition to what is whole) keeps the products that it came from whole, and all
is followed again. Attention, gates, convolutions by channel and a loss over classes come of the same rules.

Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3; Korthikanti et al. 2022 (2205.05198), section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from executor.tracing.factors import ALONE, Factors, dimension, meet, undivided
from executor.tracing.record import Record, Seen, TracedStep

KEEPS = ("clone", "_to_copy", "alias", "detach", "native_dropout", "lift_fresh", "empty_like", "copy_")
BATCH_NORMS = ("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit")
ATTENTION = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention")
LOSSES = ("nll_loss_forward", "nll_loss2d_forward")


@dataclass(frozen=True, slots=True)
class Label:
    """How a tensor is divided, in one of these ways, and the products whose columns are."""

    factors: Factors
    sources: frozenset[int]


@dataclass(slots=True, kw_only=True)
class TracedCuts:
    """What of a record is divided.

    Attributes:
        columns: Steps cut by columns.
        rows: Steps cut by rows, with how many units there are.
        inside: Steps between the two.
        storages: Memory that is divided.
        parameters: Parameters that are, by storage.
        loss_rows: Rows of a loss over divided classes.
        classes: How many there are.
        why: Of products that stay whole, what stopped them, by step.
        plain: Storages that are made of parameters alone.
    """

    columns: set[int] = field(default_factory=set)
    rows: dict[int, int] = field(default_factory=dict)
    inside: set[int] = field(default_factory=set)
    storages: set[int] = field(default_factory=set)
    parameters: set[int] = field(default_factory=set)
    loss_rows: int = 0
    classes: int = 0
    why: dict[int, str] = field(default_factory=dict)
    plain: set[int] = field(default_factory=set)


def find_cuts(record: Record, groups: Sequence[Sequence[int]]) -> TracedCuts:
    """Follow products until none has to be kept whole any more."""
    group_of = {segment: at for at, group in enumerate(groups) for segment in group}
    whole: dict[int, str] = {}
    while True:
        followed = _Followed(record=record, group_of=group_of, whole=whole)
        followed.follow()
        if not followed.blamed:
            followed.cuts.why = whole
            return followed.cuts
        whole |= followed.blamed


class _Uncut(Exception):  # noqa: N818 - no error: what it came from stays whole
    """An operation that cannot be computed rank by rank."""


@dataclass(slots=True, kw_only=True)
class _Followed:
    """One pass over the steps of a record."""

    record: Record
    group_of: dict[int, int]
    whole: dict[int, str]
    labels: dict[int, Label] = field(default_factory=dict)
    blamed: dict[int, str] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    plain: set[int] = field(default_factory=set)
    cuts: TracedCuts = field(default_factory=TracedCuts)

    def follow(self) -> None:
        """Label what every step gives."""
        self.plain = set(self.record.parameters)
        for at, step in enumerate(self.record.steps):
            tensors = tensors_of((step.arguments, step.words))
            labels = {seen.tensor: self.labels[seen.tensor] for seen in tensors if seen.tensor in self.labels}
            if self._is_of_parameters(step, tensors):
                self.plain |= {seen.storage for seen in step.outputs}
                continue
            try:
                given = self._step(at, step, tensors, labels)
            except _Uncut as stop:
                given = None
                for label in labels.values():
                    self._blame(label.sources, str(stop) or step.name)
            self._give(step, given, bool(labels))
        self._close()
        self.cuts.plain = self.plain

    def _is_of_parameters(self, step: TracedStep, tensors: list[Seen]) -> bool:
        """Whether what a step gives is made of parameters alone, whose gradients are summed like all others.

        A block that looks positions up in a table of its own adds what it finds to what is known of shapes.
        """
        if not tensors or all(seen.storage in self.plain for seen in tensors):
            return bool(tensors)
        if not self.group_of[_segment(step)]:
            return False
        if step.name in ("embedding", "index"):
            return tensors[0].storage in self.plain
        others = [seen for seen in tensors if seen.storage not in self.plain]
        made = any(seen.storage in self.plain - self.record.parameters.keys() for seen in tensors)
        return step.pointwise and made and not any(s.storage in self.record.differentiable for s in others)

    def _step(
        self, at: int, step: TracedStep, tensors: list[Seen], labels: dict[int, Label]
    ) -> Label | dict[int, Label] | None:
        """Labels of what a step gives: one for all outputs of its shape, or one for each."""
        if any(self._elsewhere(step, label) for label in labels.values()):
            raise _Uncut("what crosses two blocks")
        if step.name in ("mm", "addmm"):
            return self._product(at, step)
        if step.name == "convolution":
            return self._convolution(at, step)
        if not labels:
            return None
        self.cuts.inside.add(at)
        sources = frozenset[int]().union(*(label.sources for label in labels.values()))
        factors = self._factors(step, tensors, labels)
        if isinstance(factors, dict):
            return {place: Label(item, sources) for place, item in factors.items()}
        if factors is None:
            return None
        if not factors:
            raise _Uncut
        return Label(factors, sources)

    def _factors(
        self, step: TracedStep, tensors: list[Seen], labels: dict[int, Label]
    ) -> Factors | dict[int, Factors] | None:
        """What an operation leaves of the factors of what it takes; None of a loss, which is whole."""
        name, first = step.name, tensors[0]
        mine = labels[first.tensor].factors if first.tensor in labels else Factors()
        if name in ATTENTION:
            return self._attention(step, labels)
        if name in LOSSES:
            self._loss(step, labels)
            return None
        if name in ("bmm", "baddbmm"):
            return self._batched(step, labels)
        if name in ("cat", "stack"):
            return self._joined(step, labels)
        if step.pointwise or name in KEEPS or name.endswith("_like") or name in ("bernoulli_", "where"):
            return self._pointwise(step, tensors, labels)
        if not mine:
            raise _Uncut
        if name in (*BATCH_NORMS, "native_group_norm"):
            return self._of_channels(step, first, mine)
        if name not in ALONE:
            raise _Uncut
        return ALONE[name](step, first.shape, mine)

    def _of_channels(self, step: TracedStep, x: Seen, mine: Factors) -> dict[int, Factors]:
        """Norms with weights for each channel, whose statistics are of a channel or a group of them."""
        groups = x.shape[1] if step.name in BATCH_NORMS else int(step.arguments[6])
        left = meet(mine, frozenset({(1, x.shape[1] // groups, groups)}) if groups > 1 else Factors())
        if left:
            self.cuts.parameters |= {s.storage for s in tensors_of(step.arguments[1:3])} & self.plain
        return {0: left}

    def _pointwise(self, step: TracedStep, tensors: list[Seen], labels: dict[int, Label]) -> Factors:
        """What operands of a broadcast share; a gradient of what is whole would have to be summed."""
        shape = step.outputs[0].shape
        left: Factors | None = None
        for seen in tensors:
            if seen.tensor in labels:
                more = len(shape) - len(seen.shape)
                factors = frozenset(
                    (dim + more, inner, size) for dim, inner, size in labels[seen.tensor].factors
                )
                left = factors if left is None else meet(left, factors)
        for seen in tensors:
            outside = seen.tensor not in labels and seen.storage not in self.plain
            if outside and seen.storage in self.record.differentiable:
                raise _Uncut(f"{step.name} with what is whole")
        for seen in tensors:
            wide = seen.tensor not in labels and seen.storage in self.record.parameters
            more = len(shape) - len(seen.shape)
            if wide and any(seen.shape[f[0] - more] > 1 for f in left or () if f[0] >= more):
                self.cuts.parameters.add(seen.storage)
        return left or Factors()

    def _joined(self, step: TracedStep, labels: dict[int, Label]) -> Factors:
        """Pieces side by side, all divided alike and not along that dimension."""
        pieces = tensors_of(step.arguments[0])
        if any(seen.tensor not in labels for seen in pieces):
            raise _Uncut(f"{step.name} with what is whole")
        rank = len(pieces[0].shape)
        dim = dimension(step.arguments[1:], 0, 0, rank + (step.name == "stack"))
        left = labels[pieces[0].tensor].factors
        for seen in pieces[1:]:
            left = meet(left, labels[seen.tensor].factors)
        if step.name == "stack":
            return frozenset((at + (at >= dim), inner, size) for at, inner, size in left)
        return undivided(left, [dim])

    def _batched(self, step: TracedStep, labels: dict[int, Label]) -> Factors:
        """Products of a batch that is divided, as of unfused attention's heads."""
        a, b = tensors_of(step.arguments)[-2:]
        if a.tensor not in labels or b.tensor not in labels:
            raise _Uncut("bmm with what is whole")
        both = meet(labels[a.tensor].factors, labels[b.tensor].factors)
        return frozenset(f for f in both if f[0] == 0)

    def _attention(self, step: TracedStep, labels: dict[int, Label]) -> dict[int, Factors]:
        """Fused attention whose heads are divided; a key/value head is where its queries are."""
        query, key, value, *bias = tensors_of(step.arguments)
        if any(seen.tensor not in labels for seen in (query, key, value)):
            raise _Uncut("attention of what is whole")
        if any(
            seen.storage in self.record.differentiable and seen.storage not in self.plain for seen in bias
        ):
            raise _Uncut("attention with a bias that is computed whole")
        left = frozenset(f for f in labels[query.tensor].factors if f[0] == 1)
        for seen in (key, value):
            share = query.shape[1] // seen.shape[1]
            factors = {
                (1, inner * share, size) for dim, inner, size in labels[seen.tensor].factors if dim == 1
            }
            left = meet(left, frozenset(factors))
        if not left:
            raise _Uncut("attention of divided heads")
        outputs = enumerate(step.outputs)
        return {i: left for i, seen in outputs if len(seen.shape) > 2 and seen.shape[1] == query.shape[1]}

    def _loss(self, step: TracedStep, labels: dict[int, Label]) -> None:
        """A loss over divided classes: ranks exchange maximum, sum and chosen logit of each row."""
        x = tensors_of(step.arguments)[0]
        if x.tensor not in labels or (1, 1, x.shape[1]) not in labels[x.tensor].factors:
            raise _Uncut
        self.closed |= labels[x.tensor].sources
        self.cuts.loss_rows, self.cuts.classes = prod(x.shape) // x.shape[1], x.shape[1]

    def _product(self, at: int, step: TracedStep) -> Label | None:
        """A product with a weight: by rows of what is divided, else by columns."""
        *bias, x, weight = tensors_of(step.arguments)
        out = step.outputs[0].shape[-1]
        return self._linear(at, step, x, weight, (1, 1, out), bias)

    def _convolution(self, at: int, step: TracedStep) -> Label | None:
        """A convolution by channels: those of its output, or of its input."""
        x, weight, *bias = tensors_of(step.arguments[:3])
        transposed, groups = bool(step.arguments[-3]), int(step.arguments[-1])
        label, out = self.labels.get(x.tensor), step.outputs[0].shape[1]
        if groups == 1:
            return self._linear(at, step, x, weight, (1, 1, out), bias)
        if label is None:
            return None
        factors = meet(label.factors, frozenset({(1, x.shape[1] // groups, groups)}))
        if transposed or out != x.shape[1] or not factors:
            raise _Uncut("a grouped convolution")
        self.cuts.inside.add(at)
        self.cuts.parameters |= {seen.storage for seen in (weight, *bias)}
        return Label(factors, label.sources)

    def _linear(
        self, at: int, step: TracedStep, x: Seen, weight: Seen, given: tuple[int, int, int], bias: list[Seen]
    ) -> Label | None:
        """A product that contracts dimension 1 of its input."""
        label = self.labels.get(x.tensor)
        trained = weight.storage in self.record.parameters
        if label is None:
            if weight.tensor in self.labels:
                raise _Uncut(f"{step.name} with a divided matrix")
            if at in self.whole or not trained or given[2] < 2:
                return None
            self.cuts.columns.add(at)
            self.cuts.parameters |= {weight.storage, *(b.storage for b in bias)}
            return Label(frozenset({given}), frozenset({at}))
        units = [units for dim, _, units in label.factors if dim == 1]
        if not units or not trained:
            raise _Uncut(f"{step.name} of divided rows")
        self.cuts.rows[at] = max(units)
        self.cuts.parameters.add(weight.storage)
        self.closed |= label.sources
        return None

    def _elsewhere(self, step: TracedStep, label: Label) -> bool:
        """Whether a label began in another block."""
        here = self.group_of[_segment(step)]
        return any(self.group_of[_segment(self.record.steps[s])] != here for s in label.sources)

    def _give(self, step: TracedStep, given: Any, divided: bool) -> None:
        """Note labels of what a step gives, and what is divided memory."""
        for place, seen in enumerate(step.outputs):
            label = given.get(place) if isinstance(given, dict) else given
            if isinstance(label, Label):
                kept = frozenset(f for f in label.factors if f[0] < len(seen.shape) and seen.shape[f[0]] > 1)
                if kept:
                    self.labels[seen.tensor] = Label(kept, label.sources)
                    self.cuts.storages.add(seen.storage)
                    continue
                self._blame(label.sources, step.name)
            elif divided:
                self.labels.pop(seen.tensor, None)

    def _close(self) -> None:
        """Keep whole what no product or loss ends, and what the module gives back."""
        opened = frozenset[int]().union(*(label.sources for label in self.labels.values()))
        self._blame(opened - self.closed, "no product by rows after it")
        storage_of = {s.tensor: s.storage for step in self.record.steps for s in step.outputs}
        for tensor, label in self.labels.items():
            if storage_of.get(tensor) in self.record.returned:
                self._blame(label.sources, "what the module gives back")

    def _blame(self, sources: Iterable[int], reason: str) -> None:
        """Keep products whole from now on; the first reason is the one that is told."""
        for source in sources:
            self.blamed.setdefault(source, reason)


def _segment(step: TracedStep) -> int:
    """Where a step runs; lookups between blocks were moved to the stem."""
    return step.segment if step.event is None else step.event.segment


def tensors_of(tree: Any) -> list[Seen]:
    """Tensors among arguments, in order."""
    if isinstance(tree, Seen):
        return [tree]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    return [seen for item in tree for seen in tensors_of(item)] if isinstance(tree, tuple | list) else []
