"""What the search calls proven is the best of every legal layout and every split, priced one by one.

Cases are numbered and the same in every run; `benchmarks/certify.py` tries others. A case that it finds goes
into `found_cases.json`, where it stays.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from planner.plan import Plan
from planner.search.search import search
from planner.search.verify import verify
from tests.counts import cases_of_run, tries
from tests.oracle.planner.search.certificates import answer_of, judge
from tests.oracle.planner.search.plain_enumeration import every_layout, problem_of
from tests.oracle.planner.search.plain_splits import every_split, told_splits
from tests.oracle.planner.search.random_requests import EACH, case_of, read, written

CAL = load_calibration()
FOUND, LARGER = (
    json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
    for name in ("found_cases.json", "found_larger_cases.json")
)
FOUND_OF_RUN = cases_of_run(FOUND, FOUND[:1])  # whose answer a test of its own has
LARGER_OF_RUN = cases_of_run(LARGER, [case for case in LARGER if case["name"] == "core bound 9-24"])
SEED, GROUPS, CASES_OF_GROUP = 20, 8, tries(2, 21)
MOST_LAYOUTS = 120
RELATIVE = 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_what_is_proven_is_the_best_of_every_layout_and_split(group: int) -> None:
    """No layout of random small spaces beats the answer or its bound."""
    wrong = {}
    for number in range(group * CASES_OF_GROUP, (group + 1) * CASES_OF_GROUP):
        drawn = case_of(SEED, number, CAL, most_layouts=MOST_LAYOUTS)
        verdict = None if drawn is None else judge(*drawn, CAL)
        if verdict is not None and verdict.faults:
            wrong[f"{SEED}/{number}"] = verdict.faults
    assert wrong == {}


@pytest.mark.parametrize("case", FOUND_OF_RUN, ids=[case["name"] for case in FOUND_OF_RUN])
def test_what_was_once_found_is_found_again(case: dict[str, Any]) -> None:
    """Requests whose certificate was once wrong: the search finds and proves what the enumeration finds."""
    request = read(case["request"])
    layouts = every_layout(problem_of(request), request.pins)
    assert layouts
    verdict = judge(request, layouts, CAL)
    assert verdict.faults == ()
    assert verdict.answer.proven


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGER_OF_RUN, ids=[case["name"] for case in LARGER_OF_RUN])
def test_what_was_found_among_too_many_layouts_is_proven_by_another_path(case: dict[str, Any]) -> None:
    """Requests of up to 32 GPUs whose certificate was once wrong: `verify` derives the same bound."""
    plan = search(read(case["request"]), CAL)
    assert isinstance(plan, Plan)
    assert plan.optimality.status == "proven"
    assert verify(plan, CAL).holds


def test_the_plan_with_an_empty_end_is_found() -> None:
    """Mixtral-like, 3 layers on 4 GPUs: two chunks on each of two ranks, an end without layers."""
    answer = answer_of(read(FOUND[0]["request"]), CAL)
    assert (answer.layout.pp, answer.layout.virtual_stages, answer.proven) == (2, 2, True)
    without = replace(read(FOUND[0]["request"]), pins={"virtual_stages": 1})
    assert answer.score < answer_of(without, CAL).score


def test_a_request_reads_back_as_it_was_written() -> None:
    """A found case is the case that was found."""
    drawn = case_of(SEED, 1, CAL, most_layouts=MOST_LAYOUTS)
    assert drawn is not None
    assert read(written(drawn[0])) == drawn[0]


def test_splits_of_several_chunks_are_equal_but_for_the_ends() -> None:
    """Ends may be shorter, and empty only where nothing else divides the model."""
    assert every_split((4,), 2, 2) == (((2,), (2,)),)
    assert every_split((5,), 2, 2) == (((2,), (3,)), ((3,), (2,)))
    assert every_split((6,), 2, 2, v_shaped=True) == (((2,), (4,)),)
    assert len(every_split((6,), 3, 1)) == 10


ENGINE_SEED, ENGINE_CASES, FEW_LAYOUTS = 5, 7, 40


def test_what_is_proven_for_an_engine_is_the_best_that_it_can_be_told() -> None:
    """Random engines: no layout within the contract, with recomputation that it can be told, beats the answer."""
    wrong, judged = {}, 0
    for number in range(ENGINE_CASES):
        drawn = case_of(ENGINE_SEED, number, CAL, most_layouts=FEW_LAYOUTS, most_gpus=4, engine=EACH)
        verdict = None if drawn is None else judge(*drawn, CAL)
        judged += verdict is not None
        if verdict is not None and verdict.faults:
            wrong[f"{EACH} {ENGINE_SEED}/{number}"] = verdict.faults
    assert (judged >= ENGINE_CASES // 2, wrong) == (True, {})


def test_chunks_recompute_their_first_layers_alike() -> None:
    """Megatron-LM is told one number for all chunks, torchtitan all layers or none."""
    request = read(FOUND[0]["request"])
    layout = ParallelLayout(pp=2, dp=2, recompute="full")
    told = {
        engine: {
            split.recompute_of_stage
            for split in told_splits(problem_of(replace(request, engine=engine)), layout)
            if tuple(sum(row) for row in split.layers_of_stage) == (1, request.model.num_layers - 1)
        }
        for engine in ("megatron", "torchtitan")
    }
    L = request.model.num_layers
    assert told["megatron"] == {(min(n, 1), n) for n in range(L)}
    assert told["torchtitan"] == {(0, 0), (1, L - 1)}
