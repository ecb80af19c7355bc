"""What GPU tests measured, as a page with date and versions."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import torch

HOW = "One process, messages go nowhere, weights N(0, 0.02²): `pytest -n 0 -m gpu tests/executor/gpu`."


@dataclass(frozen=True, kw_only=True)
class Row:
    """One rank of a plan beside its estimate; bytes and seconds."""

    plan: str
    peak_bytes: float
    estimated_bytes: float
    forward_s: float
    backward_s: float
    layer_s: float
    layer_estimated_s: float
    kernels: tuple[tuple[str, float], ...] = ()


def versions(gpu: str) -> str:
    """GPU and software of this process."""
    cuda = torch.version.cuda or torch.version.hip or "none"
    return f"{gpu}, torch {torch.__version__}, CUDA {cuda}, Python {platform.python_version()}"


def file_name(gpu: str, day: date) -> str:
    """A file for each day and GPU.

    >>> file_name("NVIDIA H100 80GB HBM3", date(2026, 11, 25))
    '2026-11-25-nvidia-h100-80gb-hbm3.md'
    """
    return f"{day.isoformat()}-{'-'.join(gpu.lower().split())}.md"


def page(rows: Sequence[Row], software: str, day: date) -> str:
    """A table of ranks, with the difference of each estimate."""
    lines = [
        f"# Ranks on a GPU, {day.isoformat()}",
        "",
        f"{software}. {HOW}",
        "",
        "| plan | peak, GiB | estimate over it | forward, ms | backward, ms | layer, ms | estimate over it |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.plan} | {row.peak_bytes / 2**30:.2f} | {row.estimated_bytes / row.peak_bytes - 1:+.1%} | "
        f"{1e3 * row.forward_s:.1f} | {1e3 * row.backward_s:.1f} | {1e3 * row.layer_s:.2f} | "
        f"{row.layer_estimated_s / row.layer_s - 1:+.1%} |"
        for row in rows
    ]
    for row in rows:
        lines += ["", f"Kernels of a step, {row.plan}:", "", "| kernel | ms |", "|---|---|"]
        lines += [f"| `{name.replace('|', ' ')}` | {1e3 * seconds:.2f} |" for name, seconds in row.kernels]
    return "\n".join(lines) + "\n"
