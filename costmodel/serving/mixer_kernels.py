"""Kernels of served token mixers without a table: a launch, and shares of the GPU's rates that they reach.

    seconds = launch + max(bytes / (share · memory rate), FLOP / (share · peak of its operands))

The shares are data (``data/mixer_kernels.toml``), by the GPU's generation.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from topology.base.arrays import Floats
from topology.hardware.gpu import Gpu

_FILE = Path(__file__).parents[1] / "data" / "mixer_kernels.toml"
KernelName = Literal[
    "recurrent-step", "convolution-step", "convolution", "scan", "index-scores", "top-k", "chosen-keys",
    "compressed-keys", "streams",
]  # fmt: skip
_EVERY_OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerKernel:
    """One kernel.

    Attributes:
        name: What it computes.
        kind: Of which recurrence or attention; "" of every other.
        engine: Of which engine; "" of every other.
        launch_s: What the smallest call takes.
        memory_share: Of the memory rate, by generation; empty where it is never bound by memory.
        compute_share: Of the peak, by generation; empty where it is never bound by arithmetic.
        operands: Format of what it multiplies.
        row_bytes_per_s: At which one block reads its row, where a call of one row is no faster; 0 for none.
        least_heads: Heads of a rank are padded to so many.
        unmeasured: The kernel whose shares it has, where no table has it.
    """

    name: KernelName
    kind: str = ""
    engine: str = ""
    launch_s: float
    memory_share: Mapping[str, float] = field(default_factory=dict)
    compute_share: Mapping[str, float] = field(default_factory=dict)
    operands: str = "bf16"
    row_bytes_per_s: float = 0.0
    least_heads: int = 1
    unmeasured: str = ""

    def seconds(self, gpu: Gpu, *, moved_bytes: ArrayLike = 0.0, flop: ArrayLike = 0.0) -> Floats:
        """Seconds of a call that moves so many bytes and computes so many operations."""
        moved, work = np.asarray(moved_bytes, dtype=np.float64), np.asarray(flop, dtype=np.float64)
        busy = np.zeros(np.broadcast(moved, work).shape)
        if self.memory_share:
            busy = np.maximum(busy, moved / (_of(self.memory_share, gpu) * gpu.memory_bandwidth_bytes_per_s))
        if self.compute_share:
            operands = self.operands if self.operands in gpu.peak_flop_per_s else "bf16"
            busy = np.maximum(busy, work / (_of(self.compute_share, gpu) * gpu.peak(operands)))
        return np.asarray(self.launch_s + busy, dtype=np.float64)


@functools.cache
def mixer_kernel(name: KernelName, kind: str = "", engine: str = "") -> MixerKernel:
    """The kernel of an engine for a kind of mixer: its own, else that of every engine, or of every kind.

    >>> [mixer_kernel("scan", "gated-delta", engine).compute_share["hopper"] for engine in ("vllm", "sglang")]
    [0.435, 0.054]
    >>> mixer_kernel("scan", "mamba2", "vllm").unmeasured
    'scan of gated-delta'
    """
    from topology.base.decode import read_toml, structure

    entries = read_toml(_FILE)["kernels"]
    kernels = [structure(entry, MixerKernel, f"{_FILE.name}: {entry['name']}") for entry in entries]
    fitting = [each for each in kernels if each.name == name]
    fitting = [each for each in fitting if each.kind in ("", kind) and each.engine in ("", engine)]
    return max(fitting, key=lambda each: (bool(each.kind), bool(each.engine)))


def _of(shares: Mapping[str, float], gpu: Gpu) -> float:
    """The share of a GPU's generation."""
    return shares.get(gpu.architecture, shares[_EVERY_OTHER])
