"""The device that a rank computes on: which it is, what it is called, and how much memory was used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from executor.torch_internals.groups import nvlinks
from topology.base.errors import InputError

DEVICES = Path("/dev")


def choose_device(name: str, local_rank: int) -> torch.device:
    """Device of this rank: its GPU when there are GPUs and nothing else was asked for."""
    if name == "cuda" or (name == "auto" and torch.cuda.is_available()):
        if local_rank >= torch.cuda.device_count():
            raise InputError(
                what="there are more ranks on this node than GPUs",
                cause=f"local rank {local_rank}, {torch.cuda.device_count()} GPUs",
                fix="start as many ranks per node as it has GPUs, or use --device cpu",
            )
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    unseen = sorted(DEVICES.glob("nvidia[0-9]*"))
    if name == "auto" and unseen and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        raise InputError(
            what="this node has GPUs that torch does not see",
            cause=f"{', '.join(map(str, unseen[:3]))} is there, torch {torch.__version__} has no CUDA device",
            fix="mend its driver or install torch for CUDA, or say --device cpu",
        )
    return torch.device("cpu")


def fallback_line(name: str, device: torch.device) -> str:
    """A line for a run that is on a CPU though nobody has said so; empty for any other.

    >>> fallback_line("cpu", torch.device("cpu"))
    ''
    """
    if name != "auto" or device.type != "cpu":
        return ""
    return "no GPU was found: this trains on the CPU (--device cpu asks for that, --device cuda refuses it)"


def require_nvlink(device: torch.device, local_ranks: Sequence[int]) -> None:
    """Refuse to overlap messages of ranks whose GPUs are not all linked to each other by NVLink.

    Args:
        device: of this rank.
        local_ranks: indices on this node of the ranks that this one sends to; negative for another node's.
    """
    cause = ""
    if device.type != "cuda":
        cause = f"this rank is on a {device.type}"
    elif min(local_ranks) < 0:
        cause = "the ranks of a tensor-parallel group are on several nodes"
    else:
        links = nvlinks()
        apart = [(a, b) for a in local_ranks for b in local_ranks if a != b and not links[a][b]]
        cause = f"GPUs {apart[0][0]} and {apart[0][1]} have no NVLink to each other" if apart else ""
    if cause:
        raise InputError(
            what="--async-tp needs NVLink between the ranks of a tensor-parallel group",
            cause=cause,
            fix="leave --async-tp out, or plan with a tp that one NVLink domain holds",
        )


def device_name(device: torch.device) -> str:
    """What a device calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def device_memory_bytes(device: torch.device) -> float:
    """Memory of a GPU as its driver gives it; 0 for a CPU."""
    return float(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 0.0


def peak_memory_bytes(device: torch.device) -> float:
    """Peak memory of this rank: what the allocator held on a GPU, the process's resident set on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
