"""What one serving question compares when it names neither modes nor precisions."""

import re
from dataclasses import replace
from functools import cache

import pytest

from costmodel.kernels.tables import load_calibration
from planner.analysis.serving.contenders import plan_summary
from planner.analysis.serving.fleets import find_fleet
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import Asked, understand_serving
from planner.serving.plan import SURE, ServingPlan, serving_from_json, serving_to_json
from planner.serving.search import search_serving
from tests.counts import tries
from topology.base.errors import InputError

LOAD = ServeFlags(
    model="8b", rate="40/s", input_tokens="1000", output_tokens="100", ttft="200ms", tpot="15ms",
    gpu="h100-sxm",
)  # fmt: skip
WHOLE = 8
"""GPUs of the machines that replicas are laid out in; smaller ones are a line only where they are cheaper."""


TOLD = list[str]()
"""What was said while the question was compared."""


@cache
def compared() -> tuple[Asked, ServingPlan]:
    """The question with nothing named, and its answer."""
    asked = understand_serving(LOAD)
    return asked, find_fleet(asked, tell=TOLD.append)


def test_a_first_answer_stands_beside_how_far_it_is() -> None:
    """From the second board on, never dearer than the one before, and no dearer than what is proposed."""
    _, plan = compared()
    compares = [step for step in TOLD if re.match(r"comparing \d+ of", step)]
    assert "best so far" not in compares[0]
    found = [
        re.search(r"; best so far \d+ × h100-sxm: .+, \$([\d.]+) an hour$", step) for step in compares[1:]
    ]
    dollars = [float(one[1]) for one in found if one is not None]
    assert len(dollars) == len(compares) - 1 >= 2
    assert dollars == sorted(dollars, reverse=True)
    assert plan.estimate.usd_per_hour is not None
    assert dollars[-1] <= plan.estimate.usd_per_hour * 1.01


def test_precisions_that_the_gpu_runs_and_both_modes_are_compared() -> None:
    """bf16 is the checkpoint's; fp4 needs a GPU that multiplies in it, fp8 one that does or an engine that widens."""
    offered = {
        (gpu, engine): [
            (request.weights[0], request.modes)
            for request, _ in understand_serving(replace(LOAD, gpu=gpu, engine=engine)).requests
            if request.machine_gpus == WHOLE
        ]
        for gpu, engine in (("h100-sxm", "vllm"), ("b200-sxm", "vllm"), ("a100-sxm-80gb", "trtllm"))
    }
    both = ("aggregated", "disaggregated")
    assert offered["h100-sxm", "vllm"] == [(name, both) for name in ("bf16", "fp8", "int4")]
    assert offered["b200-sxm", "vllm"] == [(name, both) for name in ("bf16", "fp8", "int4", "fp4")]
    assert offered["a100-sxm-80gb", "trtllm"] == [(name, both) for name in ("bf16", "int4")]


def test_what_is_named_is_not_compared() -> None:
    """A precision, a mode; and in a closed loop, on one GPU or under a trace no pools, unless they are asked for."""
    named = understand_serving(replace(LOAD, weights="int4", mode="disaggregated"))
    assert {(request.weights, request.modes) for request, _ in named.requests} == {
        (("int4",), ("disaggregated",))
    }
    assert named.shown_only == frozenset()
    for alone in (replace(LOAD, rate=None, concurrency="8"), replace(LOAD, gpus="1")):
        assert {request.modes for request, _ in understand_serving(alone).requests} == {("aggregated",)}


def test_every_line_is_the_answer_to_its_own_question() -> None:
    """Searched alone, each kind, precision (one in the suite) and mode has the same dollars and proof.

    It may use more GPUs of the machines that are paid for, where it keeps its limits more surely so.
    """
    asked, plan = compared()
    everything = (plan_summary(plan), *plan.other_fleets)
    lines = {
        (one.gpu, one.weights, one.mode): one
        for one in everything
        if one.rental and one.rental.offer.gpus == WHOLE and one.kv_dtype is None
    }
    requests = [one for one in asked.requests if one[0].machine_gpus == WHOLE]
    assert len(lines) == 2 * len(requests) == 6
    for request, hierarchy in requests[: tries(1, len(requests))]:
        for mode in request.modes:
            alone = search_serving(load_calibration(), replace(request, modes=(mode,)), hierarchy)
            line = lines[request.gpu, request.weights[0], mode]
            if not isinstance(alone, ServingPlan):
                assert line.why_not
                continue
            assert line.usd_per_hour is not None
            assert alone.estimate.usd_per_hour is not None
            if line in plan.other_fleets:
                assert line.usd_per_hour == alone.estimate.usd_per_hour
                assert line.num_gpus <= alone.num_gpus
                assert ("best-found" in line.certainty) is (alone.optimality.status == "best-found")
            else:  # the proposal keeps its limits more surely than what is best by prediction
                assert line.usd_per_hour >= alone.estimate.usd_per_hour
            assert line.least_usd_per_hour is not None
            assert line.least_usd_per_hour <= line.usd_per_hour * (1 + 1e-9)


def test_the_plan_is_the_cheapest_of_what_the_checkpoint_serves() -> None:
    """Four bits are shown beside it, dearer or cheaper, and are no answer unless they are named.

    What is cheaper keeps the limits less surely, or was not measured.
    """
    _, plan = compared()
    others = [one for one in plan.other_fleets if not one.why_not]
    assert plan.weights in ("bf16", "fp8")
    assert {one.weights for one in others if not one.proposed and one.kv_dtype is None} == {"int4"}
    assert [one.kv_dtype for one in others if one.kv_dtype] == ["fp8"]
    hour = plan.estimate.usd_per_hour
    assert hour is not None
    cheaper = [one for one in others if one.proposed and (one.usd_per_hour or 0.0) < hour]
    assert all((one.chance or 0.0) < SURE or not one.rows for one in cheaper)


def test_lines_have_money_latencies_and_evidence_and_read_back() -> None:
    """Dollars of a million tokens times the tokens of an hour are the dollars of an hour."""
    _, plan = compared()
    for one in plan.other_fleets:
        if one.why_not:
            continue
        assert one.usd_per_hour is not None
        assert one.usd_per_million_tokens is not None
        hourly = one.usd_per_million_tokens * 1100 * 40 * 3600 / 1e6
        assert hourly == pytest.approx(one.usd_per_hour)
        assert one.ttft_s is not None
        assert one.tpot_s is not None
        assert 0 < one.ttft_s <= 0.2
        assert 0 < one.tpot_s <= 0.015
        assert one.rows > 0 or one.not_measured or one.mode == "disaggregated"
    assert serving_from_json(serving_to_json(plan)) == plan


def test_a_narrower_precision_is_the_way_out_where_nothing_else_fits() -> None:
    """405B in eight bits does not fit on four H100; four bits do, and the error names them."""
    small = ServeFlags(model="405b", gpu="h100-sxm", gpus="4", input_tokens="1000", output_tokens="100")
    with pytest.raises(InputError) as refused:
        find_fleet(understand_serving(small))
    assert "--weights int4" in refused.value.fix
