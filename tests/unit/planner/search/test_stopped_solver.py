"""A solver that is stopped is stopped by its work, which no other load of the machine changes; else it is said."""

from dataclasses import replace

import pytest

from app.reports.plan import proof_facts
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.plan import Plan, PlanRequest
from planner.search.given_layout import plan_of_layout
from planner.search.search import search
from planner.stages import cpsat, integer_program
from planner.stages.cpsat import STOPPED_BY_CLOCK
from topology.builders import default_cluster

CAL = load_calibration()
PINS = {
    "tp": 8, "cp": 2, "pp": 16, "dp": 64, "virtual_stages": 1, "microbatch_size": 1, "zero_stage": 1,
    "schedule": "1f1b", "recompute": "full", "sequence_parallel": True,
}  # fmt: skip
HARD = PlanRequest(
    model=model("llama-3.1-405b"),
    cluster=default_cluster("h100-sxm", 16_384).spec,
    job=TrainingJob(sequence_length=131_072, global_batch_size=128),
    pins=PINS,
    top=1,
)
"""Stages that the solver does not end on within its limit of work."""


def answer(verb: str) -> Plan:
    """The plan of the layout: given, its stages split by the planner, or searched with all of it pinned."""
    given = replace(HARD, pins={**PINS, "layers_of_stage": "auto"})
    plan = plan_of_layout(given, CAL) if verb == "estimate" else search(HARD, CAL)
    assert isinstance(plan, Plan)
    return plan


def decided(plan: Plan) -> object:
    """All that a solver decides of a plan."""
    return plan.layers_of_stage, plan.recompute_of_stage, plan.optimality, plan.estimate


def test_work_alone_stops_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as much time on the clock is the same answer, and nothing is said of a clock."""
    monkeypatch.setattr(integer_program, "WORK_LIMIT", 0.05)
    usual = answer("estimate")
    monkeypatch.setattr(cpsat, "MOST_SECONDS", 2 * cpsat.MOST_SECONDS)
    assert decided(answer("estimate")) == decided(usual)
    assert usual.optimality.status == "best-found"
    assert STOPPED_BY_CLOCK not in usual.assumptions


@pytest.mark.parametrize("verb", ["estimate", "plan"])
def test_a_solver_that_the_clock_stops_says_so(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an answer is of this machine: it is not proven, and the plan says what stopped it."""
    monkeypatch.setattr(cpsat, "MOST_SECONDS", 0.4)
    monkeypatch.setattr(integer_program, "WORK_LIMIT", 1e9)  # more than any machine does in that time
    plan = answer(verb)
    assert STOPPED_BY_CLOCK in plan.assumptions
    assert plan.optimality.status == "best-found"
    assert "best found" in dict(proof_facts(plan).pairs)["answer"]
    assert "split best" not in dict(proof_facts(plan).pairs)["answer"]
