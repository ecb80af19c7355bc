"""Tensors without values, and what is behind a tensor."""

from __future__ import annotations

from typing import Any

import torch


def fake_tensors() -> Any:
    """Give a context in which tensors have shapes but no values."""
    from executor.torch_internals.remembered import RememberedFakes

    return RememberedFakes(allow_non_fake_inputs=True)


def active_fake_mode() -> Any:
    """Give the context of `fake_tensors` that is in force, None outside."""
    from torch._guards import active_fake_mode as active

    return active()


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Plain tensor behind a DTensor or a collective under way."""
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor  # noqa: SLF001
    return getattr(tensor, "elem", tensor)


def storage_key(tensor: torch.Tensor) -> int:
    """What identifies a tensor's storage while it lives."""
    return int(local_tensor(tensor).untyped_storage()._cdata)  # noqa: SLF001


def has_distributed_tensor(types: Any) -> bool:
    """Whether an operation is on DTensors."""
    from torch.distributed.tensor import DTensor

    return any(kind is DTensor for kind in types)


def asks_device(function: Any, args: Any) -> bool:
    """Whether an operation only asks where a fake tensor is."""
    return function is torch.ops.prim.device.default and hasattr(args[0], "fake_device")


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Tensors in nested containers."""
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
