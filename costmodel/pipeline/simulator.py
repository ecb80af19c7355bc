"""Event simulation of pipeline schedules, and the closed forms that bound them.

The simulation is the truth about a schedule: every forward, input-gradient and weight-gradient pass of
every stage and microbatch gets a start and an end, from the order in which its rank works and from when its
inputs arrive. All schedules follow orders that are fixed before the step, as engines do.

Legend: ``P`` ranks, ``V`` stages (chunks) of a rank, ``M`` microbatches; ``F``, ``B``, ``W`` seconds of the
forward, the input gradient and the weight gradient of one stage; ``c`` seconds of a send between ranks. A
stage is a chunk of the model, 0 first; schedules that do not split the backward run ``B + W`` as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from costmodel.layout import PLAIN_SCHEDULE, ParallelLayout
from costmodel.pipeline.orders import Pass, PassKind
from costmodel.pipeline.schedules import RECORDS
from costmodel.pipeline.stages import ranks_of_chunks
from topology.base.errors import InputError

NOT_YET = -1.0


class Event(NamedTuple):
    """One pass of one microbatch through one stage."""

    rank: int
    stage: int
    microbatch: int
    kind: Literal["F", "B", "W"]
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Durations by stage, in model order, and of a send between ranks.

    Attributes:
        forward_s: F of every stage.
        input_s: B of every stage, the part of the backward that the previous stage waits for.
        weight_s: W of every stage.
        send_s: c, from the end of a pass on one rank to its arrival on another.
    """

    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    send_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All passes of one step in order of their start, and when the last one ends."""

    events: tuple[Event, ...]
    makespan_s: float


class StepEnds(NamedTuple):
    """When a step's last pass ends, and the longest time from a rank's first pass to its last, seconds.

    The latter is what a step takes if ranks run into the next.
    """

    makespan_s: float
    span_s: float


def simulate_step(layout: ParallelLayout, num_microbatches: int, seconds: StageSeconds) -> Timeline:
    """Play one step of a schedule.

    Args:
        layout: pp, virtual_stages and schedule are read.
        num_microbatches: M.
        seconds: Durations of the pp·virtual_stages stages.

    >>> ones = StageSeconds(forward_s=(1.0,) * 4, input_s=(1.0,) * 4, weight_s=(1.0,) * 4)
    >>> simulate_step(ParallelLayout(pp=4), 8, ones).makespan_s
    33.0
    """
    events: list[Event] = []
    _play(layout, num_microbatches, seconds, events)
    return _timeline(events)


def step_ends(layout: ParallelLayout, num_microbatches: int, seconds: StageSeconds) -> StepEnds:
    """When one step of a schedule ends, as `simulate_step` plays it: less work, as no pass is kept.

    >>> ones = StageSeconds(forward_s=(1.0,) * 4, input_s=(1.0,) * 4, weight_s=(1.0,) * 4)
    >>> step_ends(ParallelLayout(pp=4), 8, ones)
    StepEnds(makespan_s=33.0, span_s=33.0)
    """
    return _play(layout, num_microbatches, seconds, None)


def _play(layout: ParallelLayout, M: int, seconds: StageSeconds, events: list[Event] | None) -> StepEnds:
    """Play one step; passes are added to `events`, if given."""
    owner = ranks_of_chunks(layout)
    if len(seconds.forward_s) != len(owner):
        raise InputError(
            what="durations do not match the stages",
            cause=f"{len(seconds.forward_s)} durations, pp·virtual_stages = {len(owner)}",
            fix="give one duration for every stage",
        )
    order = RECORDS[layout.schedule].order
    orders = [order(layout.pp, layout.virtual_stages, M, rank) for rank in range(layout.pp)]
    return _play_orders(layout, orders, M, seconds, events)


def _play_orders(
    layout: ParallelLayout,
    orders: Sequence[list[Pass]],
    M: int,
    seconds: StageSeconds,
    events: list[Event] | None,
) -> StepEnds:
    """Run fixed orders: each pass starts when its rank is free and its input has arrived."""
    owner = ranks_of_chunks(layout)
    durations, splits = _durations(seconds), RECORDS[layout.schedule].splits_backward
    last, c = len(owner) - 1, seconds.send_s
    done = {kind: [[NOT_YET] * M for _ in owner] for kind in "FBW"}
    free, place = [0.0] * len(orders), [0] * len(orders)
    first = [NOT_YET] * len(orders)
    waiting = list(range(len(orders)))
    while waiting:
        rank = waiting.pop()
        order, at, now = orders[rank], place[rank], free[rank]
        woken: set[int] = set()
        while at < len(order):
            kind, stage, m = order[at]
            before = stage - 1 if kind == "F" else (stage + 1 if kind != "W" and stage < last else -1)
            start = now
            if before >= 0:
                arrived = done[kind[0]][before][m]
                if arrived == NOT_YET:
                    break
                if owner[before] != rank:
                    arrived += c
                start = max(start, arrived)
            now = start + durations[kind][stage]
            done[kind[0]][stage][m] = now
            if at == 0:
                first[rank] = start
            if events is not None:
                events += _events(Event(rank, stage, m, _SHOWN[kind], start, now), kind, splits, seconds)
            after = stage + 1 if kind == "F" else stage - 1
            if kind != "W" and 0 <= after <= last and owner[after] != rank:
                woken.add(owner[after])
            at += 1
        place[rank], free[rank] = at, now
        waiting += [other for other in woken if place[other] < len(orders[other]) and other not in waiting]
    _require_finished(place, orders)
    spans = (end_s - start_s for start_s, end_s in zip(first, free, strict=True))
    return StepEnds(makespan_s=max(free), span_s=max(spans))


_SHOWN: dict[PassKind, Literal["F", "B", "W"]] = {"F": "F", "B": "B", "W": "W", "BW": "B"}


def _events(event: Event, kind: PassKind, splits: bool, seconds: StageSeconds) -> list[Event]:
    """A pass as events: both halves of a whole backward where the schedule splits others."""
    if kind != "BW" or not splits:
        return [event]
    middle_s = event.start_s + seconds.input_s[event.stage]
    return [event._replace(end_s=middle_s), event._replace(kind="W", start_s=middle_s)]


def _durations(seconds: StageSeconds) -> dict[PassKind, tuple[float, ...]]:
    """Duration of every kind of pass by stage."""
    whole = tuple(b + w for b, w in zip(seconds.input_s, seconds.weight_s, strict=True))
    return {"F": seconds.forward_s, "B": seconds.input_s, "W": seconds.weight_s, "BW": whole}


def _require_finished(place: Sequence[int], orders: Sequence[list[Pass]]) -> None:
    """Refuse orders whose passes wait for each other."""
    if any(at < len(order) for at, order in zip(place, orders, strict=True)):
        raise InputError(
            what="the schedule deadlocks",
            cause="some passes wait for passes that come later on their own rank",
            fix=f"make the number of microbatches a multiple of pp, or use schedule={PLAIN_SCHEDULE}",
        )


def _timeline(events: list[Event]) -> Timeline:
    """Events in order of their start."""
    events.sort(key=lambda event: (event.start_s, event.rank))
    return Timeline(events=tuple(events), makespan_s=max(event.end_s for event in events))


def makespan_bounds(
    layout: ParallelLayout, num_microbatches: int, rank_s: Sequence[float]
) -> tuple[float, float]:
    """Lower and upper bound in seconds on a step of a schedule that does not split its backward.

    lower = max_s (M·t_s + β·Σ_{j<s} t_j), upper = (M − β)·max t + β·Σ t, β = 1 for GPipe and 1F1B and 1/V
    interleaved, where t_s is forward and backward of one microbatch on rank s, without sends. For equal
    ranks both are (M + β·(P − 1))·t.

    Args:
        layout: virtual_stages and schedule are read.
        num_microbatches: M.
        rank_s: t of every rank.

    >>> makespan_bounds(ParallelLayout(pp=4), 8, (3.0,) * 4)
    (33.0, 33.0)

    Source: derived in docs/cost-model.md, Pipeline schedules; random pipelines stay between them
    (tests/oracle/costmodel/pipeline/test_simulator.py).
    """
    beta = 1.0 / (RECORDS[layout.schedule].chunks or layout.virtual_stages)
    M, slowest = num_microbatches, max(rank_s)
    before = [sum(rank_s[:s]) for s in range(len(rank_s))]
    lower = max(M * t + beta * earlier for t, earlier in zip(rank_s, before, strict=True))
    return lower, (M - beta) * slowest + beta * sum(rank_s)
