"""What a pipeline schedule keeps on each stage: microbatches in flight, and the model's two ends.

Legend: ``P`` stages, ``M`` microbatches, ``V`` chunks of a rank, ``s`` index of a stage.
"""

from __future__ import annotations

import numpy as np

from costmodel.layout import SCHEDULES, Quantity

V_SHAPED = ("zbv", "dualpipev")
"""Schedules whose first rank holds the first and the last chunk, and so the embedding and the head."""


def in_flight(
    schedule: Quantity, pp: Quantity, virtual_stages: Quantity, num_microbatches: Quantity, stage: Quantity
) -> Quantity:
    """Microbatches whose activations of a whole stage are held at the peak.

    GPipe M; 1F1B P − s; interleaved (2(P − s − 1) + (V − 1)·P + 1)/V, in chunks of 1/V stage; ZB-H1 P; ZBV P;
    DualPipeV P + 1/2; never more than M.

    Args:
        schedule: Code of `layout.SCHEDULES`.
        pp: Stages P.
        virtual_stages: Chunks V of a rank.
        num_microbatches: M.
        stage: Index s of the stage, 0 first.

    Returns:
        Microbatches.

    >>> float(in_flight(SCHEDULES.index("1f1b"), 8, 1, 64, 2))
    6.0

    Sources: Narayanan et al. 2021 §2.2 and Megatron-LM's warm-up count; Qi et al. 2023 (ZB-H1); Qi et al.
    2024 (ZBV); DualPipeV's reference order, which holds 2P + 1 half stages (the V of DeepSeek-V3's DualPipe,
    whose table 2 says P + 1 for whole ones).
    """
    P, V = pp, virtual_stages
    of_M, of_P, of_VP, of_s, constant = _HELD[:, np.asarray(schedule)]
    interleaved, dualpipev = (np.equal(schedule, SCHEDULES.index(s)) for s in ("interleaved", "dualpipev"))
    chunks = np.where(interleaved, V, 1 + dualpipev)
    held = (of_M * num_microbatches + of_P * P + of_VP * (V * P) + of_s * stage + constant) / chunks
    limited: Quantity = np.minimum(held, num_microbatches)
    return limited


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

    >>> gpipe = SCHEDULES.index("gpipe")
    >>> [float(held_microbatches(0.5, gpipe, 4, 1, M, 2)) for M in (1, 8)]
    [0.5, 7.5]
    """
    held = in_flight(schedule, pp, virtual_stages, num_microbatches, stage)
    whole = np.asarray(schedule)[..., None] == _WHOLE_BACKWARD
    full = np.greater_equal(held, num_microbatches) & whole.any(axis=-1)
    left: Quantity = held - relief * full / virtual_stages
    return left


_WHOLE_BACKWARD = np.array([SCHEDULES.index(name) for name in ("gpipe", "1f1b", "interleaved")])

_HELD_BY_SCHEDULE: dict[str, tuple[int, ...]] = {  # chunks held: coefficients of M, P, V·P, s and 1
    "gpipe": (1, 0, 0, 0, 0),
    "1f1b": (0, 1, 0, -1, 0),
    "interleaved": (0, 1, 1, -2, -1),
    "zb-h1": (0, 1, 0, 0, 0),
    "zbv": (0, 1, 0, 0, 0),
    "dualpipev": (0, 2, 0, 0, 1),
}
_HELD = np.array([_HELD_BY_SCHEDULE[name] for name in SCHEDULES], dtype=np.float64).T


def holds_ends(schedule: Quantity, pp: Quantity, stage: Quantity) -> tuple[Quantity, Quantity]:
    """Whether a stage's rank holds the embedding, and whether it holds the head, under a schedule (code)."""
    zbv, dualpipev = (np.equal(schedule, SCHEDULES.index(name)) for name in V_SHAPED)
    v_shaped, first = zbv | dualpipev, np.equal(stage, 0)
    return first, np.where(v_shaped, first, np.equal(stage, np.asarray(pp) - 1))
