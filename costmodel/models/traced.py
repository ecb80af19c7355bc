"""A model that was traced instead of described: what each of its blocks computes, moves and saves.

The table is typed and bounded; whoever traced it is not asked again. A *sample* is one entry of the batch of
the inputs. A cut between two blocks is legal where few tensors with a gradient cross and no parameter is used
on both sides; blocks between which there is none are one.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

from topology.base.errors import InputError, shown

TracedKind = Literal["product", "convolution", "attention", "roofline", "pass", "enter", "leave", "whole"]
TracedCut = Literal["", "tokens", "columns", "rows", "inside"]
"""What tensor parallelism divides of an operation: nothing, its tokens where the sequence is split, columns
or rows of its weight, or all of it, between columns and rows."""

LIBRARIES = ("transformers", "torchvision", "timm", "diffusers")
"""Whose models are named ``LIBRARY:NAME`` and traced."""
LARGEST_NUMBER = 1e18  # of any count of one sample; the largest models compute 1e16 FLOP a sample
MOST_OPS = 20_000  # of all kinds of block together; a block of a large model has about a hundred
LARGEST_UNITS = 10**6
MOST_TEXTS, LONGEST_TEXT = 9, 2000  # texts of what stays whole, and why; characters of each
MOST_BLOCKS = 1024  # as for described models


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedOp:
    """One operation of a forward pass, of one sample; unused fields are zero.

    A product computes (m, k) @ (k, n); a convolution the same with m output pixels, n output channels and k
    numbers under its window. Attention has its heads and sizes. `roofline` is what no table has (batched and
    grouped products). A `pass` is all memory-bound work of a block: `bytes` as if neighbours were fused,
    `eager_bytes` one kernel after the other. Ranks of tensor parallelism exchange `bytes` where hidden states
    `enter` columns, where sums `leave` rows, and where an end has `whole` what blocks have split.

    `cut` says what tensor parallelism divides of its arithmetic; of its bytes it divides `cut_share`, and
    `token_share` where the sequence is split, of `eager_bytes` their `eager` ones.
    """

    kind: TracedKind
    m: float = 0.0
    n: float = 0.0
    k: float = 0.0
    heads: float = 0.0
    kv_heads: float = 0.0
    query_tokens: float = 0.0
    kv_tokens: float = 0.0
    head_dim: float = 0.0
    value_head_dim: float = 0.0
    causal: bool = False
    flop: float = 0.0
    bytes: float = 0.0
    eager_bytes: float = 0.0
    output_bytes: float = 0.0
    cut: TracedCut = ""
    cut_share: float = 0.0
    token_share: float = 0.0
    eager_cut_share: float = 0.0
    eager_token_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedBlock:
    """Blocks of one kind, or an end: what autograd saves of a sample, and what enters from the block before.

    `parameters` counts each once, where it is first used. `fused_saved_bytes` is what a compiler keeps, which
    computes memory-bound operations again in the kernels of the backward. `logits` are those of a loss over
    classes in the head, whose memory is the stack's and not in the bytes saved. Tensor parallelism divides
    what is `cut` of parameters and bytes, and the `token` bytes where the sequence is split; a loss over
    classes that it divides has `loss_rows`.
    """

    name: str
    parameters: int
    saved_bytes: float
    fused_saved_bytes: float
    input_bytes: float
    ops: tuple[TracedOp, ...]
    logits: float = 0.0
    cut_parameters: int = 0
    cut_saved_bytes: float = 0.0
    token_saved_bytes: float = 0.0
    cut_fused_saved_bytes: float = 0.0
    token_fused_saved_bytes: float = 0.0
    loss_rows: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModule:
    """A traced module: its kinds of block, where they are, and what comes before and after them.

    Attributes:
        builder: What built it, as the user named it.
        inputs: Shapes it was traced with, the batch first.
        kinds: Distinct blocks.
        order: Kind and consecutive blocks of that kind, in the order they run.
        stem: What runs before the first block.
        head: What runs after the last.
        tied_parameters: Parameters of the stem that the head uses too.
        units: Heads, widths or channels that its degree divides, common to all blocks; 1 where nothing is.
        uncut: Why it divides nothing, or "".
        tokens: What the sequence between blocks is divided by, at most; 0 where it is not.
        whole: Matrices of blocks that ranks of tensor parallelism multiply whole, and why.
        sample_tokens: Tokens of a sample, where its first input of whole numbers has some; else 0.
        classes: Rows of the table and classes of the head that are divided; 0 where neither is.
    """

    builder: str
    inputs: tuple[str, ...]
    kinds: tuple[TracedBlock, ...]
    order: tuple[tuple[int, int], ...]
    stem: TracedBlock
    head: TracedBlock
    tied_parameters: int = 0
    units: int = 1
    uncut: str = ""
    tokens: int = 0
    classes: int = 0
    whole: tuple[str, ...] = ()
    sample_tokens: int = 0

    def __post_init__(self) -> None:
        """Refuse a table that no trace can have written."""
        parts = (*self.kinds, self.stem, self.head)
        problem = _problem(self, parts)
        if problem:
            raise InputError(
                what=f"the table of {shown(self.builder)} is not one of a trace",
                cause=problem,
                fix="trace the module again",
            )

    @property
    def counts(self) -> tuple[int, ...]:
        """Blocks of each kind."""
        return tuple(sum(count for kind, count in self.order if kind == i) for i in range(len(self.kinds)))

    @property
    def parameters(self) -> int:
        """Parameters of the whole module."""
        blocks = sum(n * kind.parameters for n, kind in zip(self.counts, self.kinds, strict=True))
        return self.stem.parameters + blocks + self.head.parameters

    @property
    def largest_input_bytes(self) -> float:
        """The largest message between two blocks, of one sample."""
        return max(kind.input_bytes for kind in self.kinds)

    @property
    def forward_flop(self) -> float:
        """FLOP of the forward pass of one sample."""
        blocks = sum(n * flop_of(kind) for n, kind in zip(self.counts, self.kinds, strict=True))
        return flop_of(self.stem) + blocks + flop_of(self.head)


def flop_of(block: TracedBlock) -> float:
    """FLOP of the forward pass of one sample through a block."""
    return sum(op.flop for op in block.ops)


def _cut_twice(op: TracedOp) -> bool:
    """Whether more of an operation's bytes is divided than there are."""
    return max(op.cut_share + op.token_share, op.eager_cut_share + op.eager_token_share) > 1 + 1e-9


