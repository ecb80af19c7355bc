"""Attention under a mask in plain products, a block of queries at a time: what a CPU computes.

As flash attention does, only the inputs, the result and one log-sum-exp per row are kept, and scores are
computed again in the backward pass. It is the oracle of the kernel that a GPU runs, and stands in for it on a
GPU that it does not run on.

Legend: ``B`` sequences, ``h`` query heads, ``g`` key/value heads, ``q`` queries, ``k`` keys, ``d`` head size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from executor.model.attention.masks import Mask, keys_of_rows, query_reach

ROWS = 128  # queries whose scores are held at once
Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, scale: float, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result of q (B, h, q, d) on the keys k, v (B, g, k, d) it sees, and log-sum-exp (B, h, q) in fp32.

    Scores s are scale·q·kᵀ, or c·tanh(s/c) of them under a soft cap c.
    """
    every_k, every_v = _expand(k, q), _expand(v, q)
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    for rows, keys, hidden in _blocks(q, mask):
        scores = _scores(q[:, :, rows], every_k[:, :, keys], scale)
        if cap is not None:
            scores = scores.div_(cap).tanh_().mul_(cap)
        scores = scores.masked_fill_(hidden, float("-inf"))
        lse[:, :, rows] = scores.logsumexp(-1)
        weights = (scores - lse[:, :, rows].unsqueeze(-1)).exp()
        out[:, :, rows] = weights.to(v.dtype) @ every_v[:, :, keys]
    return out, lse


def backward(
    gradient: torch.Tensor,
    inputs: Parts,
    result: tuple[torch.Tensor, torch.Tensor],
    mask: Mask,
    scale: float,
    cap: float | None,
) -> Parts:
    """Gradients of q, k and v: dS = P∘(dO·Vᵀ − rowsum(dO∘O))∘(1 − tanh²), P from the row's log-sum-exp."""
    (q, k, v), (out, lse) = inputs, result
    every_k, every_v = _expand(k, q), _expand(v, q)
    dq = torch.empty_like(q)
    dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (every_k, every_v))
    for rows, keys, hidden in _blocks(q, mask):
        towards = gradient[:, :, rows]
        scores = _scores(q[:, :, rows], every_k[:, :, keys], scale)
        turned = None if cap is None else scores.div_(cap).tanh_()
        logits = (scores if turned is None or cap is None else turned * cap) - lse[:, :, rows].unsqueeze(-1)
        weights = logits.masked_fill_(hidden, float("-inf")).exp_()  # hidden ones may overflow
        delta = (towards.float() * out[:, :, rows].float()).sum(-1, keepdim=True)
        d_scores = weights * ((towards @ every_v[:, :, keys].transpose(-1, -2)).float() - delta) * scale
        if turned is not None:
            d_scores = d_scores * (1 - turned.square())
        narrow = d_scores.to(q.dtype)
        dq[:, :, rows] = narrow @ every_k[:, :, keys]
        dk[:, :, keys] += (narrow.transpose(-1, -2) @ q[:, :, rows]).float()
        dv[:, :, keys] += (weights.to(v.dtype).transpose(-1, -2) @ towards).float()
    return dq, _sum_heads(dk, k), _sum_heads(dv, v)


def _blocks(q: torch.Tensor, mask: Mask) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Rows of each block of queries, their keys, and which of these each row does not see, (B', 1, q, k)."""
    queries, keys, first = (torch.from_numpy(x).to(q.device) for x in query_reach(mask))
    for start in range(0, q.shape[2], ROWS):
        rows = slice(start, min(start + ROWS, q.shape[2]))
        seen = keys_of_rows(mask, rows)
        at = keys[seen]
        yield rows, seen, ((at > queries[rows, None]) | (at < first[:, rows, None])).unsqueeze(1)


def _scores(q: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """Scaled q·kᵀ in fp32, (B, h, q, k)."""
    return (q @ keys.transpose(-1, -2)).float().mul_(scale)


def _expand(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Repeat key/value heads so that each query head has one."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _sum_heads(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sum the gradients of the query heads that share a key/value head, laid out as that head's values."""
    return torch.empty_like(x).copy_(gradient.unflatten(1, (x.shape[1], -1)).sum(2))
