"""In which order each rank of a V-shaped pipeline computes: ZBV, DualPipeV as torch has them, V-Half.

Rank r holds the chunks r (on the way down) and 2P − 1 − r (on the way up). Both orders are fixed before the
step, from equal passes; passes that are not equal wait for each other in that order.

Legend: ``P`` ranks, ``M`` microbatches; a pass is (kind, stage, microbatch) with kind ``F`` forward, ``B``
input gradient, ``W`` weight gradient, ``BW`` both in one.
"""

from __future__ import annotations

from collections import Counter, deque

from costmodel.pipeline.orders import Pass, PassKind

V_HALF_PERIOD = 6
"""Passes of a rank and microbatch: forward, input and weight gradient of both of its chunks."""


def zbv_order(ranks: int, microbatches: int, rank: int) -> list[Pass]:
    """Passes of one rank under ZBV: written for at least 2P − 1 microbatches, the first M of them kept.

    Source: Qi et al. 2024 (arXiv 2405.15362) section 4; torch.distributed.pipelining ScheduleZBVZeroBubble.

    >>> [f"{kind}{stage}" for kind, stage, _ in zbv_order(2, 1, 1)]
    ['F1', 'F2', 'B2', 'W2', 'B1', 'W1']
    """
    count = max(2 * ranks - 1, microbatches)
    down, up = rank, 2 * ranks - 1 - rank
    take = _Order()
    take.times(2 * (ranks - rank) - 1, ("F", down))
    take.times(rank, ("F", up), ("F", down))
    take.times(ranks - rank, ("F", up), ("B", up), ("W", up))
    while take.done["F", up] < count:
        if take.done["F", down] < count:
            take.times(1, ("F", down))
        take.times(1, ("B", down), ("W", down), ("F", up), ("B", up), ("W", up))
    take.times(rank, ("B", down), ("B", up))
    take.times(ranks - rank, ("B", down), ("W", down))
    for stage in (up, down):
        take.times(take.done["B", stage] - take.done["W", stage], ("W", stage))
    return [each for each in take.order if each[2] < microbatches]


def dualpipev_order(ranks: int, microbatches: int, rank: int) -> list[Pass]:
    """Passes of one rank under DualPipeV: the eight steps of the reference implementation, M ≥ 2P.

    Source: github.com/deepseek-ai/DualPipe, dualpipev.py; torch.distributed.pipelining ScheduleDualPipeV.

    >>> [f"{kind}{stage}" for kind, stage, _ in dualpipev_order(1, 2, 0)]
    ['F0', 'F1', 'F0', 'BW1', 'F1', 'BW0', 'BW1', 'B0', 'W0']
    """
    down, up = rank, 2 * ranks - 1 - rank
    later = ranks - rank - 1
    take = _Order()
    take.times(2 * later, ("F", down))
    take.times(rank + 1, ("F", down), ("F", up))
    for _ in range(later):
        take.backward(up, split=True)
        take.delayed()
        take.times(1, ("F", up))
    take.times(microbatches - 2 * ranks + rank + 1, ("F", down), ("BW", up), ("F", up), ("BW", down))
    take.times(later, ("BW", up), ("F", up), ("BW", down))
    _drain(take, down, up, rank, later)
    return take.order


def v_half_order(ranks: int, microbatches: int, rank: int) -> list[Pass]:
    """V-Half: ZBV under a limit of memory, ⌊P/2⌋ + 1 microbatches in flight on every rank.

    A microbatch takes places of a fixed pattern that comes again every six passes, slower on the way down
    than up so that ranks hold as long as each other; weight gradients take the places that are left, oldest
    first. Ranks then run these passes as soon as they can.

    Source: Qi et al. 2024 (arXiv 2405.15362) sections 3 and 4, the building block of V-Half, squeezed.
    Their code also moves passes of fill and drain into earlier gaps, which is not done here.

    >>> [f"{kind}{stage}" for kind, stage, _ in v_half_order(2, 1, 1)]
    ['F1', 'F2', 'B2', 'W2', 'B1', 'W1']
    """
    down, up = rank, 2 * ranks - 1 - rank
    odd = 3 * (ranks % 2 == 0)
    starts = (2 * rank, 3 * ranks - rank - 2, 3 * ranks + odd + 2 * rank - 1, 6 * ranks + odd - rank - 2)
    kinds: tuple[tuple[PassKind, int], ...] = (("F", down), ("F", up), ("B", up), ("B", down))
    placed = {
        start + V_HALF_PERIOD * m: (kind, stage, m)
        for (kind, stage), start in zip(kinds, starts, strict=True)
        for m in range(microbatches)
    }
    order: list[Pass] = []
    waiting: deque[Pass] = deque()
    for place in range(max(placed) + 1):
        if place in placed:
            kind, stage, m = placed[place]
            order.append((kind, stage, m))
            waiting += [("W", stage, m)] if kind == "B" else []
        elif waiting:
            order.append(waiting.popleft())
    return [*order, *waiting]


def _drain(take: _Order, down: int, up: int, rank: int, later: int) -> None:
    """Last backwards of a rank: from its middle on, weight gradients wait for the end."""
    split = False
    for i in range(rank + 1):
        middle = i == (rank + 1) // 2
        split = split or (middle and rank % 2 == 1)
        take.backward(up, split=split)
        split = split or (middle and rank % 2 == 0)
        take.backward(down, split=split)
    for _ in range(later):
        take.delayed()
        take.backward(down, split=split)
    while take.waiting:
        take.delayed()


class _Order:
    """Passes while they are written down: how many of each kind and stage, and delayed weight gradients."""

    def __init__(self) -> None:
        self.order: list[Pass] = []
        self.done: Counter[tuple[str, int]] = Counter()
        self.waiting: deque[tuple[int, int]] = deque()

    def times(self, count: int, *kinds: tuple[PassKind, int]) -> None:
        """Add the next microbatch of each of these kinds and stages, over and over."""
        for kind, stage in kinds * count:
            key = (kind[0], stage)
            self.order.append((kind, stage, self.done[key]))
            self.done[key] += 1

    def backward(self, stage: int, *, split: bool) -> None:
        """Add a whole backward, or its input half with the weights left for later."""
        self.times(1, ("B" if split else "BW", stage))
        if split:
            self.waiting.append((stage, self.order[-1][2]))

    def delayed(self) -> None:
        """Add the oldest delayed weight gradient, if any."""
        if self.waiting:
            self.order.append(("W", *self.waiting.popleft()))
