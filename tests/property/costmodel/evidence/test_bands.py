"""A band never narrows as evidence goes, and always holds the step that it is a band of."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from costmodel.evidence.keys import Footing, Key
from costmodel.evidence.table import count_runs, evidence_for
from costmodel.memory.fit import out_of_memory_chance
from costmodel.training.bands import (
    UPPER,
    Doubts,
    doubts_of,
    interval,
    memory_spread,
    time_deviation,
)

NAMES = ("bf16", "fp8", "tp", "cp", "cp > 2", "pp", "virtual stages", "ep across nodes", "ZeRO-3", "experts")
footings = st.builds(
    lambda engine, generation, precision, names: Footing(
        engine=engine,
        generation=generation,
        precision=precision,
        keys=tuple(Key(name=name, used=name) for name in sorted(names)),
    ),
    st.sampled_from(["megatron-core", "torchtitan"]),
    st.sampled_from(["ampere", "hopper"]),
    st.sampled_from(["bf16", "fp8"]),
    st.sets(st.sampled_from(NAMES)),
)
runs = st.lists(st.tuples(footings, st.booleans()), max_size=12)
doubts = st.builds(
    Doubts,
    untabled_gpu=st.booleans(),
    experts=st.booleans(),
    unmeasured=st.integers(0, 30),
    unmeasured_memory=st.integers(0, 2),
    unmeasured_precision=st.booleans(),
    engine=st.sampled_from(["megatron-core", "pytorch-fsdp1", "torchtitan", "internevo"]),
)
PREDICTED = st.floats(1e-6, 1e6)


@given(footings, runs, st.data())
def test_a_band_never_narrows_when_runs_are_taken_away(one, known, data) -> None:
    """Any runs, any estimate, any of the runs taken away: neither the band of the step nor that of the peak."""
    gone = data.draw(st.sets(st.integers(0, max(0, len(known) - 1))))
    left = [run for index, run in enumerate(known) if index not in gone]
    before, after = (
        doubts_of(one, evidence_for(one, count_runs(table)), untabled_gpu=False) for table in (known, left)
    )
    assert time_deviation(after) >= time_deviation(before)
    assert memory_spread(after).quantile(UPPER) >= memory_spread(before).quantile(UPPER)


@given(doubts, st.integers(1, 10), st.floats(0.0, 0.5))
def test_a_band_grows_with_every_key_that_was_not_measured(one, more, level) -> None:
    """With the level of own runs known and without."""
    further = replace(one, unmeasured=one.unmeasured + more)
    assert time_deviation(further) > time_deviation(one)
    assert time_deviation(further, level) > time_deviation(one, level)


@given(doubts)
def test_another_precision_costs_less_than_another_engine(one) -> None:
    """A job in a precision that no peak of its engine has: the band is wider, by what precisions differ alone."""
    here = replace(one, unmeasured_memory=0, unmeasured_precision=False)
    known, other, strange = (
        memory_spread(each).quantile(UPPER)
        for each in (
            here,
            replace(here, unmeasured_precision=True),
            replace(here, unmeasured_precision=True, unmeasured_memory=1),
        )
    )
    assert known < other <= strange


@given(doubts, PREDICTED)
def test_a_band_holds_what_it_is_of(one, seconds) -> None:
    """Lower < step < upper, alike on both sides of the logarithm."""
    lower, upper = interval(seconds, time_deviation(one))
    assert 0 < lower < seconds < upper
    assert abs(lower * upper / seconds**2 - 1) < 1e-9


@given(doubts, PREDICTED, PREDICTED, st.floats(1.001, 10.0))
def test_the_chance_of_not_fitting_grows_with_the_peak(one, peak, capacity, factor) -> None:
    """It is one half where the peak is all there is, and a chance everywhere."""
    spread = memory_spread(one)
    chance = out_of_memory_chance(peak, capacity, spread)
    assert 0 <= chance <= out_of_memory_chance(peak * factor, capacity, spread) <= 1
    assert out_of_memory_chance(capacity, capacity, spread) == 0.5
