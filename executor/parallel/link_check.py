"""Whether all ranks together reach what the plan counts on, in the seconds before the model is built.

One all-reduce of a size that links, not latencies, decide. A link that lost half its lanes, or ranks that
talk over the wrong network, would slow every step of the run down.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from costmodel.kernels.collectives import collective_time
from costmodel.kernels.tables import Calibration
from executor.comm.collectives import all_reduce
from planner.plan import Plan
from topology.base.errors import InputError
from topology.base.units import GB, MIB, format_seconds
from topology.builders import build

MESSAGE_BYTES = 256 * MIB
WARM_UPS, REPEATS = 2, 5
SLOW_SHARE = 0.5
"""Of the planned rate: what is left where half the lanes or a generation are lost (`plan bench --nodes`)."""
REFUSED_SHARE = 0.25
"""Of the planned rate: a tuned fabric's, which Ethernet, virtual nodes or a ring without NVLS may halve."""


def check_links(
    plan: Plan, device: torch.device, cal: Calibration, message_bytes: int = MESSAGE_BYTES
) -> str:
    """Measure an all-reduce of every rank; refuse to start where it takes over four times what is planned.

    Args:
        plan: what is to run; its cluster is what the time is estimated on.
        device: of this rank.
        cal: tables of kernels.
        message_bytes: of each rank.

    Returns:
        What to tell of one that takes over twice as long, the same on every rank; else nothing.

    Raises:
        InputError: It takes over four times as long.
    """
    ranks = dist.get_world_size()
    measured_s = measured_all_reduce_s(device, message_bytes)
    planned_s = planned_all_reduce_s(plan, cal, message_bytes)
    if ranks == 1 or measured_s <= planned_s / SLOW_SHARE:
        return ""
    rate, planned = (message_bytes / seconds / GB for seconds in (measured_s, planned_s))
    what = "ranks reach each other more slowly than the plan counts on"
    cause = (
        f"an all-reduce of {message_bytes // MIB} MiB among {ranks} ranks takes "
        f"{format_seconds(measured_s)} ({rate:.1f} GB/s), planned {format_seconds(planned_s)} "
        f"({planned:.1f} GB/s)"
    )
    if measured_s > planned_s / REFUSED_SHARE:
        fix = "find the slow link with plan bench --nodes, or --no-preflight to start all the same"
        raise InputError(what=what, cause=cause, fix=fix)
    return f"warning: {what}: {cause}; plan bench --nodes finds the slow link"


def planned_all_reduce_s(plan: Plan, cal: Calibration, message_bytes: int) -> float:
    """Seconds of an all-reduce of all ranks by the cost model, consecutive ranks on consecutive GPUs."""
    hierarchy = build(plan.request.cluster).hierarchy
    return float(collective_time(cal, hierarchy, "all_reduce", message_bytes, plan.layout.num_gpus, 1))


def measured_all_reduce_s(device: torch.device, message_bytes: int) -> float:
    """Median seconds of an all-reduce, that of the slowest rank; every rank calls it."""
    group = dist.group.WORLD
    message = torch.zeros(message_bytes // 4, device=device)
    seconds = list[float]()
    for _ in range(WARM_UPS + REPEATS):
        _finish(device)
        dist.barrier()
        began_s = time.perf_counter()
        all_reduce(message, group)
        _finish(device)
        seconds.append(time.perf_counter() - began_s)
    median = torch.tensor(sorted(seconds[WARM_UPS:])[REPEATS // 2], dtype=torch.float64, device=device)
    dist.all_reduce(median, op=dist.ReduceOp.MAX)
    return float(median)


def _finish(device: torch.device) -> None:
    """Wait for what a GPU was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
