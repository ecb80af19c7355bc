"""The GPU that a log shows: by the memory and the peak that its printed shares are of.

torchtitan prints a peak of memory with its share of the GPU's, and a rate with its share of the peak (MFU):
`device_memory_monitor` and `get_peak_flops` of torchtitan. Their quotients are figures of the GPU itself.
"""

from __future__ import annotations

from planner.formats.logs import Measured
from topology.base.units import TERA, format_bytes
from topology.catalog import gpus
from topology.hardware.datasheets import generation_of, sheet_named
from topology.hardware.gpu import Gpu

TOLERANCE = 0.03
"""Share by which a quotient of printed numbers may miss a data sheet: firmware holds some memory back."""


def is_shown(log: Measured | None) -> bool:
    """Whether a log prints a figure of its GPU."""
    return log is not None and bool(log.gpu_memory_bytes or log.gpu_peak_flop_per_s)


def can_be(gpu: Gpu, log: Measured | None, taken: Gpu) -> bool:
    """Whether a log can be of a GPU.

    Args:
        gpu: The one in question.
        log: What was measured.
        taken: The one that is assumed: of its maker is the other too, where no figure is printed.
    """
    if log is None or not is_shown(log):
        return generation_of(gpu).maker == generation_of(taken).maker
    figures = ((log.gpu_memory_bytes, gpu.memory_bytes), (log.gpu_peak_flop_per_s, gpu.peak("bf16")))
    return all(printed is None or abs(printed / listed - 1) <= TOLERANCE for printed, listed in figures)


def shown_gpu(log: Measured | None, usual: str) -> str:
    """The GPU whose figures a log prints; empty if none is known.

    Args:
        log: What was measured.
        usual: The one that is mentioned or assumed: it is the first that can be, then those of its
            generation, then the others in the order of the catalog.
    """
    if not is_shown(log):
        return ""
    known = gpus()
    alike = [name for name, gpu in known.items() if can_be(gpu, log, gpu)]
    of_kind = [name for name in alike if known[name].architecture == known[usual].architecture]
    return usual if usual in alike else next(iter((*of_kind, *alike)), "")


def holding_gpu(peak_bytes: float, usual: str) -> str:
    """The usual GPU, else that of its maker and with links of its own that has least memory and holds a peak.

    Empty if none does.

    >>> holding_gpu(60e9, "h100-sxm"), holding_gpu(130e9, "h100-sxm"), holding_gpu(194e9, "h100-sxm")
    ('h100-sxm', 'h200-sxm', 'gb200')
    """
    known = gpus()
    if known[usual].memory_bytes >= peak_bytes:
        return usual
    maker = generation_of(known[usual]).maker
    larger = [
        name
        for name, gpu in known.items()
        if gpu.memory_bytes >= peak_bytes
        and generation_of(gpu).maker == maker
        and sheet_named(name).scaleup_gb_per_s > 0
        and not gpu.derived_from
    ]
    return min(larger, key=lambda name: known[name].memory_bytes, default="")


def shown_figures(log: Measured) -> str:
    """The figures that a log prints of its GPU, in words."""
    memory = f"{format_bytes(log.gpu_memory_bytes)} a GPU" if log.gpu_memory_bytes else ""
    peak = f"a peak of {log.gpu_peak_flop_per_s / TERA:.0f} TFLOP/s" if log.gpu_peak_flop_per_s else ""
    return " and ".join(part for part in (memory, peak) if part)
