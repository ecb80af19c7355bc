"""Attention of one block of queries on one block of keys, with its log-sum-exp, forward and backward.

Ring attention adds blocks together, so it needs what a flash kernel keeps to itself: the log-sum-exp. The
kernels of torch are reached through their operators; shapes and types they do not take are computed in
plain tensors.

Legend: ``B`` sequences, ``h`` query heads, ``g`` key/value heads, ``q`` queries, ``k`` keys, ``d`` head size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from executor.torch_internals.operators import flash_attention, flash_attention_backward


class Block(NamedTuple):
    """Result of one block: out (B, h, q, d), lse (B, h, q) in fp32, and the kernel's own state."""

    out: torch.Tensor
    lse: torch.Tensor
    state: tuple[Any, ...]


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool) -> Block:
    """Attend q (B, h, q, d) to k, v (B, g, k, d); causal blocks are square."""
    if _has_flash_kernel(q):
        return Block(*flash_attention(q, k, v, scale, causal=causal))
    scores = _scores(q, k, scale, causal=causal)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp()
    return Block((weights @ _expand(v, q).float()).to(q.dtype), lse, ())


def backward(
    gradient: torch.Tensor,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    block: Block,
    scale: float,
    *,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v.

    `block.out` and `block.lse` may be those of the whole row (all blocks merged): each block then yields
    its own share of the gradient, since softmax weights only need the row's log-sum-exp (FlashAttention-2,
    §3.1).
    """
    if _has_flash_kernel(inputs[0]):
        return flash_attention_backward(gradient, inputs, block, scale, causal=causal)
    return _plain_backward(gradient, inputs, block, scale, causal=causal)


def _plain_backward(
    gradient: torch.Tensor,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    block: Block,
    scale: float,
    *,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Backward of a block in plain tensors: dS = P∘(dO·Vᵀ − rowsum(dO∘O))."""
    q, k, v = inputs
    wide, keys, values = gradient.float(), _expand(k, q).float(), _expand(v, q).float()
    weights = (_scores(q, k, scale, causal=causal) - block.lse.unsqueeze(-1)).exp()
    delta = (wide * block.out.float()).sum(-1, keepdim=True)
    d_scores = weights * (wide @ values.transpose(-1, -2) - delta) * scale
    dk, dv = d_scores.transpose(-1, -2) @ q.float(), weights.transpose(-1, -2) @ wide
    shape = (k.shape[0], k.shape[1], -1, *k.shape[2:])
    return (d_scores @ keys).to(q.dtype), dk.view(shape).sum(2).to(k.dtype), dv.view(shape).sum(2).to(v.dtype)


def merge(out: torch.Tensor, lse: torch.Tensor, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a block to the fp32 rows seen so far: weights e^(lse_i − lse) of each part sum to one."""
    total = torch.logaddexp(lse, block.lse)
    mine, theirs = (lse - total).exp().unsqueeze(-1), (block.lse - total).exp().unsqueeze(-1)
    return out * mine + block.out.float() * theirs, total


def _has_flash_kernel(q: torch.Tensor) -> bool:
    """Whether torch's flash operator takes these queries: any float on a CPU, half precision on a GPU."""
    return q.device.type == "cpu" or (q.device.type == "cuda" and q.dtype in (torch.bfloat16, torch.float16))


def _expand(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Repeat key/value heads so that each query head has one."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _scores(q: torch.Tensor, k: torch.Tensor, scale: float, *, causal: bool) -> torch.Tensor:
    """Scaled scores in fp32, future keys at −∞."""
    scores = q.float() @ _expand(k, q).float().transpose(-1, -2) * scale
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores
