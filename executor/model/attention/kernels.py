"""Attention under a mask, with a soft cap and with sinks: an operator each way, whatever computes it.

A GPU runs FlexAttention, a CPU plain products, and without values there are shapes alone: so what is counted
and traced is what a GPU keeps, queries, keys, values, result and one log-sum-exp a row, never a score. A GPU
that FlexAttention does not run on gets plain products, and is told so (`told`).

A sink is one more score in a row's softmax, without a value. It only scales the row: with ℓ the row's
log-sum-exp and s the sink, out' = out · e^(ℓ − ℓ'), ℓ' = log(e^ℓ + e^s). The backward pass needs nothing but
out' and ℓ' (FlashAttention-2 §3.1), so that is what is kept.

Legend: ``B`` sequences, ``h`` query heads, ``g`` key/value heads, ``q`` queries, ``k`` keys, ``d`` head size.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from executor.model.attention import flex, plain
from executor.model.attention.masks import Mask, mask_of

_asked: set[str] = set()  # kinds of devices that are to run FlexAttention for a test


@contextmanager
def flex_on_cpu() -> Iterator[None]:
    """Have a CPU compute what a GPU's kernels are made from, by torch's own definition of it: for tests."""
    _asked.add("cpu")
    try:
        yield
    finally:
        _asked.discard("cpu")


def attention_line(
    spec: ModelSpec, layout: ParallelLayout, device: torch.device, dtype: torch.dtype, *, documents: bool
) -> str:
    """What to say of a GPU that attends under a mask in plain products, and why it has one; else empty."""
    reasons = {
        "windows": spec.sliding_window is not None,
        "sinks": spec.attention_sinks,
        "soft caps": spec.attn_logit_softcapping is not None,
        "documents": documents,
        "gathered keys": layout.cp > 1 and layout.cp_kind == "allgather",
    }
    masked = ", ".join(reason for reason, holds in reasons.items() if holds)
    if device.type != "cuda" or not masked:
        return ""
    cause = flex.obstacle(device, dtype, spec.qk_head_dim)
    return cause and f"{masked} without FlexAttention, by plain products: {cause}"


def _computes(q: torch.Tensor) -> ModuleType:
    """The module whose `forward` and `backward` take such queries."""
    if q.device.type in _asked:
        return flex
    return plain if _obstacle(q.device, q.dtype, q.shape[-1]) else flex


_obstacle = functools.cache(flex.obstacle)  # asked at every call


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Sequence[int],
    scale: float,
    cap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result of q (B, h, q, d) on k, v (B, g, k, d), laid out as q, and log-sum-exp (B, h, q) in fp32."""
    forward: tuple[torch.Tensor, torch.Tensor] = _computes(q).forward(q, k, v, mask_of(mask), scale, cap)
    return forward


def _attend_backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    mask: Sequence[int],
    scale: float,
    cap: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v, each laid out as these."""
    backward: plain.Parts = _computes(q).backward(gradient, (q, k, v), (out, lse), mask_of(mask), scale, cap)
    return backward


def _shape_of_result(q: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Both results without values."""
    return torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _shape_of_gradients(
    _gradient: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients without values."""
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


torch.library.custom_op("meshplan::attend", _attend, mutates_args=()).register_fake(_shape_of_result)
torch.library.custom_op("meshplan::attend_backward", _attend_backward, mutates_args=()).register_fake(
    _shape_of_gradients
)
FORWARD, BACKWARD = torch.ops.meshplan.attend.default, torch.ops.meshplan.attend_backward.default


def attend_masked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask,
    *,
    scale: float,
    cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attend q (B, h, q, d) to those k, v (B, g, k, d) that it sees; sinks are (h,) or None."""
    result: torch.Tensor = _Masked.apply(q, k, v, sinks, mask, scale, cap)
    return result


class _Masked(torch.autograd.Function):
    """Keeps what flash attention keeps: the inputs, the result and one log-sum-exp per row."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None,
        mask: Mask,
        scale: float,
        cap: float | None,
    ) -> torch.Tensor:
        out, lse = FORWARD(q, k, v, mask.numbers, scale, cap)
        if sinks is not None:
            total = torch.logaddexp(lse, sinks.float().view(1, -1, 1))
            out, lse = (out * (lse - total).exp().unsqueeze(-1)).to(q.dtype), total
        ctx.save_for_backward(q, k, v, out, lse, sinks)
        ctx.mask, ctx.scale, ctx.cap = mask, scale, cap
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        q, k, v, out, lse, sinks = ctx.saved_tensors
        gradient = gradients[0]
        if gradient.stride() != out.stride():
            gradient = torch.empty_like(out).copy_(gradient)
        value = BACKWARD(gradient, q, k, v, out, lse, ctx.mask.numbers, ctx.scale, ctx.cap)
        d_sinks = None
        if sinks is not None:
            share = (sinks.float().view(1, -1, 1) - lse).exp()
            d_sinks = -(share * (gradient.float() * out.float()).sum(-1)).sum((0, 2)).to(sinks.dtype)
        return (*value, d_sinks, None, None, None)
