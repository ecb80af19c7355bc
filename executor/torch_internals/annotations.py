"""Names in the trace of a profiled step: loader, forward, backward, grad_sync, optimizer."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any


def annotated(name: str) -> AbstractContextManager[Any]:
    """Name what runs inside, in a trace that is being recorded; nothing where none is."""
    import torch

    if not torch.autograd._profiler_enabled():  # noqa: SLF001 - a flag, where a name costs microseconds
        return contextlib.nullcontext()
    return torch.profiler.record_function(name)
