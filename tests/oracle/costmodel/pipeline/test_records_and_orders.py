"""What is said of a schedule's memory and of its start, against its own order, pass by pass; no torch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest

from costmodel.layout import SCHEDULES, ParallelLayout, Schedule
from costmodel.pipeline.derived import (
    has_order,
    holds_all,
    microbatches_per_rank,
    order_needs_per_rank,
    settles_after,
)
from costmodel.pipeline.in_flight import in_flight
from costmodel.pipeline.orders import Pass
from costmodel.pipeline.schedules import RECORDS
from costmodel.pipeline.simulator import StageSeconds, simulate_step, step_ends

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
    counts = [count for count in MICROBATCHES if count >= order_needs_per_rank(schedule) * ranks]
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
    """From the fewest microbatches that it has an order for."""
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
    """More than `settles_after` change nothing, and one beside the last and the first holds it all."""
    record = RECORDS[schedule]
    for microbatches, rank, order in orders_of(schedule, ranks, chunks):
        most, settled = most_held(order), settles_after(schedule, ranks, chunks, microbatches, rank)
        for fewer in range(settled - 2, microbatches) if settled < microbatches else ():
            assert most_held(record.order(ranks, chunks, fewer, rank)) == most, (microbatches, rank, fewer)


def test_what_settles_1f1b_and_gpipe_is_what_their_papers_say() -> None:
    """1F1B: the P − s that are in flight, and one at either end; GPipe: all of them."""
    for ranks, rank in ((4, 0), (4, 3), (8, 2)):
        assert settles_after("1f1b", ranks, 1, 64, rank) == ranks - rank + 2
        assert settles_after("gpipe", ranks, 1, 64, rank) == 64
    assert [name for name in SCHEDULES if holds_all(name)] == ["gpipe"]


@pytest.mark.parametrize(("schedule", "ranks", "chunks"), PIPELINES)
def test_there_is_an_order_from_so_many_microbatches_a_rank_on(
    schedule: Schedule, ranks: int, chunks: int
) -> None:
    """Of every shape, and it runs to its end; with one a rank fewer there is none."""
    fewest = order_needs_per_rank(schedule)
    ones = (1.0,) * (ranks * chunks)
    layout = ParallelLayout(pp=ranks, virtual_stages=chunks, schedule=schedule)
    for microbatches in [count for count in MICROBATCHES if count >= fewest * ranks]:
        assert has_order(schedule, ranks, chunks, microbatches)
        played = simulate_step(
            layout, microbatches, StageSeconds(forward_s=ones, input_s=ones, weight_s=ones)
        )
        assert played.makespan_s >= 3 * microbatches * chunks
    if fewest and ranks > 1:
        assert not has_order(schedule, ranks, chunks, (fewest - 1) * ranks)


@pytest.mark.parametrize(("schedule", "ranks", "chunks"), PIPELINES)
def test_the_bubble_is_its_closed_form_from_so_many_microbatches_a_rank_on(
    schedule: Schedule, ranks: int, chunks: int
) -> None:
    """Equal passes of every shape, microbatches in whole groups where the schedule visits chunks in groups."""
    record, ones = RECORDS[schedule], (1.0,) * (ranks * chunks)
    layout = ParallelLayout(pp=ranks, virtual_stages=chunks, schedule=schedule)
    whole = ranks if record.in_groups else 1
    for microbatches in MICROBATCHES:
        if microbatches < microbatches_per_rank(schedule) * ranks or microbatches % whole:
            continue
        played = step_ends(layout, microbatches, StageSeconds(forward_s=ones, input_s=ones, weight_s=ones))
        seconds = played.span_s if record.runs_over else played.makespan_s
        form = record.bubble
        share = 1 / chunks if form is None else float(form(ranks, microbatches, 1 / 3, 1 / 3))
        assert seconds / (3 * chunks) == pytest.approx(microbatches + share * (ranks - 1), rel=1e-12)


def test_what_papers_say_of_the_fewest_microbatches() -> None:
    """DualPipeV's reference demands 2P of them, ZB-2p's bubble vanishes from 2P − 1 on; others fill with P."""
    assert {name: microbatches_per_rank(name) for name in SCHEDULES if microbatches_per_rank(name) > 1} == {
        "dualpipev": 2,
        "zb-2p": 2,
    }
    assert [name for name in SCHEDULES if order_needs_per_rank(name)] == ["dualpipev"]


def test_whether_backwards_are_split_is_seen_in_the_order() -> None:
    """At a size at which every schedule that splits them does so."""
    split = {
        name
        for name, record in RECORDS.items()
        if any(kind == "W" for kind, _, _ in record.order(4, record.chunks or 2, 16, 3))
    }
    assert split == {name for name, record in RECORDS.items() if record.splits_backward}
