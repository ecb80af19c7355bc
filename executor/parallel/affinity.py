"""A rank on the processors beside its GPU: copies, launches and host memory then stay on one NUMA node.

What Linux says of PCI devices and nodes in sysfs decides. torchrun has the same (``--numa-binding node``) for
the ranks that it starts, and needs ``numactl`` on every host; these ranks are started by us, and bind
themselves before they touch memory: pages lie on the node of the processor that touches them first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import torch

SYSFS = Path("/sys")
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Processors of a node that this process may use, none where it stays as it is; `words` is why."""

    cpus: frozenset[int] = frozenset()
    words: str


def listed(text: str) -> frozenset[int]:
    """Numbers of a list as Linux writes it.

    >>> sorted(listed("0-2,8"))
    [0, 1, 2, 8]
    """
    matches = [_RANGE.fullmatch(part.strip()) for part in text.split(",") if part.strip()]
    ranges = [(int(match[1]), int(match[2] or match[1])) for match in matches if match is not None]
    return frozenset(number for first, last in ranges for number in range(first, last + 1))


def beside(pci_address: str, allowed: AbstractSet[int], sysfs: Path = SYSFS) -> Beside:
    """Where a rank of this GPU belongs among the processors that it is allowed.

    Args:
        pci_address: of the GPU, as sysfs names it: ``0000:1b:00.0``.
        allowed: processors that a scheduler or the user left this process.
        sysfs: where the system tells its devices.
    """
    nodes = listed(_read(sysfs / "devices/system/node/online"))
    if len(nodes) < 2:
        return Beside(words="this host has one NUMA node: ranks are not bound")
    node = _read(sysfs / "bus/pci/devices" / pci_address / "numa_node")
    if not node.isdecimal() or int(node) not in nodes:
        return Beside(words=f"the NUMA node of GPU {pci_address} is not known: ranks are not bound")
    here = listed(_read(sysfs / f"devices/system/node/node{node}/cpulist")) & allowed
    if not here:
        return Beside(
            words=f"none of the processors of NUMA node {node}, beside GPU {pci_address}, is allowed here: "
            "ranks are not bound"
        )
    return Beside(
        cpus=here, words=f"ranks are bound to the processors beside their GPUs, on {len(nodes)} nodes"
    )


def bind(device: torch.device, sysfs: Path = SYSFS) -> str:
    """Bind this process to the processors beside its GPU; says what was done, nothing for a CPU."""
    if device.type != "cuda" or not hasattr(os, "sched_setaffinity"):
        return ""
    result = beside(pci_address_of(device), os.sched_getaffinity(0), sysfs)
    if result.cpus:
        bind_threads(result.cpus)
    return result.words


def bind_threads(cpus: AbstractSet[int]) -> None:
    """Bind every thread of this process, but those that something else has bound already."""
    before = os.sched_getaffinity(0)
    for thread in (int(path.name) for path in Path("/proc/self/task").iterdir()):
        try:
            if os.sched_getaffinity(thread) == before:
                os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:  # it has ended meanwhile
            continue


def pci_address_of(device: torch.device) -> str:
    """PCI address of a GPU, as sysfs names it; of a torch that does not tell it, nobody's."""
    properties = torch.cuda.get_device_properties(device)
    if not hasattr(properties, "pci_bus_id"):
        return "of an unknown address"
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def _read(path: Path) -> str:
    """What a file of sysfs says, nothing where there is none."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
