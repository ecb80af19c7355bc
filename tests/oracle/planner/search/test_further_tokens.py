"""What is proven of a job that predicts further tokens is the best of every layout and every split."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.stack import stacks
from planner.plan import PlanRequest
from tests.counts import tries
from tests.oracle.planner.search.certificates import judge
from tests.oracle.planner.search.random_requests import case_of

CAL = load_calibration()
SEED, CASES, MOST_LAYOUTS = 67, tries(8, 24), 60


def with_modules(request: PlanRequest, r: Random) -> PlanRequest | None:
    """The question with one to three modules, in GPUs as large or half as large again; none of other stacks."""
    if not stacks()[request.stack].supports.further_tokens:
        return None
    gpu = request.cluster.gpus[0]
    larger = replace(gpu, memory_bytes=gpu.memory_bytes * r.choice((1.0, 1.2, 1.5)))
    return replace(
        request,
        job=replace(request.job, mtp_layers=r.choice((1, 1, 2, 3))),
        cluster=replace(request.cluster, gpus=(larger,)),
    )


@pytest.mark.parametrize("group", range(3))
def test_what_is_proven_is_the_best_of_every_layout_and_split(group: int) -> None:
    """No layout of random small spaces beats the answer or its bound."""
    wrong, tried = {}, 0
    for number in range(group * CASES, (group + 1) * CASES):
        drawn = case_of(SEED, number, CAL, most_layouts=MOST_LAYOUTS)
        asked = None if drawn is None else with_modules(drawn[0], Random(number))
        if drawn is None or asked is None:
            continue
        tried += 1
        verdict = judge(asked, drawn[1], CAL)
        if verdict.faults:
            wrong[f"{SEED}/{number}"] = verdict.faults
    assert wrong == {}
    assert tried >= CASES // 6
