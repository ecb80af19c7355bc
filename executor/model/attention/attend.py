"""Attention of a sequence, whole or split over the context-parallel axis (ring, Ulysses, all-gathered keys).

Ring and all-gather cut the sequence into 2·c chunks and give rank r chunks r and 2c−1−r ("zigzag"), so that
causal work is equal on every rank (Llama 3 §3.3.2); Ulysses (Jacobs 2023) needs contiguous parts, and
trades heads for sequence with two all-to-alls.

Legend: ``B`` sequences, ``S`` sequence length, ``h`` query heads, ``g`` key/value heads, ``d`` head size,
``c`` ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from executor.comm.collectives import ProcessGroup, all_gather, all_to_all, reduce_scatter
from executor.model.attention import blocks
from executor.model.attention.documents import Documents
from executor.model.attention.kernels import attend_masked
from executor.model.attention.masks import Mask, zigzag

SEQUENCE = 2  # inside this file activations are (B, h, S, d)
MASKED = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextAxis:
    """This rank's place on the context-parallel axis and how keys meet queries there."""

    group: ProcessGroup
    size: int
    rank: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What becomes of q·k before and in the softmax; see `attend`."""

    scale: float
    window: int | None = None
    sinks: torch.Tensor | None = None
    cap: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether scores are only scaled and causal."""
        return self.window is None and self.sinks is None and self.cap is None


def sequence_positions(length: int, size: int, rank: int, kind: str) -> torch.Tensor:
    """Positions of the tokens that one rank of the axis holds, shape (S/c,).

    >>> sequence_positions(8, 2, 0, "ring").tolist(), sequence_positions(8, 2, 1, "ulysses").tolist()
    ([0, 1, 6, 7], [4, 5, 6, 7])
    """
    if kind == "ulysses":
        part = length // size
        return torch.arange(rank * part, (rank + 1) * part)
    return torch.from_numpy(zigzag(length, size, rank)).long()


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
    cap: float | None = None,
    context: ContextAxis | None = None,
    documents: Documents | None = None,
) -> torch.Tensor:
    """Causal attention of q (B, S/c, h, d) on k, v (B, S/c, g, d), result (B, S/c, h, d of v).

    `window` limits how far back a query sees; `sinks` (h,) is one learned score per head that takes part in
    the softmax but carries no value; `cap` is the soft cap of scores; `documents` are parts of each whole
    sequence that do not see each other. None of them has a ring kernel here, so such layers gather keys
    instead, and see them under a mask (`kernels`).
    """
    width = v.shape[-1]
    if width < q.shape[-1]:  # MLA: flash kernels want one head size
        v = functional.pad(v, (0, q.shape[-1] - width))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = Scores(scale=scale, window=window, sinks=sinks, cap=cap)
    if documents is not None and all(len(lengths) == 1 for lengths in documents):
        documents = None
    if context is None or context.size == 1:
        out = _whole(q, k, v, scores, documents)
    elif context.kind == "ulysses":
        out = _ulysses(q, k, v, scores, context, documents)
    elif context.kind == "ring" and scores.is_plain and documents is None:
        out = _Ring.apply(q, k, v, scale, context)
    else:
        out = _gathered(q, k, v, scores, context, documents)
    return out.transpose(1, 2)[..., :width]


def _whole(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: Scores, documents: Documents | None
) -> torch.Tensor:
    """Attention when this rank has whole sequences."""
    length, window = q.shape[SEQUENCE], scores.window
    if window is not None and window >= length:
        scores = replace(scores, window=None)
    if scores.is_plain and documents is None:
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scores.scale, enable_gqa=True
        )
    mask = Mask(length=length, window=scores.window, documents=documents)
    return attend_masked(q, k, v, mask, scale=scores.scale, cap=scores.cap, sinks=scores.sinks)


# ── all-gathered keys ─────────────────────────────────────────────────────────────────────────────────────


class _GatherKeys(torch.autograd.Function):
    """All-gather along the sequence; gradients of every rank's queries are summed back to the owner."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return all_gather(x, SEQUENCE, group).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return reduce_scatter(gradients[0], SEQUENCE, ctx.group).contiguous(), None


def _gathered(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scores: Scores,
    context: ContextAxis,
    documents: Documents | None,
) -> torch.Tensor:
    """Gather all keys and values, attend the local queries to those that they see."""
    mask = Mask(
        length=q.shape[SEQUENCE] * context.size,
        window=scores.window,
        ranks=context.size,
        rank=context.rank,
        documents=documents,
    )
    every_k, every_v = _GatherKeys.apply(k, context.group), _GatherKeys.apply(v, context.group)
    return attend_masked(q, every_k, every_v, mask, scale=scores.scale, cap=scores.cap, sinks=scores.sinks)


# ── Ulysses ───────────────────────────────────────────────────────────────────────────────────────────────


class _SwapHeadsAndSequence(torch.autograd.Function):
    """All-to-all from (B, h, S/c, d) to (B, h/c, S, d), or back; its gradient is the opposite exchange."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: ProcessGroup, to_heads: bool) -> torch.Tensor:
        ctx.group, ctx.to_heads = group, to_heads
        return _exchange(x, group, to_heads=to_heads)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _exchange(gradients[0], ctx.group, to_heads=not ctx.to_heads), None, None


