"""In which order each pipeline rank computes, and in which order messages travel: plain data, no torch.

Orders are those that are timed (`costmodel.pipeline.schedules`). Schedules that split the backward have
``I`` (gradient of the input) and ``W`` (of the weights) in place of ``B``.

Legend: ``P`` pipeline ranks, ``V`` virtual stages of a rank, ``M`` microbatches; stages count from 0 to P·V
− 1.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal, NamedTuple

from costmodel.layout import INTERLEAVED_SCHEDULE, ParallelLayout, Schedule
from costmodel.pipeline.derived import order_needs_per_rank
from costmodel.pipeline.schedules import RECORDS
from costmodel.pipeline.stages import ranks_of_chunks
from topology.base.errors import InputError

ActionKind = Literal["F", "B", "I", "W"]

_KINDS: dict[str, ActionKind] = {"F": "F", "B": "I", "W": "W", "BW": "B"}
"""What the cost model calls the kinds."""

DURATIONS: dict[str, int] = {
    "F": 2,
    "B": 4,
    "I": 2,
    "W": 2,
}  # any positive numbers order messages consistently


class Action(NamedTuple):
    """One computation of a rank."""

    kind: ActionKind
    stage: int
    microbatch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a rank's program: compute an action, or start moving the message it produces."""

    what: Literal["compute", "send", "receive"]
    action: Action
    peer: int = -1


def stages_of_rank(schedule: Schedule, ranks: int, virtual_stages: int, rank: int) -> tuple[int, ...]:
    """Stages that a rank holds, in model order: looped r, r+P, …; V-shaped r and 2P−1−r.

    >>> stages_of_rank("interleaved", 4, 2, 1), stages_of_rank("zbv", 4, 2, 1)
    ((1, 5), (1, 6))
    """
    owners = _owners(schedule, ranks, virtual_stages)
    return tuple(stage for stage, owner in enumerate(owners) if owner == rank)


def _owners(schedule: Schedule, ranks: int, virtual_stages: int) -> tuple[int, ...]:
    """Rank of every stage."""
    return ranks_of_chunks(ParallelLayout(pp=ranks, virtual_stages=virtual_stages, schedule=schedule))


def orders(
    schedule: Schedule, ranks: int, virtual_stages: int, microbatches: int
) -> tuple[tuple[Action, ...], ...]:
    """Computations of every rank, in the order that the cost model times.

    >>> [a.kind + str(a.microbatch) for a in orders("1f1b", 2, 1, 2)[0]]
    ['F0', 'F1', 'B0', 'B1']
    """
    record = RECORDS[schedule]
    _check(schedule, ranks, virtual_stages, microbatches)
    by_rank = (record.order(ranks, virtual_stages, microbatches, rank) for rank in range(ranks))
    return tuple(tuple(Action(_KINDS[kind], stage, m) for kind, stage, m in order) for order in by_rank)


def _check(schedule: Schedule, ranks: int, virtual_stages: int, microbatches: int) -> None:
    """Refuse what a schedule is not defined for."""
    record = RECORDS[schedule]
    if record.chunks not in (None, virtual_stages):
        others = "" if record.v_shaped else f" or layout.schedule={INTERLEAVED_SCHEDULE}"
        raise InputError(
            what=f"{schedule} puts {'one stage' if record.chunks == 1 else 'two stages'} on every rank",
            cause=f"virtual_stages = {virtual_stages}",
            fix=f"set layout.virtual_stages={record.chunks}{others}",
        )
    needed = order_needs_per_rank(schedule) * ranks
    if microbatches < needed:
        raise InputError(
            what=f"{schedule} needs a microbatch for each stage",
            cause=f"{microbatches} microbatches, {needed} stages",
            fix="raise the global batch or lower layout.microbatch_size",
        )


# ── messages ──────────────────────────────────────────────────────────────────────────────────────────────


def consumer(action: Action, stages: int) -> Action | None:
    """Computation on another stage that waits for the result of this one: kind F or B stands for its family.

    >>> consumer(Action("F", 0, 3), 4), consumer(Action("I", 0, 3), 4)
    (Action(kind='F', stage=1, microbatch=3), None)
    """
    if action.kind == "F" and action.stage + 1 < stages:
        return Action("F", action.stage + 1, action.microbatch)
    if action.kind in ("B", "I") and action.stage > 0:
        return Action("B", action.stage - 1, action.microbatch)
    return None


def end_times(order: tuple[tuple[Action, ...], ...], stages: int) -> dict[Action, int]:
    """When each computation ends if every kind takes its nominal duration and messages take no time."""
    ends: dict[Action, int] = {}
    free = [0] * len(order)
    position = [0] * len(order)
    arrived: dict[Action, int] = {Action("F", 0, a.microbatch): 0 for r in order for a in r if a.kind == "F"}
    ready = [(0, rank) for rank in range(len(order))]
    stuck: set[int] = set()
    while ready:
        _, rank = heapq.heappop(ready)
        if position[rank] == len(order[rank]):
            continue
        action = order[rank][position[rank]]
        start = _earliest(action, arrived, ends, stages)
        if start is None:
            stuck.add(rank)
            continue
        end = max(start, free[rank]) + DURATIONS[action.kind]
        ends[action] = free[rank] = end
        position[rank] += 1
        follower = consumer(action, stages)
        if follower is not None:
            arrived[follower] = end
        ready += [(free[r], r) for r in (*stuck, rank)]
        stuck.clear()
        heapq.heapify(ready)
    if any(position[rank] < len(order[rank]) for rank in range(len(order))):
        raise RuntimeError(f"schedule cannot run to its end: positions {position}")
    return ends


def _earliest(action: Action, arrived: dict[Action, int], ends: dict[Action, int], stages: int) -> int | None:
    """When the inputs of a computation are there, None if something has not been computed yet."""
    stage, microbatch = action.stage, action.microbatch
    if action.kind == "F":
        return arrived.get(action)
    if action.kind == "W":
        return ends.get(Action("I", stage, microbatch))
    forward = ends.get(Action("F", stage, microbatch))
    gradient = 0 if stage == stages - 1 else arrived.get(Action("B", stage, microbatch))
    return None if forward is None or gradient is None else max(forward, gradient)


def programs(
    schedule: Schedule, ranks: int, virtual_stages: int, microbatches: int
) -> tuple[tuple[Step, ...], ...]:
    """Programs of all ranks: computations with their sends and receives, free of deadlock.

    Every rank starts its messages in one global order, that of their production in a simulated run:
    whatever the transport matches in order, matches here.
    """
    order = orders(schedule, ranks, virtual_stages, microbatches)
    stages, owner = ranks * virtual_stages, _owners(schedule, ranks, virtual_stages)
    ends = end_times(order, stages)
    timed: list[list[tuple[tuple[int, ...], Step]]] = [[] for _ in range(ranks)]
    for rank, actions in enumerate(order):
        for action in actions:
            begin = ends[action] - DURATIONS[action.kind]
            timed[rank].append(((begin, 1), Step(what="compute", action=action)))
            follower = consumer(action, stages)
            peer = rank if follower is None else owner[follower.stage]
            if follower is not None and peer != rank:
                when = (ends[action], 0, action.stage, action.microbatch, ord(action.kind))
                timed[rank].append((when, Step(what="send", action=action, peer=peer)))
                timed[peer].append((when, Step(what="receive", action=action, peer=rank)))
    return tuple(tuple(step for _, step in sorted(steps, key=lambda item: item[0])) for steps in timed)
