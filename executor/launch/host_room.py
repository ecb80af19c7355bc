"""Whether a host without GPUs can hold the ranks that are started on it: they compute in its own memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from planner.plan import Plan
from topology.base.errors import InputError
from topology.base.units import MIB, format_bytes

RANK_BYTES = 200 * MIB
"""Memory of one rank's own before there is a model: Python 3.11 with torch 2.13, measured on Linux."""
MEMORY_FILE = Path("/proc/meminfo")
GPU_FILES = ("nvidia[0-9]*", "kfd")


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether the drivers of a maker of GPUs show one here."""
    return any(True for pattern in GPU_FILES for _ in devices.glob(pattern))


def free_bytes(file: Path = MEMORY_FILE) -> float | None:
    """What Linux says can be had without swapping; None where it says nothing."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kib = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((float(number) * 1024 for number in kib), None)


def check_room(
    plan: Plan, ranks: Iterable[int], allocated: Callable[[int], float], free: float | None = None
) -> None:
    """Refuse ranks that this host's memory cannot hold, as a plan for GPUs is on a machine without.

    Args:
        plan: what is to run.
        ranks: those of this host.
        allocated: bytes that each rank's tensors take by the estimate.
        free: bytes that are free; asked of Linux if not given.
    """
    free = free_bytes() if free is None else free
    needed = [RANK_BYTES + allocated(rank) for rank in ranks]
    if free is None or sum(needed) <= free:
        return
    raise InputError(
        what=f"this machine, without GPUs, cannot hold {len(needed)} ranks of the plan",
        cause=f"they take {format_bytes(sum(needed))} of its own memory, {format_bytes(free)} are free",
        fix=f"start it where the {plan.layout.num_gpus} GPUs are, plan for less (--gpus), or try a small "
        "part of it here: plan validate PLAN.json",
    )
