"""The verdict on memory: within a share of what a rank took, where the difference is more than rounding."""

from __future__ import annotations

from collections.abc import Sequence

from executor.validation.report import Verdict
from topology.base.units import MIB

MEMORY_TOLERANCE = 0.05
ALLOCATOR_BLOCK_BYTES = 2 * MIB
"""What torch's caching allocator asks a GPU for at least, and packs tensors up to half of it in.

Source: `kSmallBuffer` of c10/core/AllocatorConfig.h, torch 2.13.
"""


def worst_memory(pairs: Sequence[tuple[float, float]]) -> tuple[int, Verdict, str]:
    """Which rank differs most, whether its estimate holds, and why that is not said of a small one.

    A difference that is smaller than what a GPU is asked for at least is neither a finding nor a proof.

    Args:
        pairs: Bytes of each rank, as estimated and as found.

    >>> worst_memory([(10e9, 10e9), (10.4e9, 10e9)])
    (1, 'holds', '')
    >>> worst_memory([(4.4e6, 4.8e6)])
    (0, 'not checked here', '; a difference smaller than 2 MiB, one block of the allocator')
    """
    off = [abs(estimated / value - 1) for estimated, value in pairs]
    beyond = [rank for rank, share in enumerate(off) if share > MEMORY_TOLERANCE]
    shown = [rank for rank in beyond if abs(pairs[rank][0] - pairs[rank][1]) >= ALLOCATOR_BLOCK_BYTES]
    worst = max(shown or range(len(pairs)), key=lambda rank: off[rank])
    if shown:
        return worst, "does not hold", ""
    if beyond:
        small = f"; a difference smaller than {ALLOCATOR_BLOCK_BYTES // MIB} MiB, one block of the allocator"
        return worst, "not checked here", small
    return worst, "holds", ""
