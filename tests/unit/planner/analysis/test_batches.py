"""Ranges of batches: which sizes are planned, and that the best of them is taken."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli import run
from planner.analysis.batches import best_of_requests
from planner.analysis.explain import changes
from planner.plan import Plan, PlanRequest
from planner.questions.batches import better_batch, read_range, suited
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.infeasible import Infeasible
from planner.search.search import search
from topology.base.errors import InputError

REQUEST = understand(Flags(model="8b", gpus="24", global_batch_size="64", top="1")).request


def of_batches(request: PlanRequest, batches: tuple[int, ...]) -> list[PlanRequest]:
    """The same question for each size of a batch."""
    return [replace(request, job=replace(request.job, global_batch_size=batch)) for batch in batches]


@given(st.integers(1, 3000), st.integers(0, 3000), st.integers(1, 4096), st.integers(2, 8))
def test_the_sizes_planned_are_those_that_share_most(low: int, more: int, gpus: int, most: int) -> None:
    """Both ends, and no size that is left out shares more with the GPUs than one that is taken."""
    high = low + more
    found = suited(low, high, gpus, most)
    assert {low, high} <= set(found) <= set(range(low, high + 1))
    assert len(found) <= max(most, 2)
    inner = set(found) - {low, high}
    left = set(range(low, high + 1)) - set(found)
    if inner and left:
        assert min(math.gcd(size, gpus) for size in inner) >= max(math.gcd(size, gpus) for size in left)
    elif left:
        assert len(found) >= min(most, more + 1) or low == high


def test_the_best_batch_is_that_of_least_time_a_token() -> None:
    """Against every size planned alone; what is tried is told of each."""
    batches = suited(48, 96, 24)
    best, tried = best_of_requests(of_batches(REQUEST, batches), search)
    assert isinstance(best, Plan)
    alone = {}
    for batch in batches:
        plan = search(replace(REQUEST, job=replace(REQUEST.job, global_batch_size=batch)))
        assert isinstance(plan, Plan)
        alone[batch] = plan.estimate.step_time_s / plan.request.job.tokens_per_step
    assert {one.batch: one.per_token_s for one in tried} == alone
    assert alone[best.request.job.global_batch_size] == min(alone.values())
    assert len(set(alone.values())) > 1


def test_a_range_without_a_plan_is_refused_as_its_first_batch() -> None:
    """70B on eight GPUs, whatever the batch."""
    request = understand(Flags(model="70b", gpus="8", gpu="a100-40gb")).request
    answer, tried = best_of_requests(of_batches(request, (256, 512)), search)
    assert isinstance(answer, Infeasible)
    assert all(math.isinf(one.per_token_s) for one in tried)


def test_explain_proposes_a_batch_that_the_gpus_divide_better() -> None:
    """Near the one asked for; none where nothing near shares more."""
    assert better_batch(REQUEST) == 72
    assert better_batch(replace(REQUEST, job=replace(REQUEST.job, global_batch_size=72))) is None
    plan = search(REQUEST)
    assert isinstance(plan, Plan)
    assert "--global-batch-size 72" in [flag for _, _, flag in changes(plan)]


def test_the_command_takes_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    """The batch taken stands in the headline, the others in a note; what is no range is refused."""
    assert run(["--model", "8b", "--gpus", "24", "-b", "48..96", "--full"]) == 0
    assert "planned between 48 and 96" in " ".join(capsys.readouterr().out.split())
    for wrong in ("96..48", "48..", "..96", "a..b"):
        assert run(["--model", "8b", "--gpus", "24", "-b", wrong]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 3
    with pytest.raises(InputError):
        read_range("0..5", 8192)
