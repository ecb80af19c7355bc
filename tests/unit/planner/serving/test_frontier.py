"""The frontier of a question: no point is beaten, every replica is, and limits are told."""

from functools import cache
from itertools import pairwise

import pytest

from costmodel.kernels.tables import load_calibration
from planner.analysis.serving.fleets import find_fleet
from planner.analysis.serving.frontier import (
    check_outputs,
    loads_up_to,
    non_dominated,
    operating_points,
    with_frontier,
)
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import Asked, understand_serving
from planner.serving.board import RESOLUTION
from planner.serving.plan import serving_from_json, serving_to_json
from planner.serving.trade_offs import FrontierPoint
from topology.base.errors import InputError


def asked(**words: str) -> Asked:
    """A question on two GPUs."""
    job = {"model": "8b", "gpu": "h100-sxm", "gpus": "2", "input_tokens": "1000", "output_tokens": "100"}
    return understand_serving(ServeFlags(**{**job, **words}))  # type: ignore[arg-type]  # words are texts


@cache
def points_of(**words: str) -> tuple[FrontierPoint, ...]:
    """Every operating point of a question."""
    cal = load_calibration()
    return tuple(point for one in asked(**words).requests for point in operating_points(cal, *one))


def test_no_point_is_beaten_and_every_operating_point_is_matched() -> None:
    """The definition, against all points: nothing off the frontier is better in both by more than 2 %."""
    points = points_of(weights="bf16,fp8")
    frontier = non_dominated(points)
    for slower, faster in pairwise(reversed(frontier)):
        assert faster.tokens_per_s_per_user > slower.tokens_per_s_per_user
        assert faster.tokens_per_s_per_gpu < slower.tokens_per_s_per_gpu
    for point in points:
        assert any(
            one.tokens_per_s_per_user >= point.tokens_per_s_per_user
            and one.tokens_per_s_per_gpu * (1 + RESOLUTION) >= point.tokens_per_s_per_gpu
            for one in frontier
        ), point


def test_rates_of_a_point_agree_with_its_requests_in_flight() -> None:
    """Little's law: a GPU's tokens are those of its users, less what they wait for first tokens."""
    for point in points_of():
        most = point.concurrency * point.tokens_per_s_per_user / point.num_gpus
        assert 0 < point.tokens_per_s_per_gpu < 1.25 * most


def test_a_limit_on_first_tokens_holds_everywhere_and_the_others_are_told() -> None:
    """The frontier with limits: no point above the one, both answers to the other."""
    question = asked(ttft="200ms", tpot="10ms", weights="bf16", mode="aggregated")
    plan = with_frontier(question, find_fleet(question))
    assert plan.frontier
    assert all(point.ttft_s <= 0.2 for point in plan.frontier)
    assert {point.kept for point in plan.frontier} == {True, False}
    assert all(point.kept == (point.tpot_s <= 0.01) for point in plan.frontier)


def test_replicas_have_stages_only_where_none_without_fits() -> None:
    """No measured run has pipeline stages, so they are no frontier where something measured is."""
    assert not any("pp" in point.label for point in points_of())
    assert all("pp2" in point.label for point in points_of(settings=("layout.pp=2",)))  # type: ignore[arg-type]  # not a text


def test_dollars_of_outputs_are_those_of_a_plan() -> None:
    """Of one GPU's bill outputs take the same share in a point and in the plan of its requests in flight."""
    words = {"gpus": "1", "weights": "bf16", "usd_per_gpu_hour": "3.6", "mode": "aggregated"}
    for point in points_of(**words)[4:5]:
        estimate = find_fleet(asked(concurrency=str(point.concurrency), **words)).estimate
        shares = [
            (dollars or 0) * tokens / 1000
            for dollars, tokens in (
                (point.usd_per_million_output_tokens, point.tokens_per_s_per_gpu),
                (estimate.usd_per_million_output_tokens, estimate.tokens_per_s_per_gpu),
            )
        ]
        assert 0 < shares[0] < 1
        assert shares[0] == pytest.approx(shares[1], rel=0.05)


def test_the_document_keeps_the_frontier() -> None:
    """It round-trips through JSON; a plan that was not asked has none."""
    question = asked(weights="bf16", mode="aggregated")
    plan = find_fleet(question)
    assert plan.frontier is None
    told = with_frontier(question, plan)
    assert serving_from_json(serving_to_json(told)).frontier == told.frontier


def test_requests_of_one_token_have_no_frontier() -> None:
    """There is no time per output token to invert."""
    with pytest.raises(InputError, match="one token"):
        check_outputs(asked(output_tokens="1"))


@pytest.mark.parametrize(("most", "expected"), [(1, (1,)), (2, (1, 2)), (20, (1, 2, 3, 4, 6, 8, 12, 16, 20))])
def test_loads_grow_up_to_the_largest_batch(most: int, expected: tuple[int, ...]) -> None:
    """The largest batch is always one of them, once."""
    assert loads_up_to(most) == expected