def _cut_more(part: TracedBlock) -> bool:
    """Whether more of a block is divided than it has."""
    return (
        part.cut_parameters > part.parameters
        or part.cut_saved_bytes + part.token_saved_bytes > part.saved_bytes * (1 + 1e-9)
        or part.cut_fused_saved_bytes + part.token_fused_saved_bytes > part.fused_saved_bytes * (1 + 1e-9)
    )


def _problem(module: TracedModule, parts: tuple[TracedBlock, ...]) -> str:
    """What is wrong with a table, or nothing."""
    order = module.order
    if not order or any(not 0 <= kind < len(module.kinds) or count < 1 for kind, count in order):
        return "its order names blocks that it does not have"
    if {kind for kind, _ in order} != set(range(len(module.kinds))):
        return "it has a kind of block that never runs"
    if (blocks := sum(count for _, count in order)) > MOST_BLOCKS:
        return f"it has {blocks} blocks, more than {MOST_BLOCKS}"
    if (ops := sum(len(part.ops) for part in parts)) > MOST_OPS:
        return f"it has {ops} operations, more than {MOST_OPS}"
    records: list[TracedBlock | TracedOp] = [*parts, *(op for part in parts for op in part.ops)]
    numbers = [
        float(value)
        for record in records
        for value in asdict(record).values()
        if isinstance(value, int | float)
    ]
    numbers += [
        float(value)
        for value in (module.tied_parameters, module.tokens, module.classes, module.sample_tokens)
    ]
    if not 1 <= module.units <= LARGEST_UNITS:
        return f"it is cut into {module.units} units, not 1 to {LARGEST_UNITS:,}"
    values = (module.uncut, *module.whole)
    if len(values) > MOST_TEXTS or not all(
        len(text) <= LONGEST_TEXT and text.isprintable() for text in values
    ):
        return f"what it tells is longer than {LONGEST_TEXT:,} characters, no plain line, or too much"
    if any(_cut_twice(record) for record in records if isinstance(record, TracedOp)):
        return "more than all bytes of an operation are divided"
    if any(_cut_more(part) for part in parts):
        return "more of a block is divided than it has"
    if not all(math.isfinite(value) and 0 <= value <= LARGEST_NUMBER for value in numbers):
        return f"a number is negative, or larger than {LARGEST_NUMBER:.0e}"
    return ""


def no_length(name: str, length: int) -> InputError:
    """Refuse a length in tokens for samples that have none."""
    return InputError(
        what=f"samples of {shown(name)} have no length in tokens",
        cause=f"--sequence-length {length}, and its inputs are no text",
        fix="leave --sequence-length out; --input gives the sizes of a sample",
    )
