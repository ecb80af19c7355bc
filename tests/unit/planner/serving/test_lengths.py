"""How long requests are where people state a mean alone."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.models.catalog import model
from costmodel.serving.simulation.load import CUT, Lengths
from planner.questions.flags import ServeFlags
from planner.questions.serving.lengths import PUBLISHED, p99_per_mean, request_lengths

MODEL = model("llama-3.1-70b")


def lengths(**words: str) -> dict[str, int | None]:
    """Means and percentiles of a question."""
    return request_lengths(ServeFlags(**words), None, MODEL)


def test_a_rate_has_the_spread_of_published_loads() -> None:
    found = lengths(rate="3/s", input_tokens="1000", output_tokens="100")
    assert found["input_tokens_p99"] == int(1000 * p99_per_mean("input"))
    assert found["output_tokens_p99"] == int(100 * p99_per_mean("output"))


@pytest.mark.parametrize("side", PUBLISHED)
def test_the_spread_lies_between_those_of_both_loads(side: str) -> None:
    """Of a log-normal with it the 90th percentile over the median is between the published ratios."""
    drawn = Lengths(mean=1000, p99=1000 * p99_per_mean(side)).draw(50_000, np.random.default_rng(0))
    ratio = np.percentile(drawn, 90) / np.median(drawn)
    low, high = sorted(p90 / median for median, p90 in PUBLISHED[side])
    assert low < ratio < high


def test_a_closed_loop_and_the_word_alike_have_one_length() -> None:
    assert lengths(concurrency="8")["input_tokens_p99"] is None
    assert lengths(rate="3/s", input_p99="alike")["input_tokens_p99"] == 2000
    assert set(Lengths(mean=2000, p99=2000).draw(9, np.random.default_rng(0)).tolist()) == {2000}


@pytest.mark.parametrize("inputs", ["100000", "131000", "140000"])
def test_the_longest_requests_stay_within_the_context(inputs: str) -> None:
    found = lengths(rate="3/s", input_tokens=inputs)
    longest = (found["input_tokens_p99"] or 0) + (found["output_tokens_p99"] or 0)
    assert longest <= MODEL.max_sequence_length
    assert found["input_tokens_p99"] is None or found["input_tokens_p99"] >= found["input_tokens"]


@pytest.mark.parametrize("seed", range(5))
def test_few_requests_of_a_long_tail_have_its_mean_and_percentile(seed: int) -> None:
    """Whatever the seed; none is beyond what a replica is asked to hold."""
    drawn = Lengths(mean=1000, p99=4000).draw(400, np.random.default_rng(seed))
    assert float(drawn.mean()) == pytest.approx(1000, rel=0.02)
    assert float(np.percentile(drawn, 99)) == pytest.approx(4000, rel=0.08)
    assert drawn.max() <= CUT * 4000
