"""What of a node differs from the plan, found before anything is started: three lines, and no hours burnt."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from executor.launch.host_room import check_room, has_gpu
from executor.launch.node_state import SYS_CLASS, GpuState, NodeState, Tool, node_state
from planner.plan import Plan
from topology.base.errors import InputError
from topology.base.units import GBIT, format_bytes
from topology.builders import gpus_of
from topology.hardware.datasheets import generation_of, gpu_sheets
from topology.hardware.device_names import gpu_of_device
from topology.hardware.gpu import Gpu
from topology.pools.kinds import kinds_of
from topology.spec import NodeSpec

SKIP = "or --no-preflight to start all the same"
MEMORY_SHARE = 0.95
"""Of the memory that a plan counts on, what a driver must show of a GPU: it keeps some for itself."""
NIC_SHARE = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One thing that is not as planned, with its numbers, and what helps."""

    cause: str
    fix: str


def check_node(
    plan: Plan,
    ranks: range,
    *,
    device: str,
    environment: Mapping[str, str] = os.environ,
    tool: Tool | None = None,
    sys_class: Path = SYS_CLASS,
) -> None:
    """Refuse a node that is not as the plan has it, or without GPUs and too small for its ranks.

    Args:
        plan: what is to run.
        ranks: those of this node.
        device: as asked for; nothing is looked at for ``cpu``.
        environment: which GPUs this process may use.
        tool: answers a command line as the tools of GPUs do.
        sys_class: Linux's devices by class.
    """
    state = None if device == "cpu" else node_state(environment, tool=tool, sys_class=sys_class)
    if state is None:
        if device == "cpu" or (device == "auto" and not has_gpu()):
            check_room(plan, ranks, lambda rank: allocated_bytes(plan, rank))
        return
    values = list(mismatches(plan, ranks, state))
    if values:
        more = f" (and {len(values) - 1} more)" if len(values) > 1 else ""
        raise InputError(
            what=f"this node is not what the plan is for{more}",
            cause=values[0].cause,
            fix=f"{values[0].fix}, {SKIP}",
        )


def mismatches(plan: Plan, ranks: range, state: NodeState) -> Iterator[Mismatch]:
    """All that differs, what weighs most first."""
    if state.failure:
        yield Mismatch(cause=state.failure, fix="mend the driver, leave this node out")
        return
    node, gpus = node_of(plan, ranks), state.gpus[: len(ranks)]
    planned = gpus_of(plan.request.cluster)[node.gpu]
    if len(gpus) < len(ranks):
        yield Mismatch(
            cause=f"{len(gpus)} GPUs can be used here, the plan has {len(ranks)} ranks on this node",
            fix="give the job all GPUs of its nodes, plan again for what there is",
        )
    for gpu in gpus:
        yield from _of_kind(node, planned, gpu)
    needed = [peak_bytes(plan, rank) for rank in ranks]
    for gpu, peak in zip(gpus, needed, strict=False):
        yield from _of_memory(gpu, peak)
        yield from _of_health(gpu)
    yield from _of_driver(planned, gpus)
    if plan.layout.num_gpus > len(ranks):
        yield from _of_network(node, state)


def node_of(plan: Plan, ranks: range) -> NodeSpec:
    """The kind of node that these ranks were planned on."""
    kinds = kinds_of(plan.request.cluster)
    return kinds[plan.kind_of_stage[stage_of(plan, ranks.start)]] if plan.kind_of_stage else kinds[0]


def stage_of(plan: Plan, rank: int) -> int:
    """Pipeline rank of a rank, by the order of the mesh's axes, slowest first."""
    inner = 1
    for axis, degree in reversed(plan.mesh.axes):
        if axis == "pp":
            return rank // inner % degree
        inner *= degree
    return 0


def peak_bytes(plan: Plan, rank: int) -> float:
    """Peak memory that is estimated of a rank."""
    return plan.estimate.memory_by_stage[stage_of(plan, rank)].total_bytes


