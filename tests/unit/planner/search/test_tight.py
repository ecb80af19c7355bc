"""Where no layout fits, the leanest that a GPU holds is the answer, with its chance and what would make one fit."""

from __future__ import annotations

import functools
import math
import shlex
from dataclasses import replace

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.memory.fit import fit_of
from planner.analysis.batches import best_of_requests
from planner.plan import Plan, PlanRequest, problem_of
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.best_first import explore, has_layout
from planner.search.infeasible import Infeasible, leanest_share
from planner.search.least_memory import CLOSE_ENOUGH
from planner.search.search import search
from planner.search.state import Search
from planner.search.tight import FITS_WITH
from planner.search.verify import verify

CAL = load_calibration()

QUESTIONS = (
    [
        {"model": "8b", "gpus": "8", "gpu": gpu, "engine": engine, "precision": precision}
        for gpu in ("a100-40gb", "h100-sxm", "l40s")
        for engine in ("megatron", "torchtitan")
        for precision in ("bf16", "fp8")
        if not (gpu == "a100-40gb" and precision == "fp8")
    ]
    + [
        {"model": "70b", "gpus": "16", "engine": "torchtitan", "precision": "bf16"},
        {"model": "70b", "gpus": "16", "engine": "megatron", "precision": "bf16"},
    ]
    + [
        {"model": "70b", "gpus": gpus, "engine": engine, "precision": "fp8"}
        for gpus in ("16", "24")
        for engine in ("megatron", "torchtitan")
    ]
)
"""Jobs about as large as their GPUs: some fit, some are tight, some do neither."""


_OF_70B = {"model": "70b", "precision": "fp8", "engine": "torchtitan"}
"""Of an engine whose peaks are far from what is predicted, so that much is left free."""


def asked(**flags: str) -> PlanRequest:
    """One question with a small batch."""
    return understand(Flags(**({"global_batch_size": "64"} | flags), settings=())).request


@functools.cache
def answer_to(number: int) -> Plan | Infeasible:
    """The answer to one of the questions, without plans beside it."""
    return search(replace(asked(**QUESTIONS[number]), top=1), CAL)


def known(question: dict[str, str]) -> str:
    """The name of a case."""
    return " ".join(question.values())


@pytest.mark.parametrize("question", QUESTIONS, ids=known)
def test_an_answer_fits_else_is_tight_else_no_gpu_holds_one(question: dict[str, str]) -> None:
    """The word of every answer is the one that its chance carries, and a refusal is of what needs more than a GPU has."""
    request = replace(asked(**question), top=1)
    answer, s = answer_to(QUESTIONS.index(question)), problem_of(request, CAL)
    if isinstance(answer, Infeasible):
        assert not has_layout(replace(request, memory_headroom=0.0), CAL)
        return
    word = fit_of(answer.estimate.out_of_memory_chance)
    if answer.request.memory_headroom is None:
        assert word == "fits"
        return
    assert word == "tight"
    fitting = explore(request, CAL)
    assert isinstance(fitting, Search)
    assert fitting.best is None
    peak = answer.estimate.peak_memory_bytes / s.cluster.gpu.memory_bytes
    assert answer.request.memory_headroom <= 1 - peak
    free = answer.request.memory_headroom
    assert math.isclose(free, leanest_share(s, {}))
    assert not has_layout(replace(request, memory_headroom=1 - (1 - CLOSE_ENOUGH) * (1 - free) + 0.001), CAL)
    assert verify(answer, CAL, proof=False).holds


def test_some_of_the_questions_have_each_of_the_three_answers() -> None:
    """Without all of them the test above shows little."""
    answers = [answer_to(number) for number in range(len(QUESTIONS))]
    kinds = {isinstance(one, Plan) and fit_of(one.estimate.out_of_memory_chance) for one in answers}
    assert kinds == {False, "tight", "fits"}


@pytest.mark.parametrize("question", [QUESTIONS[-1]], ids=known)
def test_every_change_beside_a_tight_plan_makes_one_that_fits(question: dict[str, str]) -> None:
    """The flags are asked as they are written."""
    answer = search(replace(asked(**question), top=1), CAL)
    assert isinstance(answer, Plan)
    (text,) = (one for one in answer.assumptions if one.startswith(FITS_WITH))
    flags = [flag.removeprefix("or ") for flag in text.removeprefix(FITS_WITH).split(", ")]
    assert flags
    for flag in flags:
        option, value = shlex.split(flag)
        changed = asked(**question | {option.lstrip("-").replace("-", "_"): value})
        eased = search(replace(changed, top=1), CAL)
        assert isinstance(eased, Plan)
        assert fit_of(eased.estimate.out_of_memory_chance) == "fits"


def test_of_several_questions_one_that_fits_is_before_one_that_is_tight() -> None:
    """However much faster the tight one is: of two counts of GPUs, and of the shares of an offload."""
    tight, fitting = (replace(asked(**_OF_70B, gpus=gpus), top=1) for gpus in ("24", "48"))
    plans = [search(one, CAL) for one in (tight, fitting)]
    words = [fit_of(plan.estimate.out_of_memory_chance) for plan in plans if isinstance(plan, Plan)]
    assert words == ["tight", "fits"]
    slow = replace(plans[1], estimate=replace(plans[1].estimate, step_time_s=1e6))  # type: ignore[union-attr,arg-type]
    found, _ = best_of_requests([tight, fitting], lambda one: plans[0] if one is tight else slow)
    assert found is slow
    shared = search(replace(asked(model="70b", gpus="16", offload="optimizer"), top=1), CAL)
    assert isinstance(shared, Plan)
    assert fit_of(shared.estimate.out_of_memory_chance) == "fits"


def test_a_share_that_is_asked_for_is_not_eased() -> None:
    """Who says how much memory to leave free is answered or refused for that."""
    request = replace(asked(**_OF_70B, gpus="24", memory_headroom="45%"), top=1)
    assert isinstance(search(request, CAL), Infeasible)
    open_ = replace(request, memory_headroom=None)
    assert isinstance(search(open_, CAL), Plan)
    assert isinstance(search(open_, CAL, or_tight=False), Infeasible)
