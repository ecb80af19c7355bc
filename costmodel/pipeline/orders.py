"""In which order each rank of a looped pipeline computes: GPipe, 1F1B, interleaved, zero-bubble H1, H2.

Rank r holds the chunks r, r + P, r + 2P, … Orders are fixed before the step; what is timed and what is run is
the same list. The V-shaped orders are in `costmodel.pipeline.v_schedules`.

Legend: ``P`` ranks, ``V`` chunks of a rank, ``M`` microbatches; a pass is (kind, stage, microbatch) with kind
``F`` forward, ``B`` input gradient, ``W`` weight gradient, ``BW`` both in one.
"""

from __future__ import annotations

from typing import Literal

PassKind = Literal["F", "B", "W", "BW"]
Pass = tuple[PassKind, int, int]


def gpipe_order(_ranks: int, _chunks: int, microbatches: int, rank: int) -> list[Pass]:
    """All forwards, then all backwards (Huang et al. 2019).

    >>> gpipe_order(2, 1, 2, 1)
    [('F', 1, 0), ('F', 1, 1), ('BW', 1, 0), ('BW', 1, 1)]
    """
    forwards: list[Pass] = [("F", rank, m) for m in range(microbatches)]
    return forwards + [("BW", rank, m) for m in range(microbatches)]


def one_forward_one_backward_order(ranks: int, chunks: int, microbatches: int, rank: int) -> list[Pass]:
    """1F1B: P − r − 1 forwards ahead, then in turn one forward and one backward.

    With several chunks (interleaved) 2(P − r − 1) + (V − 1)·P forwards go ahead, and microbatches visit the
    chunks in groups of P. A last group of fewer is run as if it were whole and its missing ones are left out:
    what remains never waits for itself, takes no longer than the whole group and holds no more.

    >>> [f"{kind}{stage}.{m}" for kind, stage, m in one_forward_one_backward_order(2, 2, 3, 1)]
    ['F1.0', 'F1.1', 'F3.0', 'BW3.0', 'F3.1', 'BW3.1', 'F1.2', 'BW1.0', 'BW1.1', 'F3.2', 'BW3.2', 'BW1.2']

    Source: Narayanan et al. 2019; 2021 §2.2, as Megatron-LM and torch's ScheduleInterleaved1F1B run it where
    P divides M. For other M Megatron-Core refuses a last group of fewer than P, and torch makes longer
    groups, which hold more than `costmodel.pipeline.in_flight` counts, or refuses.
    """
    looped = chunks > 1
    ahead = 2 * (ranks - rank - 1) + (chunks - 1) * ranks if looped else ranks - rank - 1
    whole = -(-microbatches // ranks) * ranks if looped else microbatches
    visits = _visits(ranks, chunks, whole)
    forwards: list[Pass] = [("F", chunk * ranks + rank, m) for chunk, m in visits]
    backwards: list[Pass] = [("BW", (chunks - 1 - chunk) * ranks + rank, m) for chunk, m in visits]
    order = forwards[:ahead]
    for place, backward in enumerate(backwards):
        order += [*forwards[ahead + place : ahead + place + 1], backward]
    return [each for each in order if each[2] < microbatches]


def _visits(ranks: int, chunks: int, microbatches: int) -> list[tuple[int, int]]:
    """(chunk, microbatch) in the order of forwards: groups of P microbatches, chunk after chunk."""
    groups = [range(first, min(first + ranks, microbatches)) for first in range(0, microbatches, ranks)]
    return [(chunk, m) for group in groups for chunk in range(chunks) for m in group]


def zero_bubble_order(ranks: int, chunks: int, microbatches: int, rank: int) -> list[Pass]:
    """ZB-H1: 1F1B whose weight gradients follow their input gradients r microbatches later.

    So later ranks fill the drain with them.

    >>> [f"{kind}{m}" for kind, _, m in zero_bubble_order(2, 1, 2, 1)]
    ['F0', 'B0', 'F1', 'B1', 'W0', 'W1']

    Source: Qi et al. 2023 (arXiv 2401.10241) §3; torch.distributed.pipelining ScheduleInterleavedZeroBubble.
    """
    return _split(one_forward_one_backward_order(ranks, chunks, microbatches, rank), microbatches, rank)


def double_zero_bubble_order(ranks: int, _chunks: int, microbatches: int, rank: int) -> list[Pass]:
    """ZB-H2: twice as many forwards ahead as in 1F1B, and weight gradients 2r microbatches late.

    A rank's first input gradient arrives when its forwards ahead are done, and what the last ranks have put
    off lasts as long as the drain, so no rank waits between its first pass and its last.

    >>> [f"{kind}{m}" for kind, _, m in double_zero_bubble_order(2, 1, 3, 0)]
    ['F0', 'F1', 'F2', 'B0', 'W0', 'B1', 'W1', 'B2', 'W2']

    Source: Qi et al. 2023 (arXiv 2401.10241) §2.2, figure 3, whose automatic form of this memory is ZB-2p.
    """
    ahead = min(2 * (ranks - rank - 1), microbatches)
    order: list[Pass] = [("F", rank, m) for m in range(ahead)]
    for m in range(microbatches):
        order += [("F", rank, ahead + m)] if ahead + m < microbatches else []
        order.append(("BW", rank, m))
    return _split(order, microbatches, 2 * rank)


def _split(order: list[Pass], microbatches: int, lag: int) -> list[Pass]:
    """An order with backwards cut in two, weight gradients `lag` microbatches after input gradients."""
    split: list[Pass] = []
    for kind, stage, m in order:
        split.append(("F" if kind == "F" else "B", stage, m))
        if kind != "F" and m >= lag:
            split.append(("W", stage, m - lag))
    stage = order[0][1]
    return split + [("W", stage, m) for m in range(max(0, microbatches - lag), microbatches)]
