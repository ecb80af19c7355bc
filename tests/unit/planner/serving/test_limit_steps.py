"""What a limit costs: the same question with it relaxed, against asking that question outright."""

from dataclasses import replace
from functools import cache

import pytest

from planner.analysis.serving.fleets import find_fleet
from planner.analysis.serving.limit_steps import alike_jobs, check_limits, with_sensitivity
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import Asked, understand_serving
from planner.serving.plan import ServingPlan, serving_from_json, serving_to_json
from planner.serving.trade_offs import LimitRelaxed
from topology.base.errors import InputError


def asked(**words: str) -> Asked:
    """A small question on one GPU kind, in one precision and mode: what is compared is two answers of one search."""
    job = {
        "model": "8b", "gpu": "h100-sxm", "weights": "bf16", "mode": "aggregated", "input_tokens": "1000",
        "output_tokens": "100", "ttft": "300ms",
    }  # fmt: skip
    return understand_serving(ServeFlags(**{**job, **words}))  # type: ignore[arg-type]  # words are texts


@cache
def relaxed(**words: str) -> tuple[ServingPlan, dict[str, LimitRelaxed]]:
    """The plan of a question and what each of its limits costs, by limit."""
    question = asked(**words)
    alone = find_fleet(question)
    assert alone.sensitivity is None
    plan = with_sensitivity(question, alone)
    return plan, {one.limit: one for one in plan.sensitivity or ()}


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("tpot", {"tpot": "12ms"}),
        ("ttft", {"ttft": "600ms"}),
        ("percentile", {"percentile": "95"}),
        ("lengths", {"input_p99": "alike", "output_p99": "alike"}),
    ],
)
def test_what_a_step_saves_is_the_difference_of_two_answers(limit: str, words: dict[str, str]) -> None:
    """GPUs and dollars saved are those of the question asked outright with the looser limit, or alike lengths."""
    base = {"rate": "150/s", "tpot": "9ms"}
    plan, found = relaxed(**base)
    outright = find_fleet(asked(**{**base, **words}))
    one = found[limit]
    assert limit != "lengths" or not list(alike_jobs(outright.request.job))
    assert one.num_gpus == outright.num_gpus == plan.num_gpus - one.saved_gpus
    assert one.saved_usd_per_hour is not None
    assert one.saved_usd_per_hour == plan.estimate.usd_per_hour - outright.estimate.usd_per_hour  # type: ignore[operator]  # priced


def test_a_looser_limit_never_costs_more_and_one_of_them_saves() -> None:
    """A fleet that keeps a limit keeps a looser one."""
    _, found = relaxed(rate="150/s", tpot="9ms")
    assert all((one.saved_usd_per_hour or 0) >= 0 for one in found.values())
    assert any(one.changes for one in found.values())


def test_a_fleet_of_a_given_size_serves_more_instead() -> None:
    """Its GPUs are had already, so what a limit costs is requests a second."""
    plan, found = relaxed(gpus="1", tpot="9ms")
    loose = find_fleet(asked(gpus="1", tpot="12ms"))
    more = loose.estimate.served_per_s - plan.estimate.served_per_s
    assert more > 0
    assert found["tpot"].more_requests_per_s == more
    assert found["tpot"].saved_gpus == 0


def test_the_document_keeps_what_limits_cost() -> None:
    """It round-trips through JSON; a plan that was not asked has none."""
    plan, found = relaxed(rate="150/s", tpot="9ms")
    assert found
    assert serving_from_json(serving_to_json(plan)).sensitivity == plan.sensitivity
    alone = replace(plan, sensitivity=None)
    assert serving_from_json(serving_to_json(alone)).sensitivity is None


def test_without_limits_there_is_nothing_to_relax() -> None:
    """Three lines that name the flags."""
    question = understand_serving(ServeFlags(model="8b", gpu="h100-sxm", rate="20/s"))
    with pytest.raises(InputError, match="no limit to relax"):
        check_limits(question)
