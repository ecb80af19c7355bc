"""ZB-2p and V-Half, which trade memory for bubble, against pipelines that are played step after step."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout import SCHEDULES, ParallelLayout, Schedule
from costmodel.pipeline.bubble import v_half_bubble, zb_2p_bubble
from costmodel.pipeline.in_flight import in_flight
from costmodel.pipeline.schedules import RECORDS
from costmodel.pipeline.simulator import StageSeconds, step_ends
from costmodel.pipeline.stages import ranks_of_chunks
from tests.oracle.costmodel.pipeline.plain_steps import Orders, ends_of_steps, most_held

SHARES = st.tuples(st.floats(0.3, 3.0), st.floats(0.3, 3.0), st.floats(0.1, 3.0))
STEPS = 4


def orders_of(schedule: Schedule, ranks: int, microbatches: int) -> Orders:
    """Passes of every rank."""
    order = RECORDS[schedule].order
    return [order(ranks, RECORDS[schedule].chunks or 1, microbatches, rank) for rank in range(ranks)]


def layout_of(schedule: Schedule, ranks: int) -> ParallelLayout:
    """A pipeline of this schedule."""
    return ParallelLayout(pp=ranks, virtual_stages=RECORDS[schedule].chunks or 1, schedule=schedule)


def played_steps(
    schedule: Schedule, ranks: int, microbatches: int, shares: tuple[float, float, float]
) -> list[float]:
    """Seconds of every step, from the end of the one before, for passes that make up one second a rank."""
    chunks = RECORDS[schedule].chunks or 1
    seconds = {kind: part / sum(shares) / chunks for kind, part in zip("FBW", shares, strict=True)}
    owner = ranks_of_chunks(layout_of(schedule, ranks))
    ends = ends_of_steps(orders_of(schedule, ranks, microbatches), owner, microbatches, seconds, STEPS)
    last = [max(of_rank[step] for of_rank in ends) for step in range(STEPS)]
    return [last[0], *(after - before for before, after in itertools.pairwise(last))]


@given(ranks=st.integers(2, 8), more=st.integers(0, 16), shares=SHARES)
def test_steps_of_zb_2p_take_the_closed_form_one_after_the_other(
    ranks: int, more: int, shares: tuple[float, float, float]
) -> None:
    """(P − 1)·max(0, B − F, F + B − 2W) of a settled step, from M = 2P − 1 on, whatever passes take."""
    M = 2 * ranks - 1 + more
    f, _, w = (part / sum(shares) for part in shares)
    expected = M + (ranks - 1) * float(zb_2p_bubble(ranks, M, f, w))
    assert played_steps("zb-2p", ranks, M, shares)[-1] == pytest.approx(expected, abs=1e-9)


@given(ranks=st.integers(2, 8), more=st.integers(0, 16), shares=SHARES)
def test_the_span_of_one_step_is_a_settled_step(
    ranks: int, more: int, shares: tuple[float, float, float]
) -> None:
    """What the simulation of one step of ZB-2p takes of a rank is what steps in a row take."""
    M = 2 * ranks - 1 + more
    f, b, w = (part / sum(shares) for part in shares)
    stages = StageSeconds(forward_s=(f,) * ranks, input_s=(b,) * ranks, weight_s=(w,) * ranks)
    found = step_ends(layout_of("zb-2p", ranks), M, stages).span_s
    assert found == pytest.approx(played_steps("zb-2p", ranks, M, shares)[-1], abs=1e-9)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (8, 16), (8, 64)])
def test_equal_passes_leave_no_bubble_in_zb_2p(ranks: int, microbatches: int) -> None:
    """F = B = W: no bubble, but for the forwards that fill the first step; Qi et al. 2023 table 1."""
    steps = played_steps("zb-2p", ranks, microbatches, (1.0, 1.0, 1.0))
    assert steps == pytest.approx([microbatches + (ranks - 1) / 3] + [microbatches] * (STEPS - 1))


@given(ranks=st.integers(2, 8), more=st.integers(0, 20), shares=SHARES)
def test_v_half_is_exact_where_the_input_gradient_takes_as_long_as_the_forward(
    ranks: int, more: int, shares: tuple[float, float, float]
) -> None:
    """Every M from P up, any weight gradient, B ≥ F, with the stall where B > F + W/2."""
    M, shares = ranks + more, (min(shares[:2]), max(shares[:2]), shares[2])
    f, _, w = (part / sum(shares) for part in shares)
    expected = M + (ranks - 1) * float(v_half_bubble(ranks, M, f, w))
    assert played_steps("v-half", ranks, M, shares)[0] == pytest.approx(expected, abs=1e-9)


@given(ranks=st.integers(2, 8), more=st.integers(0, 20), shares=SHARES, longer=st.floats(0.0, 1.0))
def test_v_half_is_never_promised_too_fast(
    ranks: int, more: int, shares: tuple[float, float, float], longer: float
) -> None:
    """Where forwards take longer than input gradients, by W/2 at most, the form is an upper estimate."""
    M, shares = ranks + more, (shares[1] + longer * shares[2] / 2, *shares[1:])
    f, _, w = (part / sum(shares) for part in shares)
    promised = M + (ranks - 1) * float(v_half_bubble(ranks, M, f, w))
    assert promised >= played_steps("v-half", ranks, M, shares)[0] - 1e-9


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 16])
def test_they_hold_what_their_papers_say(ranks: int) -> None:
    """ZB-2p 2P − 1 (Qi et al. 2023 §2.2), V-Half ⌊(P + 2)/2⌋ (Qi et al. 2024), on every rank, as counted."""
    for schedule, expected in (("zb-2p", 2 * ranks - 1), ("v-half", (ranks + 2) // 2)):
        code, chunks = SCHEDULES.index(schedule), RECORDS[schedule].chunks or 1
        for rank, order in enumerate(orders_of(schedule, ranks, 4 * ranks)):
            assert float(in_flight(code, ranks, chunks, 4 * ranks, rank)) == expected
            assert most_held(order) == expected * chunks


@pytest.mark.parametrize("ranks", [4, 8, 16, 32])
def test_half_the_memory_costs_less_bubble_than_1f1b(ranks: int) -> None:
    """F = B = W: V-Half holds about half of ZBV's microbatches and leaves 0.5 to 0.67 of 1F1B's bubble."""
    M, third = 4 * ranks, 1 / 3
    held = {
        name: float(in_flight(SCHEDULES.index(name), ranks, 2, M, 0)) for name in ("v-half", "zbv", "1f1b")
    }
    assert held == {"v-half": ranks / 2 + 1, "zbv": ranks, "1f1b": ranks}
    assert 0.5 <= float(v_half_bubble(ranks, M, third, third)) <= 0.67
