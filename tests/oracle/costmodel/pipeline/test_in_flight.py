"""In-flight microbatches against the instruction lists that engines run."""

import itertools

import pytest

from costmodel.layout import SCHEDULES, Schedule
from costmodel.memory.stage import in_flight
from executor.parallel.programs import orders

SHAPES = [(1, 1, 1), (4, 1, 8), (4, 1, 2), (8, 1, 64), (4, 2, 8), (8, 3, 16), (2, 4, 2), (16, 2, 16)]


def warm_up(schedule: str, pp: int, chunks: int, microbatches: int, stage: int) -> int:
    """Forward steps (of one chunk) before the first backward, as Megatron-LM's schedules count them."""
    if schedule == "gpipe":
        return microbatches * chunks
    if schedule == "1f1b":
        return min(pp - stage - 1, microbatches)
    return min(2 * (pp - stage - 1) + (chunks - 1) * pp, microbatches * chunks)


def most_held(schedule: str, pp: int, chunks: int, microbatches: int, stage: int) -> int:
    """Walk a rank's instruction list and count the chunk activations it holds at the worst moment."""
    total, ahead = microbatches * chunks, warm_up(schedule, pp, chunks, microbatches, stage)
    steps = ["F"] * ahead + ["F", "B"] * (total - ahead) + ["B"] * ahead
    held = peak = 0
    for step in steps:
        held += 1 if step == "F" else -1
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize(("pp", "chunks", "microbatches"), SHAPES)
def test_in_flight_is_what_the_instruction_list_holds(
    schedule: Schedule, pp: int, chunks: int, microbatches: int
) -> None:
    """Every stage of every shape: the closed form equals the count."""
    used = chunks if schedule == "interleaved" else 1
    code = SCHEDULES.index(schedule)
    counted = [most_held(schedule, pp, used, microbatches, stage) / used for stage in range(pp)]
    assert [float(in_flight(code, pp, used, microbatches, stage)) for stage in range(pp)] == counted


@pytest.mark.parametrize(("pp", "microbatches"), [(1, 1), (4, 2), (4, 8), (16, 64)])
def test_zero_bubble_schedules_hold_what_their_papers_state(pp: int, microbatches: int) -> None:
    """ZB-H1 and ZBV hold P microbatches, as far as there are that many."""
    codes = [SCHEDULES.index("zb-h1"), SCHEDULES.index("zbv")]
    held = [float(in_flight(code, pp, 2, microbatches, 0)) for code in codes]
    assert held == [min(pp, microbatches), min(pp, microbatches)]


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "dualpipev", "zb-2p", "v-half"])
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_split_backwards_hold_what_the_orders_of_the_executor_hold(schedule: Schedule, pp: int) -> None:
    """A forward holds its chunk until its weight gradients are done, which keep as much as it did."""
    chunks = 1 if schedule in ("zb-h1", "zb-2p") else 2
    for rank, order in enumerate(orders(schedule, pp, chunks, 4 * pp)):
        changes = {"F": 1, "B": -1, "I": 0, "W": -1}
        held = itertools.accumulate(changes[action.kind] for action in order)
        code = SCHEDULES.index(schedule)
        assert float(in_flight(code, pp, chunks, 4 * pp, rank)) == max(held) / chunks
