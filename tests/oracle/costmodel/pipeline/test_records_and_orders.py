"""What a schedule's record says of memory and of its start, against its own order, pass by pass; no torch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest

from costmodel.layout import SCHEDULES, Schedule
from costmodel.pipeline.in_flight import in_flight
from costmodel.pipeline.orders import Pass
from costmodel.pipeline.schedules import RECORDS

RANKS, MICROBATCHES = range(1, 9), range(1, 25)
PIPELINES = [
    (schedule, ranks, chunks)
    for schedule, record in RECORDS.items()
    for chunks in ((2, 3, 4) if record.chunks is None else (record.chunks,))
    for ranks in RANKS
]


def most_held(order: Sequence[Pass]) -> int:
    """Chunks of which activations are kept at the worst moment: until the weight gradients, or both, are done.

    An input gradient alone frees nothing that its weight gradient still reads.
    """
    changes = {"F": 1, "B": 0, "W": -1, "BW": -1}
    return max(itertools.accumulate(changes[kind] for kind, _, _ in order))


def orders_of(schedule: Schedule, ranks: int, chunks: int) -> list[tuple[int, int, list[Pass]]]:
    """Microbatches, rank and order of everything that the schedule has an order for."""
    record = RECORDS[schedule]
    counts = [count for count in MICROBATCHES if count >= record.order_needs_per_rank * ranks]
    return [
        (count, rank, record.order(ranks, chunks, count, rank)) for count in counts for rank in range(ranks)
    ]


@pytest.mark.parametrize(("schedule", "ranks", "chunks"), PIPELINES)
def test_the_closed_form_is_what_the_order_holds(schedule: Schedule, ranks: int, chunks: int) -> None:
    """From two microbatches a rank on to the last bit; never less than held with fewer, nor more than all."""
    code = SCHEDULES.index(schedule)
    for microbatches, rank, order in orders_of(schedule, ranks, chunks):
        counted, held = float(in_flight(code, ranks, chunks, microbatches, rank)), most_held(order) / chunks
        if microbatches >= 2 * ranks:
            assert counted == held, (microbatches, rank)
        assert held <= counted <= microbatches, (microbatches, rank)


@pytest.mark.parametrize(("schedule", "ranks", "chunks"), PIPELINES)
def test_every_pass_is_in_the_order_once(schedule: Schedule, ranks: int, chunks: int) -> None:
    """From the fewest microbatches that the record says it has an order for."""
    for microbatches, _, order in orders_of(schedule, ranks, chunks):
        passes = Counter(kind for kind, _, _ in order)
        assert passes["F"] == passes["BW"] + passes["B"] == microbatches * chunks
        assert passes["B"] == passes["W"]
        assert len(set(order)) == len(order)
        assert bool(passes["W"]) <= RECORDS[schedule].splits_backward


@pytest.mark.parametrize(("schedule", "ranks", "chunks"), PIPELINES)
def test_a_rank_holds_its_most_after_the_microbatches_that_settle_it(
    schedule: Schedule, ranks: int, chunks: int
) -> None:
    """More than `settles_after` change nothing, so that memory may be traced over few of them."""
    record = RECORDS[schedule]
    of_microbatches, of_ranks, of_rank, constant = record.settles_after
    for microbatches, rank, order in orders_of(schedule, ranks, chunks):
        enough = of_microbatches * microbatches + of_ranks * ranks + of_rank * rank + constant
        fewer = min(microbatches, enough)
        if fewer >= record.order_needs_per_rank * ranks:
            assert most_held(record.order(ranks, chunks, fewer, rank)) == most_held(order), (
                microbatches,
                rank,
            )


def test_whether_backwards_are_split_is_seen_in_the_order() -> None:
    """At a size at which every schedule that splits them does so."""
    split = {
        name
        for name, record in RECORDS.items()
        if any(kind == "W" for kind, _, _ in record.order(4, record.chunks or 2, 16, 3))
    }
    assert split == {name for name, record in RECORDS.items() if record.splits_backward}
