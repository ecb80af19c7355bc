"""What is run is what is timed: the executor's orders against the events of the cost model's simulation."""

from __future__ import annotations

import pytest

from costmodel.layout import SCHEDULES, ParallelLayout, Schedule
from costmodel.pipeline.derived import order_needs_per_rank
from costmodel.pipeline.schedules import RECORDS
from costmodel.pipeline.simulator import StageSeconds, simulate_step
from executor.parallel.programs import end_times, orders, programs
from topology.base.errors import InputError

RANKS, MICROBATCHES = range(1, 7), range(1, 13)
PIPELINES = [
    (schedule, chunks, ranks)
    for schedule in SCHEDULES
    for chunks in ((2, 3, 4) if RECORDS[schedule].chunks is None else (RECORDS[schedule].chunks,))
    for ranks in RANKS
]


def timed(schedule: Schedule, ranks: int, chunks: int, microbatches: int) -> list[list[tuple[str, int, int]]]:
    """Events of every rank in the order of their simulated start."""
    ones = (1.0,) * (ranks * chunks)
    layout = ParallelLayout(pp=ranks, virtual_stages=chunks, schedule=schedule)
    events = simulate_step(
        layout, microbatches, StageSeconds(forward_s=ones, input_s=ones, weight_s=ones)
    ).events
    return [[(e.kind, e.stage, e.microbatch) for e in events if e.rank == rank] for rank in range(ranks)]


def run(schedule: Schedule, ranks: int, chunks: int, microbatches: int) -> list[list[tuple[str, int, int]]]:
    """Computations of every rank in the order of the executor, in the words of events."""
    words = {"F": "F", "B": "BW" if RECORDS[schedule].splits_backward else "B", "I": "B", "W": "W"}
    return [
        [(kind, stage, m) for action, stage, m in order for kind in words[action]]
        for order in orders(schedule, ranks, chunks, microbatches)
    ]


def is_defined(schedule: Schedule, ranks: int, microbatches: int) -> bool:
    """Whether the schedule has an order for so few microbatches."""
    return microbatches >= ranks * order_needs_per_rank(schedule)


@pytest.mark.parametrize(("schedule", "chunks", "ranks"), PIPELINES)
def test_the_executor_runs_the_order_that_is_timed(schedule: Schedule, chunks: int, ranks: int) -> None:
    """Every number of microbatches, multiples of the ranks or not; where there is no order, none is run."""
    for microbatches in MICROBATCHES:
        if is_defined(schedule, ranks, microbatches):
            expected = timed(schedule, ranks, chunks, microbatches)
            assert run(schedule, ranks, chunks, microbatches) == expected
        else:
            with pytest.raises(InputError, match="needs a microbatch for each stage"):
                orders(schedule, ranks, chunks, microbatches)


@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize("ranks", RANKS)
def test_a_last_group_of_few_microbatches_takes_no_longer_than_a_whole_one(ranks: int, chunks: int) -> None:
    """Interleaved microbatches that the ranks do not divide run to their end, and never for longer."""
    for microbatches in MICROBATCHES:
        whole = -(-microbatches // ranks) * ranks
        few, all_of_them = (
            max(end_times(orders("interleaved", ranks, chunks, count), ranks * chunks).values())
            for count in (microbatches, whole)
        )
        assert few <= all_of_them
        assert len(programs("interleaved", ranks, chunks, microbatches)) == ranks
