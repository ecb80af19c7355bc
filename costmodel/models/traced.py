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

TracedKind = Literal["product", "convolution", "attention", "roofline", "pass"]

LIBRARIES = ("transformers", "torchvision", "timm", "diffusers")
"""Whose models are named ``LIBRARY:NAME`` and traced."""
LARGEST_NUMBER = 1e18  # of any count of one sample; the largest models compute 1e16 FLOP a sample
MOST_OPS = 20_000  # of all kinds of block together; a block of a large model has about a hundred
MOST_BLOCKS = 1024  # as for described models


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedOp:
    """One operation of a forward pass, of one sample; unused fields are zero.

    A product computes (m, k) @ (k, n); a convolution the same with m output pixels, n output channels and k
    numbers under its window. Attention has its heads and sizes. `roofline` is what no table has (batched and
    grouped products). A `pass` is all memory-bound work of a block: `bytes` as if neighbours were fused,
    `eager_bytes` one kernel after the other.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedBlock:
    """Blocks of one kind, or an end: what autograd saves of a sample, and what enters from the block before.

    `parameters` counts each once, where it is first used. `fused_saved_bytes` is what a compiler keeps, which
    computes memory-bound operations again in the kernels of the backward. `logits` are those of a loss over
    classes in the head, whose memory is the stack's and not in the bytes saved.
    """

    name: str
    parameters: int
    saved_bytes: float
    fused_saved_bytes: float
    input_bytes: float
    ops: tuple[TracedOp, ...]
    logits: float = 0.0


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
    """

    builder: str
    inputs: tuple[str, ...]
    kinds: tuple[TracedBlock, ...]
    order: tuple[tuple[int, int], ...]
    stem: TracedBlock
    head: TracedBlock
    tied_parameters: int = 0

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
    numbers.append(float(module.tied_parameters))
    if not all(math.isfinite(value) and 0 <= value <= LARGEST_NUMBER for value in numbers):
        return f"a number is negative, or larger than {LARGEST_NUMBER:.0e}"
    return ""
