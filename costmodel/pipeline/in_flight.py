"""What a pipeline schedule keeps on each stage: microbatches in flight, and the model's two ends.

Legend: ``P`` stages, ``M`` microbatches, ``V`` chunks of a rank, ``s`` index of a stage.
"""

from __future__ import annotations

import numpy as np

from costmodel.case import Workload
from costmodel.layout import SCHEDULES, LayoutTable
from costmodel.models.sizes import tied_parameters
from costmodel.pipeline.derived import most_held
from costmodel.pipeline.schedules import chunks_per_rank, column
from topology.base.arrays import Quantity

_HELD = column(lambda schedule: schedule.held or (0,) * 5).astype(np.float64).T
_IS_COUNTED = column(lambda schedule: schedule.held is None)
_SPLITS_BACKWARD = column(lambda schedule: schedule.splits_backward)
_HELD_WHOLE = column(lambda schedule: schedule.held_whole)
_V_SHAPED = column(lambda schedule: schedule.v_shaped)


def in_flight(
    schedule: Quantity, pp: Quantity, virtual_stages: Quantity, num_microbatches: Quantity, stage: Quantity
) -> Quantity:
    """Microbatches whose activations of a whole stage are held at the peak.

    GPipe M, of all V chunks; 1F1B P − s; interleaved (2(P − s − 1) + (V − 1)·P + 1)/V, in chunks of 1/V
    stage; ZB-H1 P; ZBV P; DualPipeV P + 1/2; ZB-2p 2P − 1; V-Half ⌊P/2⌋ + 1; never more than M. A schedule
    without a closed form is counted in its order, shape by shape.

    Args:
        schedule: Code of `layout.SCHEDULES`.
        pp: Stages P.
        virtual_stages: Chunks V of a rank.
        num_microbatches: M.
        stage: Index s of the stage, 0 first.

    Returns:
        Microbatches.

    >>> from costmodel.layout import SCHEDULES
    >>> float(in_flight(SCHEDULES.index("1f1b"), 8, 1, 64, 2))
    6.0

    Sources: Narayanan et al. 2021 §2.2 and Megatron-LM's warm-up count; Qi et al. 2023 (ZB-H1, ZB-2p); Qi
    et al. 2024 (ZBV, V-Half); DualPipeV's reference order, which holds 2P + 1 half stages (the V of
    DeepSeek-V3's DualPipe, whose table 2 says P + 1 for whole ones).
    """
    P, V = pp, virtual_stages
    of_VM, of_P, of_VP, of_s, constant = _HELD[:, np.asarray(schedule)]
    chunks = chunks_per_rank(schedule, V)
    held = of_VM * chunks * num_microbatches + of_P * P + of_VP * (V * P) + of_s * stage + constant
    microbatches = held / chunks
    whole = np.where(_HELD_WHOLE[np.asarray(schedule)], np.floor(microbatches), microbatches)
    limited: Quantity = np.minimum(whole, num_microbatches)
    if not np.any(_IS_COUNTED[np.asarray(schedule)]):
        return limited
    counted: Quantity = np.where(
        _IS_COUNTED[np.asarray(schedule)],
        _counted_chunks(schedule, P, chunks, num_microbatches, stage) / chunks,
        limited,
    )
    return counted


def _counted(schedule: int, pp: int, chunks: int, num_microbatches: int, stage: int) -> int:
    """Chunks in flight of a schedule that has no closed form; 0 of one that has, and past the last stage."""
    if not _IS_COUNTED[schedule] or stage >= pp:
        return 0
    return most_held(SCHEDULES[schedule], int(pp), int(chunks), int(num_microbatches), int(stage))


_counted_chunks = np.vectorize(_counted, otypes=[np.float64])


def held_microbatches(
    relief: Quantity,
    schedule: Quantity,
    pp: Quantity,
    virtual_stages: Quantity,
    num_microbatches: Quantity,
    stage: Quantity,
) -> Quantity:
    """Microbatches held at the peak, counting gradients as if they were there from the start of the step.

    Where every microbatch of the step is in flight before the first backward, gradients that are made on
    demand take the place of that backward's activations: max(M·A, (M − 1)·A + G) = M·A + G − min(A, G) with
    A activations of a microbatch and G gradients. `relief` is min(A, G)/A, 0 where gradients are allocated in
    advance; of interleaved chunks only the first to run backward counts. Other arguments as `in_flight`.

    >>> from costmodel.layout import SCHEDULES
    >>> gpipe = SCHEDULES.index("gpipe")
    >>> [float(held_microbatches(0.5, gpipe, 4, 1, M, 2)) for M in (1, 8)]
    [0.5, 7.5]
    """
    held = in_flight(schedule, pp, virtual_stages, num_microbatches, stage)
    full = np.greater_equal(held, num_microbatches) & ~_SPLITS_BACKWARD[np.asarray(schedule)]
    left: Quantity = held - relief * full / virtual_stages
    return left


def holds_ends(schedule: Quantity, pp: Quantity, stage: Quantity) -> tuple[Quantity, Quantity]:
    """Whether a stage's rank holds the embedding, and whether it holds the head, under a schedule (code)."""
    first = np.equal(stage, 0)
    return first, np.where(_V_SHAPED[np.asarray(schedule)], first, np.equal(stage, np.asarray(pp) - 1))


def copied_parameters(work: Workload, table: LayoutTable) -> Quantity:
    """Parameters of the embedding that the head's rank of a pipeline holds once more, before they are cut.

    Those of a tied embedding; else, unless one rank holds both ends of the model, those in which modules that
    predict further tokens look theirs up.

    Source: megatron-core's ``GPTModel`` builds an embedding where ``mtp_process`` is; DeepSeek-V3 section 2.2
    shares it because DualPipe puts both ends on one rank.
    """
    model = work.model
    if (tied := tied_parameters(model)) or not work.job.mtp_layers:
        return tied
    apart: Quantity = np.where(_V_SHAPED[table.schedule], 0, model.vocab_size * model.hidden_size)
    return apart