def _exchange(x: torch.Tensor, group: ProcessGroup, *, to_heads: bool) -> torch.Tensor:
    """Split one of (heads, sequence) over the ranks and join the other."""
    split, join = (1, SEQUENCE) if to_heads else (SEQUENCE, 1)
    ranks = dist.get_world_size(group)
    parts = torch.stack(x.chunk(ranks, split))
    return torch.cat(all_to_all(parts, None, None, group).unbind(0), join)


def _ulysses(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scores: Scores,
    context: ContextAxis,
    documents: Documents | None,
) -> torch.Tensor:
    """Trade sequence for heads, attend to whole sequences, trade back."""
    q, k, v = (_SwapHeadsAndSequence.apply(x, context.group, True) for x in (q, k, v))  # noqa: FBT003
    if scores.sinks is not None:
        scores = replace(scores, sinks=scores.sinks.chunk(context.size)[context.rank])
    out = _whole(q, k, v, scores, documents)
    result: torch.Tensor = _SwapHeadsAndSequence.apply(out, context.group, False)  # noqa: FBT003
    return result


# ── ring ──────────────────────────────────────────────────────────────────────────────────────────────────


def _start_shift(tensors: list[torch.Tensor], axis: ContextAxis) -> tuple[list[torch.Tensor], list[Any]]:
    """Begin sending `tensors` to the next rank of the ring and receiving those of the previous one."""
    after = dist.get_global_rank(axis.group, (axis.rank + 1) % axis.size)
    before = dist.get_global_rank(axis.group, (axis.rank - 1) % axis.size)
    arriving = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]
    sends = [dist.P2POp(dist.isend, x, after, axis.group) for x in tensors]
    receives = [dist.P2POp(dist.irecv, x, before, axis.group) for x in arriving]
    return arriving, dist.batch_isend_irecv(sends + receives)


def _wait(work: list[Any]) -> None:
    """Wait for a shift."""
    for item in work:
        item.wait()


def _visible_part(source: int, rank: int, length: int) -> tuple[slice, slice, bool]:
    """Queries and keys that meet on `rank` when it holds the keys of `source`, and whether causally.

    With zigzag chunks (r, 2c−1−r): own keys are causal; earlier ranks' first chunk is seen by all queries;
    all keys of later ranks are seen by the second chunk of queries alone.
    """
    half = length // 2
    if source == rank:
        return slice(None), slice(None), True
    if source < rank:
        return slice(None), slice(0, half), False
    return slice(half, None), slice(None), False


class _Ring(torch.autograd.Function):
    """Zigzag ring attention: keys and values travel, partial results are merged by their log-sum-exp."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, axis: ContextAxis
    ) -> torch.Tensor:
        out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        lse = torch.full(q.shape[:-1], MASKED, dtype=torch.float32, device=q.device)
        states = []
        keys, values = k.contiguous(), v.contiguous()
        for step in range(axis.size):
            last = step == axis.size - 1
            arriving, work = ([], []) if last else _start_shift([keys, values], axis)
            queries, seen, causal = _visible_part(
                (axis.rank - step) % axis.size, axis.rank, q.shape[SEQUENCE]
            )
            block = blocks.forward(
                q[:, :, queries], keys[:, :, seen], values[:, :, seen], scale, causal=causal
            )
            states.append(block.state)
            out[:, :, queries], lse[:, :, queries] = blocks.merge(
                out[:, :, queries], lse[:, :, queries], block
            )
            _wait(work)
            keys, values = (keys, values) if last else arriving
        result = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, result, lse)
        ctx.scale, ctx.axis, ctx.states = scale, axis, states
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        axis, scale = ctx.axis, ctx.scale
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        d_keys_values: tuple[torch.Tensor, ...] = ()
        held = [k.contiguous(), v.contiguous()]
        moving: list[torch.Tensor] = []  # gradients of the keys held: they travel with them and end at home
        for step in range(axis.size):
            if step:
                arriving, work = _start_shift([*held, *(moving if step > 1 else ())], axis)
                _wait(work)
                held = arriving[:2]
                moving = arriving[2:] or [torch.zeros_like(x) for x in held]
            queries, seen, causal = _visible_part(
                (axis.rank - step) % axis.size, axis.rank, q.shape[SEQUENCE]
            )
            part = tuple(x.contiguous() for x in (q[:, :, queries], held[0][:, :, seen], held[1][:, :, seen]))
            block = blocks.Block(
                out[:, :, queries].contiguous(), lse[:, :, queries].contiguous(), ctx.states[step]
            )
            d_q, *d_held = blocks.backward(
                gradients[0][:, :, queries].contiguous(), part, block, scale, causal=causal
            )
            dq[:, :, queries] += d_q
            if step == 0:
                d_keys_values = tuple(d_held)
                continue
            for total, more in zip(moving, d_held, strict=True):
                total[:, :, seen] += more
        if axis.size > 1:
            moving, work = _start_shift(moving, axis)
            _wait(work)
            d_keys_values = tuple(mine + theirs for mine, theirs in zip(d_keys_values, moving, strict=True))
        return dq.to(q.dtype), d_keys_values[0], d_keys_values[1], None, None
