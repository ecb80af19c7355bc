"""What the examples share: ranks on GPUs or CPU cores, timing, and predicted against measured."""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from executor.bench.local_ranks import run_ranks
from topology.base.units import format_seconds

os.environ.setdefault(
    "PYTORCH_NVML_BASED_CUDA_CHECK", "1"
)  # look for GPUs without touching them before forking


def whole(text: str) -> int:
    """A count that is given on the command line: at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def factor(text: str) -> float:
    """How many times as long something takes: at least 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return value


def device_type(ranks: int) -> str:
    """GPUs when there are enough of them, CPU cores otherwise."""
    return "cuda" if torch.cuda.is_available() and torch.cuda.device_count() >= ranks else "cpu"


def device() -> torch.device:
    """Device of this rank."""
    if dist.get_backend_config() == "gloo" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def start(function: Callable[..., Any], ranks: int, *arguments: Any) -> list[Any]:
    """Run a function on every rank and return what each returns."""
    return run_ranks(function, ranks, *arguments, device_type=device_type(ranks), timeout_s=300)


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def median_seconds(*functions: Callable[[], Any], repeats: int = 9) -> list[float]:
    """Median wall time of each function after a call to warm up, taken in turns to see the same machine."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):
        for function, taken in zip(functions, times, strict=True):
            dist.barrier()
            synchronize()
            begin = time.perf_counter()
            function()
            synchronize()
            taken.append(time.perf_counter() - begin)
    return [statistics.median(taken[1:]) for taken in times]


def all_reduce(elements: int) -> Callable[[], Any]:
    """One all-reduce of this many fp32 elements over all ranks, to be timed."""
    buffer = torch.zeros(elements, device=device())
    return lambda: dist.all_reduce(buffer)


def report(title: str, rows: Sequence[tuple[str, float | str, float | str]]) -> None:
    """Print predicted against measured; names ending in ``_s`` are seconds, in ``share`` percent."""
    print(f"\n{title}")
    print(f"  {'':32}{'predicted':>14}{'measured':>14}")
    for name, predicted, measured in rows:
        print(f"  {name:32}{_text(name, predicted):>14}{_text(name, measured):>14}")


def _text(name: str, value: float | str) -> str:
    """One number in the unit of its name."""
    if isinstance(value, str):
        return value
    if name.endswith("_s"):
        return format_seconds(value)
    return f"{value:.1%}" if "share" in name or "efficiency" in name else f"{value:,.6g}"
