"""The event simulation of pipeline schedules against their closed forms and bounds."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layout import SCHEDULES, ParallelLayout, Schedule
from costmodel.pipeline.bubble import dualpipev_bubble, waited_sends, zb_h1_bubble, zbv_bubble
from costmodel.pipeline.schedules import RECORDS
from costmodel.pipeline.simulator import StageSeconds, makespan_bounds, simulate_step, step_ends
from topology.base.errors import InputError


def equal_stages(
    stages: int, f: float = 1.0, b: float = 1.0, w: float = 1.0, send_s: float = 0.0
) -> StageSeconds:
    """Stages that all take the same time."""
    return StageSeconds(forward_s=(f,) * stages, input_s=(b,) * stages, weight_s=(w,) * stages, send_s=send_s)


def layout_of(schedule: Schedule, ranks: int, virtual_stages: int = 2) -> ParallelLayout:
    """A pipeline of this schedule, with chunks where the schedule has them."""
    chunks = virtual_stages if schedule in ("interleaved", "zbv", "dualpipev", "v-half") else 1
    return ParallelLayout(pp=ranks, virtual_stages=chunks, schedule=schedule)


@given(schedule=st.sampled_from(SCHEDULES), ranks=st.integers(2, 5), more=st.integers(0, 6), data=st.data())
def test_the_ends_of_a_step_are_those_of_its_passes(
    schedule: Schedule, ranks: int, more: int, data: st.DataObject
) -> None:
    """The last end of all passes, and the longest time from a rank's first start to its last end."""
    layout = layout_of(schedule, ranks)
    stages = ranks * layout.virtual_stages
    seconds = st.tuples(*[st.floats(0.1, 3.0)] * stages)
    drawn = StageSeconds(
        forward_s=data.draw(seconds), input_s=data.draw(seconds), weight_s=data.draw(seconds), send_s=0.05
    )
    events = simulate_step(layout, 2 * ranks + more, drawn).events
    spans = [
        max(e.end_s for e in events if e.rank == rank) - min(e.start_s for e in events if e.rank == rank)
        for rank in range(ranks)
    ]
    assert step_ends(layout, 2 * ranks + more, drawn) == (max(e.end_s for e in events), max(spans))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 2), (4, 8), (8, 24), (3, 7)])
def test_gpipe_and_1f1b_take_m_plus_p_minus_1_passes(
    schedule: Schedule, ranks: int, microbatches: int
) -> None:
    """Bubble (P − 1)(F + B), Narayanan et al. 2021 §2.2."""
    found = simulate_step(
        layout_of(schedule, ranks), microbatches, equal_stages(ranks, 1.0, 1.5, 0.5)
    ).makespan_s
    assert found == pytest.approx((microbatches + ranks - 1) * 3.0)


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 16, 3), (8, 16, 4)])
def test_interleaving_divides_the_bubble_by_its_chunks(ranks: int, microbatches: int, chunks: int) -> None:
    """Bubble (P − 1)(F + B)/V, Narayanan et al. 2021 §2.2.2."""
    layout = layout_of("interleaved", ranks, chunks)
    stages = equal_stages(ranks * chunks, 1 / chunks, 1 / chunks, 1 / chunks)
    expected = microbatches * 3.0 + (ranks - 1) * 3.0 / chunks
    assert simulate_step(layout, microbatches, stages).makespan_s == pytest.approx(expected)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 16), (8, 32)])
def test_zero_bubble_h1_leaves_a_third_of_the_bubble(ranks: int, microbatches: int) -> None:
    """Bubble (P − 1)(F + B − W), Qi et al. 2023 table 1."""
    found = simulate_step(layout_of("zb-h1", ranks), microbatches, equal_stages(ranks)).makespan_s
    assert found == pytest.approx(microbatches * 3.0 + (ranks - 1) * 1.0)


def extra_of(layout: ParallelLayout, microbatches: int, f: float, b: float, w: float) -> float:
    """What the simulation adds to M microbatches on equal ranks, as a share of (P − 1) microbatches."""
    V = layout.virtual_stages
    stages = equal_stages(layout.pp * V, f / V, b / V, w / V)
    makespan_s = simulate_step(layout, microbatches, stages).makespan_s
    return (makespan_s / (f + b + w) - microbatches) / (layout.pp - 1)


SHARES = st.tuples(st.floats(0.3, 3.0), st.floats(0.3, 3.0), st.floats(0.1, 3.0))


@given(ranks=st.integers(2, 8), more=st.integers(0, 16), shares=SHARES)
def test_zero_bubble_h1_is_exact_for_any_passes(
    ranks: int, more: int, shares: tuple[float, float, float]
) -> None:
    """β = max(F, B, F + B − W), whatever a forward, an input and a weight gradient take."""
    f, b, w = (part / sum(shares) for part in shares)
    found = extra_of(layout_of("zb-h1", ranks), ranks + more, f, b, w)
    assert found == pytest.approx(float(zb_h1_bubble(ranks, ranks + more, f, w)), abs=1e-9)


