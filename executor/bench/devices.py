"""What accelerators this machine has, asked of torch."""

from __future__ import annotations


def num_devices() -> int:
    """Count the CUDA devices that torch sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def driver_name() -> str:
    """Name of the first CUDA device, as its driver gives it."""
    import torch

    return str(torch.cuda.get_device_name(0))


def gpu_memory_bytes() -> int:
    """Memory of the first CUDA device, as its driver gives it."""
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)
