"""What follows from a schedule's order: what a rank holds, what settles it, the fewest that have an order.

Counted pass by pass, once for each shape, and kept. `costmodel.pipeline.in_flight` has closed forms beside
them, which broadcast over thousands of layouts; tests hold those to these.

Legend: ``P`` ranks, ``V`` chunks of a rank, ``M`` microbatches.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

from costmodel.layout import ParallelLayout, Schedule
from costmodel.pipeline.bubble import ClosedForm
from costmodel.pipeline.orders import PassKind
from costmodel.pipeline.schedules import RECORDS
from costmodel.pipeline.simulator import StageSeconds, step_ends

_HELD_BY: Mapping[PassKind, int] = {"F": 1, "B": 0, "W": -1, "BW": -1}
"""Chunks whose activations a pass adds: an input gradient frees none that its weight gradient still reads."""

_PROBED_RANKS = (2, 3, 4)
"""Pipelines at which a fact of all shapes is read; tests walk the grid of them."""

_UNLIKE_MICROBATCHES = 2
"""Microbatches that are unlike the others: the first makes the gradients, the last reduces them."""


@functools.cache
def most_held(schedule: Schedule, ranks: int, chunks: int, microbatches: int, rank: int) -> int:
    """Chunks of a rank whose activations are kept at the worst moment, counted in its order.

    >>> [most_held("1f1b", 4, 1, 8, rank) for rank in range(4)], most_held("gpipe", 4, 1, 8, 0)
    ([4, 3, 2, 1], 8)
    """
    order = RECORDS[schedule].order(ranks, chunks, microbatches, rank)
    return max(itertools.accumulate(_HELD_BY[kind] for kind, _, _ in order), default=0)


@functools.cache
def settles_after(schedule: Schedule, ranks: int, chunks: int, microbatches: int, rank: int) -> int:
    """Microbatches, of those of a step, that bring a rank to its steady state: more hold no more.

    The fewest with which it holds its most, and one at either end, whose gradients are made and reduced.

    >>> settles_after("1f1b", 4, 1, 64, 1), settles_after("gpipe", 4, 1, 64, 1)
    (5, 64)
    """
    most = most_held(schedule, ranks, chunks, microbatches, rank)
    fewest = max(1, order_needs_per_rank(schedule) * ranks)
    enough = (m for m in range(fewest, microbatches) if most_held(schedule, ranks, chunks, m, rank) == most)
    return min(microbatches, next(enough, microbatches) + _UNLIKE_MICROBATCHES)


@functools.cache
def holds_all(schedule: Schedule) -> bool:
    """Whether every microbatch of a step is in flight at once.

    >>> [name for name in RECORDS if holds_all(name)]
    ['gpipe']
    """
    ranks, chunks = max(_PROBED_RANKS), RECORDS[schedule].chunks or 2
    return most_held(schedule, ranks, chunks, 4 * ranks, ranks - 1) == 4 * ranks * chunks


@functools.cache
def order_needs_per_rank(schedule: Schedule) -> int:
    """Microbatches per rank below which the schedule has no order.

    >>> order_needs_per_rank("1f1b"), order_needs_per_rank("dualpipev")
    (0, 2)
    """
    chunks = RECORDS[schedule].chunks or 2
    return next(
        each
        for each in itertools.count()
        if all(has_order(schedule, ranks, chunks, max(1, each * ranks)) for ranks in _PROBED_RANKS)
    )


@functools.cache
def has_order(schedule: Schedule, ranks: int, chunks: int, microbatches: int) -> bool:
    """Whether every rank's order has each forward, and each backward or both of its halves, once.

    >>> has_order("dualpipev", 4, 2, 3), has_order("dualpipev", 4, 2, 8)
    (False, True)
    """
    for rank in range(ranks):
        order = RECORDS[schedule].order(ranks, chunks, microbatches, rank)
        stages = {stage for _, stage, _ in order}
        passes = sorted((half, stage, m) for kind, stage, m in order for half in kind)
        whole = itertools.product("BFW", sorted(stages), range(microbatches))
        if len(stages) != chunks or passes != list(whole):
            return False
    return True


@functools.cache
def microbatches_per_rank(schedule: Schedule) -> int:
    """Microbatches per rank from which on the share of fill and drain that shows is its closed form.

    Read at passes of equal length. With fewer the steady state is never reached.

    >>> microbatches_per_rank("1f1b"), microbatches_per_rank("zb-2p")
    (1, 2)
    """
    return next(
        each
        for each in itertools.count(max(1, order_needs_per_rank(schedule)))
        if all(_has_its_bubble(schedule, ranks, each * ranks) for ranks in _PROBED_RANKS)
    )


def _has_its_bubble(schedule: Schedule, ranks: int, microbatches: int) -> bool:
    """Whether a step of equal passes takes M + β·(P − 1) microbatches."""
    record = RECORDS[schedule]
    chunks = record.chunks or 2
    ones = (1.0,) * (ranks * chunks)
    layout = ParallelLayout(pp=ranks, virtual_stages=chunks, schedule=schedule)
    played = step_ends(layout, microbatches, StageSeconds(forward_s=ones, input_s=ones, weight_s=ones))
    seconds = played.span_s if record.runs_over else played.makespan_s
    form: ClosedForm | None = record.bubble
    beta = 1 / chunks if form is None else float(form(ranks, microbatches, 1 / 3, 1 / 3))
    return abs(seconds / (3 * chunks) - microbatches - beta * (ranks - 1)) < 1e-9 * microbatches
