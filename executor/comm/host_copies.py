"""From the host to a device without waiting for what the device still computes."""

from __future__ import annotations

import torch


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on a device; a GPU copies it when its turn comes, from pinned memory."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def scalar(value: torch.Tensor | float, beside: torch.Tensor) -> torch.Tensor:
    """A number where and as `beside` is: a kernel writes it, where a copy would wait."""
    return value.to(beside.dtype) if isinstance(value, torch.Tensor) else beside.new_full((), value)
