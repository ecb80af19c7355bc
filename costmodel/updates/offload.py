"""What a step keeps in host memory instead of the GPU's, and what moving it there and back takes.

Legend: ``f`` share that is offloaded, ``B`` bytes a second of a GPU's path to its host (PCIe or C2C), ``D``
    bytes a second of host memory that fall to a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from topology.base.errors import InputError, shown
from topology.base.units import TB

if TYPE_CHECKING:
    from topology.spec import ClusterSpec

OffloadKind = Literal["optimizer", "activations", "parameters"]
KINDS: tuple[OffloadKind, ...] = get_args(OffloadKind)
EXAMPLE = "optimizer:0.5"
DISKS = {"nvme", "ssd", "disk"}

HOST_EFFICIENCY = 0.53
"""Share of host memory's rate that an update on the processor reaches.

Source: ZeRO-Offload (arXiv 2101.06840) table 4, recalled: its CPU-Adam updates 1e9 parameters in 0.22 s on a
DGX-2, whose two sockets have six channels of DDR4-2666 each, 256 GB/s; an update moves `UPDATE_BYTES`.
"""
UPDATE_BYTES = 30.0
"""Bytes that an update of a parameter moves on a processor: gradient, master and moments read, the latter
three written, and the weight in sixteen bits."""
LINK_EFFICIENCY = 0.8
"""Share of a PCIe link's rate that pinned copies reach.

Source: packets of 256 bytes carry 24 to 28 of header and credit (PCI Express base specification), which
leaves 0.9; flow control takes the rest in what `nvbandwidth` prints, 25 of 32 and 52 of 64 GB/s, recalled.
"""
IN_TRANSIT = 2
"""Copies of a layer's input on the GPU: one that computes, one that leaves or arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Shares of what a GPU would keep that wait in host memory.

    Attributes:
        optimizer: Of the parameters of a rank, those whose moments and master weights are there, and are
            updated there; whether gradients stay is the engine's (`StackMemory.offloads_gradients`).
        activations: Of the inputs of recomputed layers, what leaves after the forward and returns before the
            backward. Layers that are not recomputed keep theirs.
        parameters: Whether everything that ZeRO-3 shards is there: weights, gradients and optimizer state.
    """

    optimizer: float = 0.0
    activations: float = 0.0
    parameters: bool = False

    def __post_init__(self) -> None:
        """Refuse shares that are none, and an offload of nothing."""
        for name in ("optimizer", "activations"):
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise _refused(f"{name}:{shown(share)} is no share of 0 to 1")
        if not (self.optimizer or self.activations or self.parameters):
            raise _refused("nothing is offloaded")
        if self.parameters and self.optimizer not in (0.0, 1.0):
            raise _refused("with parameters all of the optimizer's state is offloaded")

    @property
    def updated(self) -> float:
        """Share of the parameters that the host updates."""
        return 1.0 if self.parameters else self.optimizer

    @property
    def words(self) -> str:
        """As it is written on a command line."""
        return "+".join(self._parts())

    def _parts(self) -> Iterator[str]:
        if self.parameters:
            yield "parameters"
        elif self.optimizer:
            yield f"optimizer:{self.optimizer:g}"
        if self.activations:
            yield f"activations:{self.activations:g}" if self.activations < 1 else "activations"


_BETWEEN = re.compile("[+,]")


def parse_offload(text: str) -> tuple[Offload, bool]:
    """Read what is offloaded as people write it; True where the share of the optimizer is left open.

    >>> parse_offload("optimizer:0.25+activations")[0].words
    'optimizer:0.25+activations'
    >>> parse_offload("optimizer:0.5, activations")[0].words
    'optimizer:0.5+activations'
    >>> parse_offload("optimizer")
    (Offload(optimizer=1.0, activations=0.0, parameters=False), True)
    """
    offload: dict[str, float] = {}
    open_share = False
    for part in _BETWEEN.split(text.strip().lower()):
        name, colon, share = (word.strip() for word in part.partition(":"))
        if DISKS & {name, *share.split(":")}:
            raise _no_disk(part)
        if name not in KINDS:
            raise _refused(f"{shown(name)} is none of {', '.join(KINDS)}")
        if name in offload:
            raise _refused(f"{name} is said twice")
        if name == "parameters" and colon:
            raise _refused(f"{shown(part)}: parameters are offloaded whole, they take no share")
        open_share |= name == "optimizer" and not colon
        offload[name] = _share(share) if colon else 1.0
    open_share &= "parameters" not in offload
    return Offload(
        optimizer=offload.get("optimizer", 0.0),
        activations=offload.get("activations", 0.0),
        parameters="parameters" in offload,
    ), open_share


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """What a GPU has of its host; rates in bytes a second, memory in bytes; None where nobody said.

    `link_bytes_per_s` is what copies reach of its own path, `memory_bytes_per_s` its share of the rate of
    host memory, `memory_bytes` its share of that memory.
    """

    link_bytes_per_s: float
    memory_bytes_per_s: float | None
    memory_bytes: float | None


def host_path(spec: ClusterSpec) -> HostPath:
    """The least that any node of a cluster gives each of its GPUs."""
    rates = [(node.host_memory_bandwidth_bytes_per_s, node.gpus_per_node) for node in spec.nodes]
    sizes = [(node.host_memory_bytes, node.gpus_per_node) for node in spec.nodes]
    return HostPath(
        link_bytes_per_s=LINK_EFFICIENCY * min(node.host_bandwidth_bytes_per_s for node in spec.nodes),
        memory_bytes_per_s=_least_each(rates),
        memory_bytes=_least_each(sizes),
    )


def _least_each(numbers: list[tuple[float, int]]) -> float | None:
    """The least of so much of a node over its GPUs, if it is known of every node."""
    least = min(whole / gpus for whole, gpus in numbers)
    return least or None


def _share(text: str) -> float:
    """A share as text."""
    try:
        return float(text)
    except ValueError:
        raise _refused(f"{shown(text)} is no share") from None


def _no_disk(part: str) -> InputError:
    """The three lines of an offload to a node's own disks (ZeRO-Infinity)."""
    return InputError(
        "nothing is offloaded to NVMe",
        f"{shown(part)}: an update reads and writes {UPDATE_BYTES:g} bytes of each parameter, "
        f"{UPDATE_BYTES * 70e9 / TB:.1f} TB a step of 70B; what of a disk's rate it reaches is not known",
        "write --offload parameters or --offload optimizer, which wait in host memory; where that is too "
        "small, take more nodes, or say --set cluster.host_memory_bytes=2TiB",
    )


def _refused(cause: str) -> InputError:
    """The three lines of an offload that there is not."""
    return InputError("that cannot be offloaded", cause, f"write for example --offload {EXAMPLE}")
