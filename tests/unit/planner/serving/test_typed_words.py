"""Words of a serving question as people type them: shares, percentiles and formats of weights."""

from __future__ import annotations

import pytest

from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from planner.questions.words import share_of
from topology.base.errors import InputError


def asked(**words: str) -> ServeFlags:
    """A small question with these words."""
    return ServeFlags(**{"model": "8b", "gpu": "h100-sxm", "gpus": "1", "rate": "1/s", **words})


@pytest.mark.parametrize(
    ("text", "share"), [("0.6", 0.6), ("60%", 0.6), ("60 %", 0.6), ("0", 0.0), ("100%", 1.0)]
)
def test_a_share_may_be_said_in_percent(text: str, share: float) -> None:
    """Both ways are one share."""
    assert share_of(text, "--acceptance") == pytest.approx(share)
    if share < 1:
        (request, _), *_ = understand_serving(asked(cached=text)).requests
        assert request.job.cached_share == pytest.approx(share)


@pytest.mark.parametrize("text", ["abc", "%", "-1", "160%", "1.2", "nan", "p50"])
def test_what_is_no_share_is_refused_with_an_example(text: str) -> None:
    """Sixty percent is 0.6 or 60%, never 60."""
    with pytest.raises(InputError):
        share_of(text, "--cached")


@pytest.mark.parametrize("text", ["90", "p90", "P90", "90%"])
def test_a_percentile_is_counted_in_percent(text: str) -> None:
    """And may be written as it is spoken."""
    (request, _), *_ = understand_serving(asked(percentile=text)).requests
    assert request.job.percentile == 90


def test_a_percentile_below_one_is_a_share_typed_by_mistake() -> None:
    """0.99 would hold one request of a hundred; 99 is meant."""
    with pytest.raises(InputError) as refused:
        understand_serving(asked(percentile="0.99"))
    assert refused.value.fix == "give --percentile 99"


@pytest.mark.parametrize(
    ("word", "weights"), [("mxfp4", "fp4"), ("NVFP4", "fp4"), ("awq", "int4"), ("W8A8", "int8")]
)
def test_formats_of_checkpoints_are_precisions(word: str, weights: str) -> None:
    """And the answer says which."""
    asking = understand_serving(asked(model="gpt-oss-20b", gpu="b200-sxm", weights=word))
    assert {request.weights for request, _ in asking.requests} == {(weights,)}
    assert f"--weights {word.lower()} is {weights}" in asking.notes
    plain = understand_serving(asked(model="gpt-oss-20b", gpu="b200-sxm", weights=weights))
    assert not any(note.startswith("--weights") for note in plain.notes)


def test_outputs_of_one_token_are_all_of_one() -> None:
    """None is less than one, so none is more: tokens are requests, and no 99th percentile differs."""
    (request, _), *_ = understand_serving(asked(output_tokens="1")).requests
    assert (request.job.output_tokens, request.job.output_tokens_p99) == (1, None)
    assert request.job.input_tokens_p99 is not None
    with pytest.raises(InputError):
        understand_serving(asked(output_tokens="1", output_p99="3"))
