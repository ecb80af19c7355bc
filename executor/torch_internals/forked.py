"""Whether a forked process may use CUDA."""

from __future__ import annotations

import torch


def cuda_forbids_fork() -> bool:
    """Whether CUDA was used before this process was forked: it cannot be used in it."""
    return bool(torch.cuda._is_in_bad_fork())  # noqa: SLF001 - asked before CUDA says so itself
