"""What waits in host memory, as written: what can, on which hosts, and what a layout must be for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.job import TrainingJob
from costmodel.updates.offload import Offload, host_path, parse_offload
from costmodel.updates.optimizers import optimizer
from topology.base.errors import InputError
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


def require_offloadable(job: TrainingJob, spec: ClusterSpec) -> None:
    """Refuse an update on hosts of which nothing is known, or of an optimizer that takes whole matrices."""
    if job.offload is None or not job.offload.updated:
        return
    if not optimizer(job.optimizer).is_plain:
        raise InputError(
            what=f"{job.optimizer} cannot be offloaded",
            cause="an update on the host is known of optimizers that keep as much of every parameter",
            fix="use --set job.optimizer=adamw, or offload activations",
        )
    if host_path(spec).memory_bytes_per_s is None:
        raise InputError(
            what="how fast the host updates parameters is not known",
            cause="the rate of host memory is not known of every node of this cluster",
            fix='add --set cluster.host_memory_bandwidth_bytes_per_s="400 GB/s", all sockets of a node',
        )
