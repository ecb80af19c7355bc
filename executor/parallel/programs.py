"""In which order each pipeline rank computes, and in which order messages travel: plain data, no torch.

Orders are those of the published algorithms as torch implements them: GPipe (Huang 2019), 1F1B (Narayanan
2019), interleaved 1F1B (Narayanan 2021 §2.2), zero-bubble H1 and ZBV (Qi 2023 §3, 2024 §4), DualPipeV
(DeepSeek-V3 §3.2.1). Schedules that split the backward have ``I`` (gradient of the input) and ``W`` (of the
weights) in place of ``B``.

Legend: ``P`` pipeline ranks, ``V`` virtual stages of a rank, ``M`` microbatches; stages count from 0 to P·V
− 1.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from costmodel.pipeline.v_schedules import dualpipev_order, zbv_order
from topology.base.errors import InputError

Kind = Literal["F", "B", "I", "W"]

SPLIT_BACKWARD = frozenset({"zb-h1", "zbv", "dualpipev"})
V_SHAPED = frozenset({"zbv", "dualpipev"})
DURATIONS: dict[str, int] = {
    "F": 2,
    "B": 4,
    "I": 2,
    "W": 2,
}  # any positive numbers order messages consistently


class Action(NamedTuple):
    """One computation of a rank."""

    kind: Kind
    stage: int
    microbatch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a rank's program: compute an action, or start moving the message it produces."""

    what: Literal["compute", "send", "receive"]
    action: Action
    peer: int = -1


def stages_of_rank(schedule: str, ranks: int, virtual_stages: int, rank: int) -> tuple[int, ...]:
    """Stages that a rank holds, in model order: looped r, r+P, …; V-shaped r and 2P−1−r.

    >>> stages_of_rank("interleaved", 4, 2, 1), stages_of_rank("zbv", 4, 2, 1)
    ((1, 5), (1, 6))
    """
    if schedule in V_SHAPED:
        return (rank, 2 * ranks - 1 - rank)
    return tuple(rank + ranks * v for v in range(virtual_stages))


def rank_of_stage(schedule: str, ranks: int, stage: int) -> int:
    """Rank that holds a stage."""
    return min(stage, 2 * ranks - 1 - stage) if schedule in V_SHAPED else stage % ranks


def orders(
    schedule: str, ranks: int, virtual_stages: int, microbatches: int
) -> tuple[tuple[Action, ...], ...]:
    """Computations of every rank, in order.

    >>> [a.kind + str(a.microbatch) for a in orders("1f1b", 2, 1, 2)[0]]
    ['F0', 'F1', 'B0', 'B1']
    """
    makers: dict[str, Callable[[int, int, int, int], list[Action]]] = {
        "gpipe": _gpipe,
        "1f1b": _one_f_one_b,
        "interleaved": _interleaved,
        "zb-h1": _interleaved_zero_bubble,
        "zbv": _zbv,
        "dualpipev": _dualpipev,
    }
    _check(schedule, ranks, virtual_stages, microbatches)
    return tuple(tuple(makers[schedule](ranks, virtual_stages, microbatches, rank)) for rank in range(ranks))


