"""Causal attention with sinks, or over a window, by flash kernels: no matrix of all scores is ever held.

A sink is one more score in a row's softmax, without a value. It only scales the row: with ℓ the row's
log-sum-exp and s the sink, out' = out · e^(ℓ − ℓ'), ℓ' = log(e^ℓ + e^s). Under a window of w, queries are cut
into chunks of w. Each sees its own chunk causally, and of the chunk before the keys that are less than w
back: a triangle above the diagonal, which is a causal one once both sequences are reversed. The two parts are
merged by their log-sum-exps, and the backward of each needs only the merged row (FlashAttention-2 §3.1).

Legend: ``B`` sequences, ``h`` query heads, ``g`` key/value heads, ``S`` sequence length, ``d`` head size,
``w`` window, ``n`` chunks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from executor.model.attention import blocks
from executor.model.attention.blocks import Block

SEQUENCE = 2
Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def attend_window(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attend q (B, h, S, d) to k, v (B, g, S, d), to at most `window` of the past; sinks are (h,) or None."""
    length = q.shape[SEQUENCE]
    if window is not None and window >= length:
        window = None
    result: torch.Tensor = _Windowed.apply(q, k, v, sinks, scale, window)
    return result


class _Windowed(torch.autograd.Function):
    """Keeps what flash attention keeps: the inputs, the result and one log-sum-exp per row."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        if window is None:
            out, lse, *states = blocks.forward(q, k, v, scale, causal=True)
        else:
            out, lse, *states = _chunked(q, k, v, scale, window)
        if sinks is not None:
            total = torch.logaddexp(lse, sinks.float().view(1, -1, 1))
            out, lse = out * (lse - total).exp().unsqueeze(-1), total
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse, sinks)
        ctx.scale, ctx.window, ctx.states = scale, window, states
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        q, k, v, out, lse, sinks = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        if ctx.window is None:
            row = Block(out, lse, ctx.states[0])
            found = blocks.backward(gradient, (q, k, v), row, ctx.scale, causal=True)
        else:
            found = _chunked_backward(gradient, (q, k, v), (out, lse), ctx.states, ctx.scale, ctx.window)
        d_sinks = None
        if sinks is not None:
            share = (sinks.float().view(1, -1, 1) - lse).exp()
            d_sinks = -(share * (gradient.float() * out.float()).sum(-1)).sum((0, SEQUENCE)).to(sinks.dtype)
        return (*found, d_sinks, None, None)


def _fold(x: torch.Tensor, window: int) -> torch.Tensor:
    """Cut the sequence into chunks: (B, heads, S, …) → (B, n, heads, w, …), padded with zeros at the end."""
    missing = -x.shape[SEQUENCE] % window
    if missing:
        x = functional.pad(x, (*(0, 0) * (x.dim() - SEQUENCE - 1), 0, missing))
    return x.unflatten(SEQUENCE, (-1, window)).transpose(1, SEQUENCE)


def _unfold(x: torch.Tensor, length: int) -> torch.Tensor:
    """Undo `_fold`: (B, n, heads, w, …) → (B, heads, S, …)."""
    return x.transpose(1, SEQUENCE).flatten(SEQUENCE, SEQUENCE + 1)[:, :, :length]


def _each(x: torch.Tensor) -> torch.Tensor:
    """Every chunk as a sequence of its own: (B·n, heads, w, …)."""
    return x.flatten(0, 1).contiguous()


def _late(x: torch.Tensor) -> torch.Tensor:
    """Queries that see into the chunk before, reversed: (B·(n − 1), heads, w − 1, …)."""
    return x[:, 1:, :, :-1].flip(3).flatten(0, 1).contiguous()


def _before(x: torch.Tensor) -> torch.Tensor:
    """Keys that the next chunk sees, reversed: (B·(n − 1), heads, w − 1, …)."""
    return x[:, :-1, :, 1:].flip(3).flatten(0, 1).contiguous()


def _chunked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int
) -> tuple[torch.Tensor, torch.Tensor, Any, Any]:
    """Result in fp32, log-sum-exp, and the state of both kernels, of windowed rows."""
    length = q.shape[SEQUENCE]
    queries, keys, values = (_fold(x, window) for x in (q, k, v))
    inner = blocks.forward(_each(queries), _each(keys), _each(values), scale, causal=True)
    chunks = queries.shape[:2]
    out, lse = inner.out.float().unflatten(0, chunks), inner.lse.unflatten(0, chunks)
    if window == 1:
        return _unfold(out, length), _unfold(lse, length), inner.state, ()
    earlier = blocks.forward(_late(queries), _before(keys), _before(values), scale, causal=True)
    rows = (chunks[0], chunks[1] - 1)
    block = Block(
        earlier.out.unflatten(0, rows).flip(3), earlier.lse.unflatten(0, rows).flip(3), earlier.state
    )
    seen = out[:, 1:, :, :-1], lse[:, 1:, :, :-1]
    merged = blocks.merge(*seen, block)
    for part, rest in zip(seen, merged, strict=True):
        part.copy_(rest)
    return _unfold(out, length), _unfold(lse, length), inner.state, earlier.state


def _chunked_backward(
    gradient: torch.Tensor,
    inputs: Parts,
    result: tuple[torch.Tensor, torch.Tensor],
    states: list[Any],
    scale: float,
    window: int,
) -> Parts:
    """Gradients of q, k and v of windowed rows: those of both parts, added where they overlap."""
    length = gradient.shape[SEQUENCE]
    d_out, out, lse, q, k, v = (_fold(x, window) for x in (gradient, *result, *inputs))
    chunks, rows = q.shape[:2], (q.shape[0], q.shape[1] - 1)
    row = Block(_each(out), _each(lse), states[0])
    inner = blocks.backward(_each(d_out), (_each(q), _each(k), _each(v)), row, scale, causal=True)
    totals = [found.unflatten(0, chunks) for found in inner]
    if window > 1:
        row = Block(_late(out), _late(lse), states[1])
        earlier = blocks.backward(_late(d_out), (_late(q), _before(k), _before(v)), row, scale, causal=True)
        places = (totals[0][:, 1:, :, :-1], *(total[:, :-1, :, 1:] for total in totals[1:]))
        for place, more in zip(places, earlier, strict=True):
            place.add_(more.unflatten(0, rows).flip(3))
    dq, dk, dv = (_unfold(total, length) for total in totals)
    return dq, dk, dv