def allocated_bytes(plan: Plan, rank: int) -> float:
    """What tensors of a rank take at its peak by the estimate, without what a GPU's runtime keeps."""
    return plan.estimate.memory_by_stage[stage_of(plan, rank)].allocated_bytes


def _of_kind(node: NodeSpec, planned: Gpu, gpu: GpuState) -> Iterator[Mismatch]:
    """A GPU that is another, or has less memory; one of a user's own name cannot be told by its name."""
    where = f"GPU {gpu.index} is {gpu.name} with {format_bytes(gpu.memory_bytes)}"
    if node.gpu in gpu_sheets():
        try:
            name = gpu_of_device(gpu.name, gpu.memory_bytes)
        except InputError:
            name = ""
        if name != node.gpu:
            fix = f"plan again with --gpu {name}" if name else "plan again for this GPU"
            yield Mismatch(cause=f"{where}, the plan is for {node.gpu}", fix=fix)
    elif gpu.memory_bytes < MEMORY_SHARE * planned.memory_bytes:
        text = format_bytes(planned.memory_bytes)
        yield Mismatch(
            cause=f"{where}, the plan counts on {text} of {node.gpu}", fix="plan again for this GPU"
        )


def _of_memory(gpu: GpuState, peak: float) -> Iterator[Mismatch]:
    """Memory that others hold."""
    if gpu.free_bytes < peak:
        yield Mismatch(
            cause=f"GPU {gpu.index} has {format_bytes(gpu.free_bytes)} free of "
            f"{format_bytes(gpu.memory_bytes)}, its rank takes {format_bytes(peak)}",
            fix="end what holds the memory",
        )


def _of_health(gpu: GpuState) -> Iterator[Mismatch]:
    """What slows a GPU down, or will stop it."""
    if gpu.throttles:
        clock = f" at {gpu.clock_mhz} of {gpu.most_mhz} MHz" if gpu.clock_mhz and gpu.most_mhz else ""
        yield Mismatch(
            cause=f"GPU {gpu.index} is slowed down{clock}: {', '.join(gpu.throttles)}",
            fix="mend its cooling or power, leave this node out",
        )
    if gpu.uncorrected_errors:
        yield Mismatch(
            cause=f"GPU {gpu.index} has counted {gpu.uncorrected_errors} uncorrected errors of memory",
            fix="reset it, leave this node out",
        )
    if gpu.remaps:
        yield Mismatch(
            cause=f"memory of GPU {gpu.index}: {', '.join(gpu.remaps)}", fix="reset it, leave this node out"
        )


def _of_driver(planned: Gpu, gpus: tuple[GpuState, ...]) -> Iterator[Mismatch]:
    """A driver that is older than the GPU."""
    generation = generation_of(planned)
    first = generation.nvidia_driver
    for driver in dict.fromkeys(gpu.driver for gpu in gpus if gpu.driver):
        branch = driver.partition(".")[0]
        if branch.isdecimal() and int(branch) < first:
            yield Mismatch(
                cause=f"the driver is {driver}, {generation.name} needs {first} or later",
                fix="renew the driver",
            )


def _of_network(node: NodeSpec, state: NodeState) -> Iterator[Mismatch]:
    """Cards that are missing, down, or slower than those that messages between nodes were planned on."""
    planned = node.nics_per_node * node.nic_bandwidth_bytes_per_s
    if state.nic_bytes_per_s is not None and state.nic_bytes_per_s < NIC_SHARE * planned:
        each = node.nic_bandwidth_bytes_per_s / GBIT
        yield Mismatch(
            cause=f"cards of {state.nic_bytes_per_s / GBIT:.0f} Gbit/s are up, the plan has "
            f"{planned / GBIT:.0f} ({node.nics_per_node} of {each:.0f})",
            fix="mend the links, or plan again for what there is",
        )
