"""Operators without a public name: functional collectives, flash attention, messages under products."""

from __future__ import annotations

import importlib
from typing import Any

import torch

functional_collectives = torch.ops._c10d_functional  # noqa: SLF001
"""Operators that every functional collective lowers to: traced by fake tensors, run by gloo and NCCL."""
_flash_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
_grouped = torch.ops.aten._grouped_mm.default  # noqa: SLF001
_scaled = torch.ops.aten._scaled_mm_v2.default  # noqa: SLF001
_flash_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001
_flash = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_backward  # noqa: SLF001
_efficient = torch.ops.aten._scaled_dot_product_efficient_attention  # noqa: SLF001
_cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention  # noqa: SLF001
_other_device = torch.ops.aten._scaled_dot_product_fused_attention_overrideable  # noqa: SLF001


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:
    """Result, log-sum-exp, and what the backward wants back, of torch's flash kernel."""
    if q.device.type == "cpu":
        out, lse = _flash_cpu(q, k, v, 0.0, causal, scale=scale)
        return out, lse, ()
    result = _flash(q, k, v, 0.0, causal, scale=scale)
    return result[0], result[1], tuple(result[2:8])


def flash_attention_backward(
    gradient: torch.Tensor,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    result: tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]],
    scale: float,
    *,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v from the result of `flash_attention`, or of rows it is a part of."""
    out, lse, state = result
    if gradient.device.type == "cpu":
        grads = _flash_cpu_backward(gradient, *inputs, out, lse, 0.0, causal, scale=scale)
        return grads[0], grads[1], grads[2]
    cum_q, cum_k, max_q, max_k, seed, offset = state
    grads = _flash_backward(
        gradient, *inputs, out, lse, cum_q, cum_k, max_q, max_k, 0.0, causal, seed, offset, scale=scale
    )
    return grads[0], grads[1], grads[2]


def fused_gather_multiply(
    x: torch.Tensor, matrices: list[torch.Tensor], dim: int, group: Any
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Gather x along `dim` and multiply it by matrices, one under the other on GPUs."""
    symmetric = importlib.import_module("torch.distributed._symmetric_memory")
    operator = torch.ops.symm_mem.fused_all_gather_matmul
    run = operator if x.is_cuda else symmetric._fused_all_gather_matmul_fallback  # noqa: SLF001
    whole, results = run(x, matrices, dim, group.group_name, return_A=True)
    return whole, list(results)


def fused_multiply_scatter(x: torch.Tensor, matrix: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    """Multiply x by a matrix, sum over the group, keep a part of `dim`, one under the other on GPUs."""
    symmetric = importlib.import_module("torch.distributed._symmetric_memory")
    operator = torch.ops.symm_mem.fused_matmul_reduce_scatter
    run = operator if x.is_cuda else symmetric._fused_matmul_reduce_scatter_fallback  # noqa: SLF001
    result: torch.Tensor = run(x, matrix, "sum", dim, group.group_name)
    return result


def is_wait(function: Any) -> bool:
    """Whether an operation only waits for a collective."""
    return function is functional_collectives.wait_tensor.default


def in_backward() -> bool:
    """Whether autograd is running a backward pass on this thread."""
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001


FLASH_FORWARD = (_flash_cpu.default, _flash.default)
FLASH_BACKWARD = (_flash_cpu_backward.default, _flash_backward.default)
KEPT = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    _grouped,
    _scaled,
    _flash.default,
    _efficient.default,
    _cudnn.default,
    _other_device.default,
    _flash_cpu.default,
    functional_collectives.reduce_scatter_tensor.default,
    functional_collectives.all_to_all_single.default,
)
"""Matrix products, attention and messages: what recomputation by operator keeps."""
