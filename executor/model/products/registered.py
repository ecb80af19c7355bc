"""Operators of torch with a kernel for each device, and their shapes for tensors without values.

As operators products are traced without values and counted like torch's own, with what a GPU allocates: what
a CPU needs to play one stays inside of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Product: TypeAlias = Callable[..., torch.Tensor]


def register(name: str, *, on_cpu: Product, on_gpu: Product, shape: Product) -> tuple[Product, Any]:
    """One operator with a kernel for each device, and torch's name of it."""
    whole = f"meshplan::{name}"
    run = torch.library.custom_op(whole, on_cpu, mutates_args=(), device_types="cpu")
    run.register_kernel("cuda")(on_gpu)
    run.register_fake(shape)
    return run, getattr(torch.ops.meshplan, name).default


def shape_of_sums(
    left: torch.Tensor,
    _left_scales: torch.Tensor,
    right: torch.Tensor,
    _right_scales: torch.Tensor,
    offsets: torch.Tensor,
    dtype: torch.dtype,
    _rows: int,
) -> torch.Tensor:
    """Sums over groups, (E, n, k), without values."""
    return left.new_empty(offsets.shape[0], left.shape[0], right.shape[0], dtype=dtype)
