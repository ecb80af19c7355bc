"""Attention with softly capped scores (Gemma 2 §2), a block of queries at a time.

No flash kernel of torch caps scores, so they are computed in plain tensors; as flash attention does, only the
inputs, the result and one log-sum-exp per row are kept, and scores are computed again in the backward pass.

Legend: ``B`` sequences, ``h`` query heads, ``g`` key/value heads, ``q`` queries, ``k`` keys, ``d`` head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

BLOCK = 512  # queries whose scores are held at once


def attend_capped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, *, scale: float, cap: float
) -> torch.Tensor:
    """Attend q (B, h, q, d) to those k, v (B, g, k, d) that are visible (q, k), scores being c·tanh(s/c)."""
    result: torch.Tensor = _Capped.apply(q, k, v, visible, scale, cap)
    return result


class _Capped(torch.autograd.Function):
    """out = softmax(c·tanh(scale·q·kᵀ/c))·v, with dS = P∘(dO·Vᵀ − rowsum(dO∘O))∘(1 − tanh²)."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        visible: torch.Tensor,
        scale: float,
        cap: float,
    ) -> torch.Tensor:
        keys, values = _expand(k, q), _expand(v, q)
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        for rows in _blocks(q):
            scores = cap * _tanh(q[:, :, rows], keys, scale / cap)
            scores = scores.masked_fill_(~visible[rows], float("-inf"))
            lse[:, :, rows] = scores.logsumexp(-1)
            weights = (scores - lse[:, :, rows].unsqueeze(-1)).exp()
            out[:, :, rows] = weights.to(v.dtype) @ values
        ctx.save_for_backward(q, k, v, visible, out, lse)
        ctx.scale, ctx.cap = scale, cap
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, visible, out, lse = ctx.saved_tensors
        keys, values = _expand(k, q), _expand(v, q)
        dq = torch.empty_like(q)
        dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (keys, values))
        for rows in _blocks(q):
            gradient = gradients[0][:, :, rows]
            turned = _tanh(q[:, :, rows], keys, ctx.scale / ctx.cap)
            logits = ctx.cap * turned - lse[:, :, rows].unsqueeze(-1)
            weights = logits.masked_fill_(~visible[rows], float("-inf")).exp_()  # hidden ones may overflow
            delta = (gradient.float() * out[:, :, rows].float()).sum(-1, keepdim=True)
            d_weights = (gradient @ values.transpose(-1, -2)).float()
            d_scores = weights * (d_weights - delta) * (1 - turned.square()) * ctx.scale
            dq[:, :, rows] = d_scores.to(q.dtype) @ keys
            dk += (d_scores.to(q.dtype).transpose(-1, -2) @ q[:, :, rows]).float()
            dv += (weights.to(v.dtype).transpose(-1, -2) @ gradient).float()
        return dq, _sum_heads(dk, k), _sum_heads(dv, v), None, None, None


def _blocks(q: torch.Tensor) -> Iterator[slice]:
    """Rows of each block of queries."""
    for start in range(0, q.shape[2], BLOCK):
        yield slice(start, min(start + BLOCK, q.shape[2]))


def _tanh(q: torch.Tensor, keys: torch.Tensor, factor: float) -> torch.Tensor:
    """tanh(factor · q·kᵀ) in fp32, (B, h, q, k)."""
    return (q @ keys.transpose(-1, -2)).float().mul_(factor).tanh_()


def _expand(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Repeat key/value heads so that each query head has one."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _sum_heads(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sum the gradients of the query heads that share a key/value head."""
    return gradient.unflatten(1, (x.shape[1], -1)).sum(2).to(x.dtype)