def _check(schedule: str, ranks: int, virtual_stages: int, microbatches: int) -> None:
    """Refuse what a schedule is not defined for."""
    if schedule in V_SHAPED and virtual_stages != 2:
        raise InputError(
            what=f"{schedule} puts two stages on every rank",
            cause=f"virtual_stages = {virtual_stages}",
            fix="set layout.virtual_stages=2",
        )
    if schedule in ("gpipe", "1f1b") and virtual_stages != 1:
        raise InputError(
            what=f"{schedule} puts one stage on every rank",
            cause=f"virtual_stages = {virtual_stages}",
            fix="set layout.virtual_stages=1 or layout.schedule=interleaved",
        )
    rounds = max(1, microbatches // ranks)
    if schedule in ("interleaved", "zb-h1") and microbatches % rounds:
        raise InputError(
            what=f"{schedule} runs microbatches in equal rounds",
            cause=f"{microbatches} microbatches do not divide into {rounds} rounds of {ranks} stages",
            fix="make the number of microbatches a multiple of layout.pp",
        )
    if schedule == "dualpipev" and microbatches < 2 * ranks:
        raise InputError(
            what="dualpipev needs a microbatch for each stage",
            cause=f"{microbatches} microbatches, {2 * ranks} stages",
            fix="raise the global batch or lower layout.microbatch_size",
        )


def _gpipe(_ranks: int, _virtual: int, microbatches: int, rank: int) -> list[Action]:
    """All forwards, then all backwards."""
    return [Action("F", rank, m) for m in range(microbatches)] + [
        Action("B", rank, m) for m in range(microbatches)
    ]


def _one_f_one_b(ranks: int, _virtual: int, microbatches: int, rank: int) -> list[Action]:
    """P − r forwards to warm up, then one backward for each forward."""
    warmup = min(microbatches, ranks - rank)
    order = [Action("F", rank, m) for m in range(warmup)]
    for m in range(microbatches):
        order.append(Action("B", rank, m))
        if warmup + m < microbatches:
            order.append(Action("F", rank, warmup + m))
    return order


class _Counter:
    """Next microbatch of each (stage, kind)."""

    def __init__(self) -> None:
        self.next: dict[tuple[int, str], int] = defaultdict(int)

    def action(self, kind: Kind, stage: int) -> Action:
        """Take the next microbatch."""
        microbatch = self.next[stage, kind]
        self.next[stage, kind] += 1
        return Action(kind, stage, microbatch)


def _interleaved(ranks: int, virtual: int, microbatches: int, rank: int) -> list[Action]:
    """Chunks of a round in turn; warm-up (V−1)·round + 2(P−1−r) forwards."""
    per_round = microbatches // max(1, microbatches // ranks)
    total = virtual * microbatches
    warmup = min(total, (virtual - 1) * per_round + 2 * (ranks - 1 - rank))
    take, order = _Counter(), []
    for step in range(warmup + total):
        if step < total:
            order.append(take.action("F", (step // per_round) % virtual * ranks + rank))
        if step >= warmup:
            chunk = virtual - 1 - ((step - warmup) // per_round) % virtual
            order.append(take.action("B", chunk * ranks + rank))
    return order


def _interleaved_zero_bubble(ranks: int, virtual: int, microbatches: int, rank: int) -> list[Action]:
    """ZB1P: half the warm-up of interleaved 1F1B, weight gradients delayed by r steps (ZB-H1 when V = 1)."""
    per_round = microbatches // max(1, microbatches // ranks)
    total = virtual * microbatches
    warmup = min(total, (virtual - 1) * per_round + (ranks - 1 - rank))
    take, order, pending = _Counter(), [], deque[int]()
    for step in range(warmup + total):
        if step < total:
            order.append(take.action("F", (step // per_round) % virtual * ranks + rank))
        if step >= warmup:
            stage = (virtual - 1 - ((step - warmup) // per_round) % virtual) * ranks + rank
            order.append(take.action("I", stage))
            pending.append(stage)
            if step - warmup >= rank:
                order.append(take.action("W", pending.popleft()))
    return order + [take.action("W", stage) for stage in pending]


_WORDS: dict[str, Kind] = {"F": "F", "B": "I", "W": "W", "BW": "B"}


def _zbv(ranks: int, _virtual: int, microbatches: int, rank: int) -> list[Action]:
    """ZBV, in the order that the cost model times."""
    return [Action(_WORDS[kind], stage, m) for kind, stage, m in zbv_order(ranks, microbatches, rank)]


def _dualpipev(ranks: int, _virtual: int, microbatches: int, rank: int) -> list[Action]:
    """DualPipeV, in the order that the cost model times."""
    return [Action(_WORDS[kind], stage, m) for kind, stage, m in dualpipev_order(ranks, microbatches, rank)]


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
    schedule: str, ranks: int, virtual_stages: int, microbatches: int
) -> tuple[tuple[Step, ...], ...]:
    """Programs of all ranks: computations with their sends and receives, free of deadlock.

    Every rank starts its messages in one global order, that of their production in a simulated run:
    whatever the transport matches in order, matches here.
    """
    order = orders(schedule, ranks, virtual_stages, microbatches)
    stages = ranks * virtual_stages
    ends = end_times(order, stages)
    timed: list[list[tuple[tuple[int, ...], Step]]] = [[] for _ in range(ranks)]
    for rank, actions in enumerate(order):
        for action in actions:
            begin = ends[action] - DURATIONS[action.kind]
            timed[rank].append(((begin, 1), Step(what="compute", action=action)))
            follower = consumer(action, stages)
            peer = rank if follower is None else rank_of_stage(schedule, ranks, follower.stage)
            if follower is not None and peer != rank:
                when = (ends[action], 0, action.stage, action.microbatch, ord(action.kind))
                timed[rank].append((when, Step(what="send", action=action, peer=peer)))
                timed[peer].append((when, Step(what="receive", action=action, peer=rank)))
    return tuple(tuple(step for _, step in sorted(steps, key=lambda item: item[0])) for steps in timed)
