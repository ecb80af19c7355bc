"""Small traces, written as the recorders write them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

LAUNCHED_BEFORE_US = 5.0
"""A launch stands so long before its kernel where a test does not say when."""


def kernel(name: str, start_us: float, end_us: float, number: int, **args: Any) -> list[dict[str, Any]]:
    """A kernel and its launch."""
    launched = args.pop("launched_us", start_us - LAUNCHED_BEFORE_US)
    category, stream = args.pop("category", "kernel"), args.pop("stream", 7)
    call = {"kernel": "cudaLaunchKernel", "gpu_memcpy": "cudaMemcpyAsync", "gpu_memset": "cudaMemsetAsync"}
    given = {"stream": stream, "correlation": number, **args}
    return [
        _event(call[category], "cuda_runtime", launched, launched + 2.0, 100, {"correlation": number}),
        _event(name, category, start_us, end_us, stream, given),
    ]


def host(
    name: str,
    start_us: float,
    end_us: float,
    *,
    category: str = "user_annotation",
    thread: int = 100,
    args: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    return [_event(name, category, start_us, end_us, thread, args or {})]


def _event(
    name: str, category: str, start: float, end: float, thread: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": end - start,
        "args": args,
    }


def write(path: Path, *events: list[dict[str, Any]], rank: int = 0, world: int = 1, **beside: Any) -> Path:
    """A Kineto file of these events, packed where its name says so."""
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world, **beside.pop("info", {})},
        **beside,
        "traceEvents": [event for each in events for event in each],
    }
    text = json.dumps(document)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path
