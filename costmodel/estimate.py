"""The answer of the cost model for one layout: time, memory, money and energy, each as parts that sum.

A `TimeBreakdown` holds only what lengthens the step; communication hidden under compute is reported beside
the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from numpy.typing import ArrayLike

from costmodel.evidence.table import Evidence
from costmodel.kernels.grids import floats
from costmodel.memory.stage import MemoryBreakdown
from costmodel.parallel.axes import PARTS
from topology.base.arrays import Floats
from topology.base.units import BILLION, HOUR

PART_NAMES: Mapping[str, str] = {
    "compute_s": "compute",
    "recompute_s": "recomputation",
    **{f"{part}_s": axis.communication for part, axis in PARTS.items()},
    "bubble_s": "pipeline bubble",
    "optimizer_s": "optimizer step",
    "host_s": "host launching kernels",
}
"""The parts of `TimeBreakdown` in words; communication is what compute does not hide."""


def throughput_change(before_s: float, after_s: float) -> float:
    """Change of tokens per second from one time per token to another, as a share: t/t' - 1.

    The one measure of faster: a step of half the time is +100 %, one of twice the time -50 %.

    Args:
        before_s: Seconds of a step, or of a token.
        after_s: Seconds of the same work afterwards.

    >>> throughput_change(2.0, 1.0), throughput_change(1.0, 2.0)
    (1.0, -0.5)
    """
    return before_s / after_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBreakdown:
    """Where one optimizer step goes, on the pipeline rank that sets the pace; the parts sum to `total_s`.

    Attributes:
        compute_s: Forward and backward kernels of all microbatches.
        recompute_s: Forward work repeated in the backward.
        tp_s: Exposed tensor-parallel collectives.
        cp_s: Exposed context-parallel transfers.
        ep_s: Exposed expert all-to-alls.
        pp_s: Exposed pipeline sends.
        dp_s: Exposed gradient and parameter collectives, stragglers included.
        bubble_s: Waiting for other pipeline ranks.
        optimizer_s: Parameter update.
        host_s: Time in which the GPU waits for the host to launch, and fixed work per step.
        hidden_s: Communication that runs under compute, by axis; outside the sum.
    """

    compute_s: float
    recompute_s: float = 0.0
    tp_s: float = 0.0
    cp_s: float = 0.0
    ep_s: float = 0.0
    pp_s: float = 0.0
    dp_s: float = 0.0
    bubble_s: float = 0.0
    optimizer_s: float = 0.0
    host_s: float = 0.0
    hidden_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        """Seconds of one step: the sum of every part but `hidden_s`."""
        return float(sum(getattr(self, part.name) for part in fields(self) if part.name != "hidden_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one training step costs under one layout, and how sure the model is.

    Attributes:
        time: Parts of the step; they sum to `step_time_s`.
        step_time_s: Seconds of one optimizer step.
        lower_s: Lower end of the 80 % band of the step.
        upper_s: Upper end of it.
        memory_by_stage: One breakdown per pipeline rank.
        peak_memory_bytes: Total of the fullest rank.
        memory_lower_bytes: Lower end of the 80 % band of the peak.
        memory_upper_bytes: Upper end of it.
        out_of_memory_chance: Chance that the fullest rank needs more than its GPU has.
        mfu: Model FLOPs (6·active parameters·tokens plus attention, no recompute) over peak FLOPs of all
            GPUs that are paid for, idle ones included.
        hfu: The same with the recomputed FLOPs.
        tokens_per_s_per_gpu: Tokens of the global batch per second and GPU, idle ones included.
        usd_per_step: Money for one step of all GPUs that are paid for, None without a price.
        usd_per_billion_tokens: Money for 1e9 tokens, None without a price.
        wh_per_step: Energy of one step at the design power of the GPUs that work, in Wh.
        wh_per_billion_tokens: The same for 1e9 tokens.
        bound_by: The largest part of the step in words.
        assumptions: What was taken for granted, one sentence each.
        provenance: Where each calibrated number came from, and what was extrapolated.
        evidence: Measured runs behind all that this layout uses, its engine on its GPU generation first.
    """

    time: TimeBreakdown
    step_time_s: float
    lower_s: float
    upper_s: float
    memory_by_stage: tuple[MemoryBreakdown, ...]
    peak_memory_bytes: float
    memory_lower_bytes: float
    memory_upper_bytes: float
    mfu: float
    hfu: float
    tokens_per_s_per_gpu: float
    usd_per_step: float | None
    usd_per_billion_tokens: float | None
    wh_per_step: float
    wh_per_billion_tokens: float
    bound_by: str
    assumptions: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()
    out_of_memory_chance: float = 0.0
    evidence: tuple[Evidence, ...] = ()


def usd(seconds: ArrayLike, num_gpus: ArrayLike, usd_per_gpu_hour: float) -> Floats:
    """US dollars of `num_gpus` rented for `seconds`: t·N·price/3600.

    >>> float(usd(3600.0, 8, 2.5))
    20.0
    """
    return floats(seconds) * floats(num_gpus) * (usd_per_gpu_hour / HOUR)


def watt_hours(seconds: ArrayLike, num_gpus: ArrayLike, watts_per_gpu: float) -> Floats:
    """Watt-hours drawn by `num_gpus` for `seconds`: t·N·W/3600.

    >>> float(watt_hours(3600.0, 2, 700.0))
    1400.0
    """
    return floats(seconds) * floats(num_gpus) * (watts_per_gpu / HOUR)


def per_billion_tokens(amount_per_step: ArrayLike, tokens_per_step: ArrayLike) -> Floats:
    """Amount (dollars, Wh) of a billion tokens, from that of one step.

    >>> float(per_billion_tokens(2.0, 4_000_000))
    500.0
    """
    return floats(amount_per_step) * (BILLION / floats(tokens_per_step))
