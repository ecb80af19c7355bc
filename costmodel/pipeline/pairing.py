"""Whether a forward runs beside the backward of another microbatch, and how much of a step runs so.

Legend: ``P`` ranks of the pipeline, ``M`` microbatches of a step, ``V`` chunks of a rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.layout import INTERLEAVED_SCHEDULE, SCHEDULES, LayoutTable
from costmodel.pipeline.schedules import column
from costmodel.stack import SoftwareStack

_PAIRING = column(lambda schedule: schedule.pairs_microbatches)
_INTERLEAVED = SCHEDULES.index(INTERLEAVED_SCHEDULE)


def paired_share(
    table: LayoutTable, num_microbatches: NDArray[np.int64], stack: SoftwareStack
) -> NDArray[Any]:
    """Share of the passes of a rank that run in pairs, one entry per layout, mean over ranks.

    All of them in a schedule made for it. Where the stack pairs experts' passes, those after the warm-up of
    an interleaved pipeline or of none: rank r runs (V − 1)·P + 2·(P − r − 1) + 1 chunks forward before its
    first pair, V·P of M·V in the mean, and as many backward after its last, so 1 − P/M. Other layouts and
    such without groups of experts run pass by pass.

    Source: `get_pp_rank_microbatches` and `combined_1f1b_schedule_for_no_pipelining` of megatron-core 0.19.2.
    """
    always = np.asarray(_PAIRING[table.schedule] & (table.pp > 1), dtype=np.float64)
    if not stack.timing.pairs_expert_passes:
        return always
    able = (table.ep > 1) & ((table.pp == 1) | (table.schedule == _INTERLEAVED))
    return np.asarray(np.maximum(always, able * np.maximum(0.0, 1 - table.pp / num_microbatches)))
