"""Kernels that repeat to the last bit: torch refuses all others once it is told.

On a GPU sums of routed rows, of embeddings' gradients and of attention's backward pass are added in whatever
order threads arrive, unless torch is told so; on a CPU the same kernels run either way.
"""

from __future__ import annotations

import os

import torch

from topology.base.errors import InputError

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""Without it cuBLAS may choose a workspace, and with that an order of sums, at each call."""
REFUSED = ("deterministic implementation", "use_deterministic_algorithms")


def be_deterministic() -> None:
    """Have torch use such kernels, and refuse operations that have none. Before CUDA is used."""
    os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing reads it


def refusal(error: Exception) -> InputError | None:
    """The three lines, where torch has refused an operation for that; else None."""
    text = " ".join(str(error).split())
    if not isinstance(error, RuntimeError) or not all(word in text for word in REFUSED):
        return None
    return InputError(
        what="the run asks for an operation that repeats to no last bit",
        cause=text.partition(". ")[0][:300],
        fix="leave --deterministic out, or change what needs the operation",
    )