@given(ranks=st.integers(2, 8), more=st.integers(0, 16), shares=SHARES)
def test_zbv_is_exact_where_the_input_gradient_takes_as_long_as_the_forward(
    ranks: int, more: int, shares: tuple[float, float, float]
) -> None:
    """Every M from P up, any weight gradient, B ≥ F."""
    f, b, w = (part / sum(shares) for part in (min(shares[:2]), max(shares[:2]), shares[2]))
    found = extra_of(layout_of("zbv", ranks), ranks + more, f, b, w)
    assert found == pytest.approx(float(zbv_bubble(ranks, ranks + more, f, w)), abs=1e-9)


@given(ranks=st.integers(2, 8), more=st.integers(0, 16), shares=SHARES)
def test_dualpipev_is_exact_for_any_passes(ranks: int, more: int, shares: tuple[float, float, float]) -> None:
    """Every M from 2P up."""
    f, b, w = (part / sum(shares) for part in shares)
    found = extra_of(layout_of("dualpipev", ranks), 2 * ranks + more, f, b, w)
    assert found == pytest.approx(float(dualpipev_bubble(ranks, 2 * ranks + more, f, w)), abs=1e-9)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 16), (8, 32)])
def test_sends_add_exactly_the_closed_form_to_1f1b(ranks: int, microbatches: int) -> None:
    """Extra 2c·[(P − 1)(M/P + 1) − 1], even though sends are asynchronous."""
    free = simulate_step(layout_of("1f1b", ranks), microbatches, equal_stages(ranks)).makespan_s
    sent = simulate_step(layout_of("1f1b", ranks), microbatches, equal_stages(ranks, send_s=0.01)).makespan_s
    assert sent - free == pytest.approx(0.01 * float(waited_sends(ranks, microbatches)))


def test_overlapped_interleaved_sends_leave_the_warm_up() -> None:
    """A stack that hides every interleaved send waits for those of the warm-up; one rank sends nothing."""
    assert waited_sends(4, 16, 2, [0.0, 1.0]).tolist() == [6.0, 38.0]
    assert waited_sends([1, 1], 16, [1, 4]).tolist() == [0.0, 0.0]


def test_uneven_stages_stay_between_the_bounds() -> None:
    """max_s(M·t_s + Σ_{j<s} t_j) ≤ simulated ≤ (M − 1)·max t + Σ t for 200 random 1F1B pipelines."""
    random = np.random.default_rng(1)
    for _ in range(200):
        ranks, microbatches = int(random.integers(1, 7)), int(random.integers(1, 20))
        f, b, w = random.uniform(0.2, 2.0, (3, ranks)).tolist()
        layout = layout_of("1f1b", ranks)
        found = simulate_step(
            layout, microbatches, StageSeconds(forward_s=tuple(f), input_s=tuple(b), weight_s=tuple(w))
        )
        lower, upper = makespan_bounds(
            layout, microbatches, [sum(parts) for parts in zip(f, b, w, strict=True)]
        )
        assert lower * (1 - 1e-9) <= found.makespan_s <= upper * (1 + 1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_pass_runs_once_after_its_inputs_and_alone_on_its_rank(schedule: Schedule) -> None:
    """No schedule runs two passes of a rank at once, or a pass before the pass it needs."""
    ranks, microbatches = 4, 8
    layout = layout_of(schedule, ranks)
    stages = ranks * layout.virtual_stages
    events = simulate_step(layout, microbatches, equal_stages(stages, 1.0, 1.2, 0.7, send_s=0.1)).events
    kinds = 3 if RECORDS[schedule].splits_backward else 2
    end = {(event.kind, event.stage, event.microbatch): event.end_s for event in events}
    assert len(end) == len(events) == kinds * stages * microbatches
    for rank in range(ranks):
        mine = [event for event in events if event.rank == rank]
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in itertools.pairwise(mine))
    for event in events:
        if event.kind == "F" and event.stage > 0:
            assert end["F", event.stage - 1, event.microbatch] <= event.start_s
        if event.kind == "B" and event.stage < stages - 1:
            assert end["B", event.stage + 1, event.microbatch] <= event.start_s
        if event.kind == "B":
            assert end["F", event.stage, event.microbatch] <= event.start_s + 1e-9
        if event.kind == "W":
            assert end["B", event.stage, event.microbatch] <= event.start_s + 1e-9


def test_every_pass_of_a_long_run_is_simulated() -> None:
    """16 stages and 256 microbatches are 8,192 passes, each exactly once."""
    timeline = simulate_step(layout_of("1f1b", 16), 256, equal_stages(16))
    assert len({(event.kind, event.stage, event.microbatch) for event in timeline.events}) == 8192


def test_durations_must_match_the_stages() -> None:
    """A pipeline of four stages needs four durations."""
    with pytest.raises(InputError, match="durations do not match"):
        simulate_step(layout_of("1f1b", 4), 8, equal_stages(3))
