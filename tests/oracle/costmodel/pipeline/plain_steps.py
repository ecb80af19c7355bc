"""Pipelines played the plain way: ranks walk their orders, several steps one after the other, nobody waits.

Written apart from `costmodel.pipeline.simulator`: it plays step after step on the same clock, so what a step
takes when ranks run into the next one is read off, not derived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Orders = Sequence[Sequence[tuple[str, int, int]]]


def ends_of_steps(
    orders: Orders, owner: Sequence[int], microbatches: int, seconds: Mapping[str, float], steps: int
) -> list[list[float]]:
    """End of every step on every rank, when each begins its next step as it finishes one.

    Args:
        orders: (kind, stage, microbatch) of every rank, kinds F, B and W.
        owner: Rank of every stage.
        microbatches: Of one step.
        seconds: Of a pass, by kind.
        steps: How many steps are played.
    """
    queues = [
        [(kind, stage, m + step * microbatches) for step in range(steps) for kind, stage, m in order]
        for order in orders
    ]
    done: dict[tuple[str, int, int], float] = {}
    clock, place = [0.0] * len(orders), [0] * len(orders)
    ends = [[0.0] * steps for _ in orders]
    while any(place[rank] < len(queue) for rank, queue in enumerate(queues)):
        before = sum(place)
        for rank, queue in enumerate(queues):
            while place[rank] < len(queue):
                kind, stage, m = queue[place[rank]]
                if kind == "F" and stage > 0:
                    needed = ("F", stage - 1, m)
                elif kind == "B" and stage < len(owner) - 1:
                    needed = ("B", stage + 1, m)
                else:
                    needed = ("F", stage, m) if kind == "B" else ("B", stage, m) if kind == "W" else None
                if needed is not None and needed not in done:
                    break
                clock[rank] = max(clock[rank], done[needed] if needed else 0.0) + seconds[kind]
                done[kind, stage, m] = clock[rank]
                ends[rank][m // microbatches] = clock[rank]
                place[rank] += 1
        assert sum(place) > before, "every rank waits for another"
    return ends


def most_held(order: Sequence[tuple[str, int, int]]) -> int:
    """Chunks that a rank holds at the worst moment, each until its weight gradients are done."""
    held = peak = 0
    for kind, _, _ in order:
        held += (kind == "F") - (kind == "W")
        peak = max(peak, held)
    return peak
