"""A refusal names another engine only where that engine takes the question."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.precisions import TrainingPrecision
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from planner.engines.contracts import CONTRACTS
from planner.engines.read_back import require_runnable
from planner.plan import FREE, Plan, PlanRequest, problem_of
from planner.rules.check import check
from planner.search.search import search
from topology.base.errors import NoFeasiblePlanError
from topology.builders import default_cluster

HYBRID = "nemotron-h-8b"


def request(name: str, *, precision: TrainingPrecision = "bf16", **pins: Any) -> PlanRequest:
    """A question for no engine on eight GPUs."""
    job = TrainingJob(sequence_length=4096, global_batch_size=64, precision=precision)
    cluster = default_cluster("h100-sxm", 8).spec
    return PlanRequest(model=model(name), cluster=cluster, job=job, engine=FREE, pins=pins, top=1)


def hint(asked: PlanRequest, engine: str, layout: ParallelLayout) -> str:
    """What the rules of an engine advise about the kinds of layer."""
    broken = check(problem_of(replace(asked, engine=engine), load_calibration()), layout)
    return next(one.hint for one in broken if one.rule == f"{engine}-layer-kinds")


def refusal(plan: Plan, engine: str) -> NoFeasiblePlanError:
    """Why an engine cannot run a plan."""
    with pytest.raises(NoFeasiblePlanError) as caught:
        require_runnable(plan, CONTRACTS[engine])
    return caught.value


@pytest.fixture(scope="module")
def hybrid() -> Plan:
    """A hybrid that is planned for no engine, on eight stages by its user's wish."""
    plan = search(request(HYBRID, pp=2, tp=1))
    assert isinstance(plan, Plan)
    return plan


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize(
    "layout", [ParallelLayout(), ParallelLayout(pp=2), ParallelLayout(dp=8), ParallelLayout(cp=2)]
)
def test_an_engine_that_is_named_keeps_all_its_limits(
    precision: TrainingPrecision, layout: ParallelLayout
) -> None:
    """DeepSpeed and Accelerate have no stages and eight bits; of what is left, whichever takes it is named."""
    asked = request(HYBRID, precision=precision)
    said = hint(asked, "megatron", layout)
    for engine in ("deepspeed", "accelerate"):
        contract = CONTRACTS[engine]
        s = problem_of(asked, load_calibration()).of(stack=stack(contract.stacks[0]))
        row = LayoutTable.from_rows([layout])
        refused = any(
            bool(limit.broken(s, row)) for limit in contract.limits if len(limit.reads) < 2
        )  # of an unfinished layout others may still be kept
        assert (f"--for {engine}" in said) == (not refused)


def test_what_helps_nobody_is_not_said_of_the_engine_that_refuses(hybrid: Plan) -> None:
    """`use --for deepspeed …, as plan --for megatron does` named an engine without stages, and Megatron-LM."""
    refused = refusal(hybrid, "megatron")
    assert "megatron-model" in refused.what
    assert refused.fix == "use another model"


def test_without_pins_the_engines_that_take_the_model_are_named(hybrid: Plan) -> None:
    """They plan it anew, so its own stages do not matter."""
    free = replace(hybrid, request=replace(hybrid.request, pins={}))
    assert refusal(free, "megatron").fix.startswith("use --for deepspeed or --for accelerate, which train")


def test_a_change_of_the_layout_is_advised_where_the_engine_then_takes_it() -> None:
    """Of a dense model Accelerate has only the stages against it."""
    plan = search(request("llama-3.1-8b", pp=2))
    assert isinstance(plan, Plan)
    assert refusal(plan, "accelerate").fix == "set pp=1"
    free = replace(plan, request=replace(plan.request, pins={}))
    assert refusal(free, "accelerate").fix == "set pp=1, as plan --for accelerate does"
