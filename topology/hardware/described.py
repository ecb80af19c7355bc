"""A card that the catalog lacks, described by four keys: the rest is taken from the nearest card that it has.

Nearest is the least sum of squares of the logarithms of three ratios: memory, memory bandwidth, and dense
arithmetic in 16 bits. Precisions that nobody stated keep their ratio to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from topology.base.decode import structure
from topology.base.errors import InputError, shown
from topology.hardware.datasheets import GpuSheet, Machine, gpu_sheets, reference_machine
from topology.hardware.gpu import Gpu

FOUR_KEYS = "name, memory_bytes, memory_bandwidth_bytes_per_s and peak_flop_per_s = { bf16 = ... }"
"""What describes a card, dense arithmetic of one precision at least."""
_NUMBERS = ("memory_bytes", "memory_bandwidth_bytes_per_s", "peak_flop_per_s")
_TAKEN = {"architecture": "architecture", "tdp_w": "tdp", "peer_to_peer": "peer_to_peer"}
"""Keys that the nearest card has, and the words for them."""
_HALF = ("bf16", "fp16")


def described_gpu(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the table of a card with the keys it leaves out, and in `unverified` which those are.

    A table that states its architecture has the peaks that it states and no others.

    Args:
        table: what a file says of it: numbers in SI units, or text with a unit; one peak is that of bf16.
        where: its place in the file, for the message.

    Raises:
        InputError: one of the four keys is missing, or is no number.
    """
    missing = [key for key in _NUMBERS if key not in table]
    if missing:
        raise InputError(
            f"{where} describes {shown(str(table['name']))}, which the catalog lacks, in part",
            f"missing: {', '.join(missing)}",
            f"give {FOUR_KEYS}; the rest is derived and said",
        )
    stated = table["peak_flop_per_s"]
    peaks = structure(
        stated if isinstance(stated, dict) else {"bf16": stated},
        dict[str, float],
        f"{where}: peak_flop_per_s",
    )
    memory, bandwidth = (structure(table[key], float, f"{where}: {key}") for key in _NUMBERS[:2])
    half = next((peaks[name] for name in _HALF if name in peaks), max(peaks.values(), default=0.0))
    if not all(math.isfinite(number) and number > 0 for number in (memory, bandwidth, half)):
        return {**table, "peak_flop_per_s": peaks}  # what is wrong with it is said with its path
    nearest = _nearest(memory, bandwidth, half)
    card = nearest.gpu()
    ratio = half / _half(card)
    alike = "architecture" not in table and any(name in card.peak_flop_per_s for name in peaks)
    others = {
        name: peak * ratio for name, peak in card.peak_flop_per_s.items() if alike and name not in peaks
    }
    rest = {
        "architecture": card.architecture,
        "tdp_w": card.tdp_w,
        "peer_to_peer": card.peer_to_peer,
        "source": "the cluster file",
        "as_of": "as the file",
    }
    derived = [*(word for key, word in _TAKEN.items() if key not in table), *others]
    return {
        **rest,
        "unverified": derived,
        "derived_from": nearest.name,
        **table,
        "peak_flop_per_s": {**peaks, **others},
    }


def host_of(table: Mapping[str, Any]) -> Machine:
    """Return the machine that a described card is planned in: that of the nearest card with PCIe alone."""
    memory, bandwidth = (structure(table[key], float, key) for key in _NUMBERS[:2])
    peaks = structure(table["peak_flop_per_s"], dict[str, float], "peak_flop_per_s")
    half = next((peaks[name] for name in _HALF if name in peaks), max(peaks.values(), default=0.0))
    return reference_machine(_nearest(memory, bandwidth, half, on_pcie=True))


def derived_notes(gpu: Gpu) -> tuple[str, ...]:
    """What of a described card is another's; nothing of a card of the catalog."""
    if not gpu.derived_from:
        return ()
    derived = ", ".join(gpu.unverified)
    nearest = f"{gpu.derived_from}, the nearest card here by memory, bandwidth and arithmetic"
    return (f"{gpu.name} is described by its file; {derived} are taken from {nearest}",) if derived else ()


def _half(gpu: Gpu) -> float:
    return next((gpu.peak_flop_per_s[name] for name in _HALF if name in gpu.peak_flop_per_s), 0.0)


def _nearest(memory: float, bandwidth: float, half: float, *, on_pcie: bool = False) -> GpuSheet:
    """Return the sheet whose three numbers are nearest, by ratio."""

    def distance(sheet: GpuSheet) -> float:
        card = sheet.gpu()
        pairs = (
            (memory, card.memory_bytes),
            (bandwidth, card.memory_bandwidth_bytes_per_s),
            (half, _half(card)),
        )
        return sum(math.log(mine / its) ** 2 for mine, its in pairs)

    sheets = [s for s in gpu_sheets().values() if _half(s.gpu()) and not (on_pcie and s.scaleup_gb_per_s)]
    return min(sheets, key=lambda sheet: (distance(sheet), sheet.name))
