"""The chance of OOM grows with the peak and its doubt, falls with memory, and carries one word."""

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from costmodel.campaign.record import limit_word
from costmodel.case import Case
from costmodel.evidence.keys import footing
from costmodel.evidence.table import evidence_for
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.memory.fit import fit_of, headroom_for, out_of_memory_chance
from costmodel.memory.spread import Spread
from costmodel.models.catalog import models
from costmodel.models.sizes import is_unmeasured
from costmodel.stack import stacks
from costmodel.training.bands import doubts_of, memory_spread, peak_spread
from topology.base.units import format_chance
from topology.builders import default_cluster

BYTES = st.floats(1e6, 1e13)
SPREADS = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12).map(lambda each: Spread(tuple(each)))
MORE = st.floats(1.0, 10.0)
ORDER = ("fits", "tight", "does not fit")


@given(BYTES, BYTES, SPREADS, MORE)
def test_more_memory_never_makes_it_worse(peak, capacity, spread, more) -> None:
    """Nor does a smaller peak; the word never gets worse either."""
    chances = [
        out_of_memory_chance(peak, capacity * more, spread),
        out_of_memory_chance(peak, capacity, spread),
        out_of_memory_chance(peak * more, capacity, spread),
    ]
    assert chances == sorted(chances)
    places = [ORDER.index(fit_of(chance)) for chance in chances]
    assert places == sorted(places)


@given(BYTES, st.floats(0.01, 1.0), SPREADS, MORE)
def test_doubt_never_lowers_the_chance_of_a_peak_within_memory(capacity, share, spread, wider) -> None:
    """A wider band reaches further past the GPU, so it asks for as much headroom or more."""
    wide = Spread(tuple(deviation * wider for deviation in spread.deviations))
    narrow = out_of_memory_chance(share * capacity, capacity, spread)
    assert narrow <= out_of_memory_chance(share * capacity, capacity, wide) <= 0.5
    assert headroom_for(spread) <= headroom_for(wide)


@given(BYTES, SPREADS, st.floats(0.0, 0.5))
def test_what_the_headroom_leaves_fits(capacity, spread, less) -> None:
    """Every peak within memory less the headroom fits; a share that is less by more than its rounding does not."""
    free = headroom_for(spread)
    most = capacity * (1 - free)
    assert fit_of(out_of_memory_chance(most * (1 - less), capacity, spread)) == "fits"
    assert fit_of(out_of_memory_chance(capacity * (1 - free + 0.0011), capacity, spread)) == "tight"


@given(st.floats(0.0, 1.0))
def test_no_digit_contradicts_the_word(chance) -> None:
    """The percent that is printed gives the same word as the chance itself, of memory and of limits."""
    printed = format_chance(chance)
    percent = float(re.sub(r"[^0-9.]", "", printed))
    shown = percent / 100 + (1e-9 if printed.startswith(">") else -1e-9 if printed.startswith("<") else 0)
    assert fit_of(max(shown, 0.0)) == fit_of(chance)
    assert (limit_word(max(shown, 0.0)) == "kept") == (limit_word(chance) == "kept")


@given(st.integers(1, 99))
def test_a_whole_percent_is_written_as_it_is(percent) -> None:
    """Whatever a float makes of a hundredth."""
    assert float(format_chance(percent / 100).removesuffix(" %")) == percent


def test_the_band_of_a_peak_is_that_of_the_job() -> None:
    """Every stack and precision, dense, with experts and recurrent: no layout has another one."""
    cluster = default_cluster("h100-sxm", 64)
    kinds = {(one.is_moe, is_unmeasured(one)): one for one in models().values()}
    layouts = (
        ParallelLayout(),
        ParallelLayout(tp=8, sequence_parallel=True),
        ParallelLayout(pp=16, dp=4, zero_stage=1, virtual_stages=2, schedule="interleaved", recompute="full"),
        ParallelLayout(cp=4, dp=16, ep=8, zero_stage=3),
    )
    for (model, stack), precision in itertools.product(
        itertools.product(kinds.values(), stacks().values()), ("bf16", "fp8")
    ):
        job = TrainingJob(sequence_length=8192, global_batch_size=512, precision=precision)
        widths = set()
        for layout in layouts:
            rests_on = footing(
                Case(model=model, cluster=cluster, job=job, stack=stack, cal=load_calibration()), layout
            )
            doubts = doubts_of(
                rests_on, evidence_for(rests_on), untabled_gpu=True, recurrent=is_unmeasured(model)
            )
            widths.add(memory_spread(doubts))
        assert widths == {
            peak_spread(Case(model=model, cluster=cluster, job=job, stack=stack, cal=load_calibration()))
        }
