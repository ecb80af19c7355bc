"""One recorded operation as a row of the table: its kind by name, its sizes by the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from math import prod

from costmodel.models.traced import TracedOp
from executor.tracing.record import TensorOperation

HALF_BYTES = 2
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")
CAUSAL_AT = {"_scaled_dot_product_flash_attention": 1, "_scaled_dot_product_efficient_attention": 2}
"""Where a fused kernel is told that it is causal, among its arguments that are no tensors."""


def is_product(event: TensorOperation) -> bool:
    """Whether an operation computes rather than moves: its backward reads its inputs from memory."""
    return event.name in PRODUCTS or event.name in CAUSAL_AT


def op_of(event: TensorOperation, batch: int) -> TracedOp | None:
    """The row of a product, convolution or attention; None of what only moves memory."""
    if event.name in ("mm", "addmm"):
        return _product(event, batch)
    if event.name in ("bmm", "baddbmm"):
        return _batched(event, batch)
    if event.name == "convolution":
        return _convolution(event, batch)
    return _attention(event, batch) if event.name in CAUSAL_AT else None


def pass_of(
    events: Sequence[TensorOperation],
    read_later: AbstractSet[int],
    batch: int,
    *,
    cut: AbstractSet[int] = frozenset(),
    by_tokens: AbstractSet[int] = frozenset(),
) -> TracedOp:
    """Neighbouring memory-bound operations: fused they read what comes from outside and write what leaves.

    Args:
        events: The operations.
        read_later: Storages that others read.
        batch: Samples.
        cut: Storages that tensor parallelism divides.
        by_tokens: Storages that are divided where the sequence is split.
    """
    made: dict[int, int] = {}
    outside: dict[int, int] = {}
    for event in events:
        outside |= {s: size for s, size in event.reads.items() if s not in made}
        made |= event.writes
    leaving = {storage: size for storage, size in made.items() if storage in read_later}
    alone = [pair for event in events for pair in (*event.reads.items(), *event.writes.items())]
    together = [*outside.items(), *leaving.items()]
    eager, fused = _bytes(alone), _bytes(together)
    return TracedOp(
        kind="pass",
        bytes=min(eager, fused) / batch,
        eager_bytes=eager / batch,
        cut_share=_bytes(together, cut) / (fused or 1),
        token_share=_bytes(together, by_tokens) / (fused or 1),
        eager_cut_share=_bytes(alone, cut) / (eager or 1),
        eager_token_share=_bytes(alone, by_tokens) / (eager or 1),
    )


def passes_together(passes: Sequence[TracedOp]) -> TracedOp:
    """All memory-bound work of a block as one pass."""

    def mean(share: str, size: str) -> float:
        total = sum(getattr(op, size) for op in passes)
        return float(sum(getattr(op, share) * getattr(op, size) for op in passes) / (total or 1.0))

    return TracedOp(
        kind="pass",
        bytes=sum(op.bytes for op in passes),
        eager_bytes=sum(op.eager_bytes for op in passes),
        cut_share=mean("cut_share", "bytes"),
        token_share=mean("token_share", "bytes"),
        eager_cut_share=mean("eager_cut_share", "eager_bytes"),
        eager_token_share=mean("eager_token_share", "eager_bytes"),
    )


def _bytes(sizes: Sequence[tuple[int, int]], some: AbstractSet[int] | None = None) -> int:
    """Sum of sizes by storage, of all or of some."""
    return sum(size for storage, size in sizes if some is None or storage in some)


def _traffic(event: TensorOperation) -> int:
    """Bytes that an operation alone reads and writes."""
    return sum(event.reads.values()) + sum(event.writes.values())


def _product(event: TensorOperation, batch: int) -> TracedOp:
    """(m, k) @ (k, n), all of the batch in m."""
    (m, k), n = event.shapes[-2], event.shapes[-1][1]
    return TracedOp(
        kind="product", m=m / batch, n=n, k=k, flop=2 * m * n * k / batch,
        bytes=_traffic(event) / batch, output_bytes=HALF_BYTES * m * n / batch,
    )  # fmt: skip


def _batched(event: TensorOperation, batch: int) -> TracedOp:
    """A batch of products."""
    (count, m, k), n = event.shapes[-2], event.shapes[-1][2]
    return _rooflined(event, 2 * count * m * n * k, batch)


def _rooflined(event: TensorOperation, flop: float, batch: int) -> TracedOp:
    """What no table has."""
    written = sum(event.writes.values())
    return TracedOp(
        kind="roofline", flop=flop / batch, bytes=_traffic(event) / batch, output_bytes=written / batch
    )


def _convolution(event: TensorOperation, batch: int) -> TracedOp:
    """Of any dimension; a transposed one computes as its gradient, grouped ones have no table."""
    weight = event.shapes[1]
    transposed, groups = bool(event.arguments[-3]), int(event.arguments[-1])
    pixels = (event.shapes[0] if transposed else event.output)[2:]
    rows, window = event.output[0] * prod(pixels), prod(weight[2:])
    n, k = (weight[1] * groups, weight[0]) if transposed else (weight[0], weight[1] * groups)
    flop = 2 * rows * n * k * window / groups
    if groups > 1:
        return _rooflined(event, flop, batch)
    return TracedOp(
        kind="convolution", m=rows / batch, n=n, k=k * window, flop=flop / batch,
        bytes=_traffic(event) / batch, output_bytes=sum(event.writes.values()) / batch,
    )  # fmt: skip


def _attention(event: TensorOperation, batch: int) -> TracedOp:
    """Fused attention of all heads; a causal one computes half the pairs."""
    query, key, value = event.shapes[:3]
    place = CAUSAL_AT[event.name]  # arguments with their default value are not passed on
    causal = len(event.arguments) > place and event.arguments[place] is True
    pairs = query[2] * key[2] / (2 if causal else 1)
    return TracedOp(
        kind="attention", heads=query[1], kv_heads=key[1], query_tokens=query[2], kv_tokens=key[2],
        head_dim=query[3], value_head_dim=value[3], causal=causal,
        flop=2 * query[1] * (query[3] + value[3]) * pairs * query[0] / batch, bytes=_traffic(event) / batch,
        output_bytes=HALF_BYTES * query[0] * query[1] * query[2] * value[3] / batch,
    )  # fmt: skip
