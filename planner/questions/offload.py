"""What waits in host memory, as written: what can, on which hosts, and what a layout must be for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodel.job import TrainingJob
from costmodel.updates.offload import Offload, host_path, parse_offload
from costmodel.updates.optimizers import optimizer
from topology.base.errors import InputError
from topology.base.units import GB
from topology.hardware.datasheets import machines
from topology.spec import ClusterSpec

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the optimizer's state that the search chooses among where none is said."""
_PINS: Mapping[str, tuple[str, str, Any]] = {
    "activations": ("recompute", "inputs of recomputed layers are what is offloaded", "full"),
    "parameters": ("zero_stage", "what ZeRO-3 shards is what is offloaded", 3),
}


def offload_of(text: str | None) -> tuple[Offload | None, tuple[float, ...]]:
    """What was written, and the shares to choose among where that was left open.

    >>> offload_of("activations")
    (Offload(optimizer=0.0, activations=1.0, parameters=False), ())
    >>> offload_of("optimizer")[1]
    (0.0, 0.25, 0.5, 0.75, 1.0)
    """
    if text is None:
        return None, ()
    offload, is_open = parse_offload(text)
    return offload, SHARES if is_open else ()


def offload_pins(offload: Offload | None, pins: dict[str, Any]) -> dict[str, Any]:
    """The pins with those that an offload asks for."""
    for kind, (field, why, value) in _PINS.items():
        if offload is not None and getattr(offload, kind) and pins.setdefault(field, value) != value:
            raise InputError(
                what=f"--offload {kind} and layout.{field} contradict each other",
                cause=f"{why}: {field} = {value}, not {pins[field]}",
                fix=f"leave layout.{field} out, or offload something else",
            )
    return pins


def require_offloadable(job: TrainingJob) -> None:
    """Refuse an update on hosts of an optimizer that takes whole matrices."""
    if job.offload is None or not job.offload.updated:
        return
    if not optimizer(job.optimizer).is_plain:
        raise InputError(
            what=f"{job.optimizer} cannot be offloaded",
            cause="an update on the host is known of optimizers that keep as much of every parameter",
            fix="use --set job.optimizer=adamw, or offload activations",
        )


HOST_RATE = "cluster.host_memory_bandwidth_bytes_per_s"


def with_host_rate(job: TrainingJob, spec: ClusterSpec) -> tuple[ClusterSpec, str]:
    """The cluster with a rate of host memory where nobody gives it, and a sentence that says so.

    It decides how long updates on the host take, and no memory: that of the slowest machine here is taken.

    Args:
        job: What is trained; only an update on the host asks for the rate.
        spec: The cluster of the job.
    """
    updated = job.offload is not None and job.offload.updated
    if not updated or host_path(spec).memory_bytes_per_s is not None:
        return spec, ""
    rate = min(filter(None, (machine.host_memory_bandwidth_bytes_per_s for machine in machines().values())))
    nodes = tuple(
        replace(node, host_memory_bandwidth_bytes_per_s=node.host_memory_bandwidth_bytes_per_s or rate)
        for node in spec.nodes
    )
    words = f"host memory of {rate / GB:.0f} GB/s a node, that of the slowest machine here"
    return replace(spec, nodes=nodes), f"{words}: --set {HOST_RATE} gives yours"
